"""`turnfold search`: find words and exact values in all messages of a session."""

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from turnfold.cli.context import BODY_INDENT, ROLE_COLORS
from turnfold.cli.names import connected_session
from turnfold.cli.output import console, one_line, print_lines, show_json
from turnfold.cli.parameters import Agent, AsJson, SessionName
from turnfold.cli.tables import show_text
from turnfold.contracts.fields import SearchedState
from turnfold.core.text.search import searched_text
from turnfold.messages import Role

COLUMNS = ("position", "message_id", "state", "role", "score", "snippet")
STATE_COLORS = {"live": "green", "pending": "yellow", "covered": "blue"}
HIT_STYLE = "bold reverse"
BEFORE, AROUND = 60, 200
MOST_HITS = 100

Hit = dict[str, Any]


def search(
    agent: Agent,
    session: SessionName,
    query: Annotated[
        list[str],
        typer.Argument(
            metavar="QUERY", help="Words, a path, an id or a number. Several words form one query."
        ),
    ],
    limit: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_HITS, metavar="COUNT", help="Show at most this many, best first."
        ),
    ] = 20,
    state: Annotated[
        SearchedState | None, typer.Option(help="Show only messages in this state.")
    ] = None,
    role: Annotated[Role | None, typer.Option(help="Show only messages of this role.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find messages of a session, best first, including those that left the window."""
    q = " ".join(query)
    if not q.strip():
        raise typer.BadParameter("QUERY is empty; name words of the messages")
    found = asyncio.run(_found(agent, session, q, limit=limit, state=state, role=role))
    hits: list[Hit] = found["hits"]
    if as_json:
        show_json(*hits)
    elif not sys.stdout.isatty():
        rows = ((*_columns(hit), snippet_of(searched_text(hit["message"]), q)[0]) for hit in hits)
        print_lines(COLUMNS, rows)
    elif hits:
        _show(console(), hits, q, has_more=found["is_partial"] or len(hits) == limit)
    else:
        typer.echo("No matches. Try fewer words, or the beginning of one.")


async def _found(agent: str, session: str, q: str, **filters: Any) -> Mapping[str, Any]:
    fields = {"q": q} | {name: value for name, value in filters.items() if value is not None}
    async with connected_session(agent, session) as chosen:
        return await chosen.ask("history.search", fields)


def _columns(hit: Hit) -> tuple[int, str, str, str, float]:
    return (
        hit["position"],
        hit["message_id"],
        hit["state"],
        str(hit["message"].get("role")),
        hit["score"],
    )


def _show(out: Console, hits: Sequence[Hit], q: str, *, has_more: bool) -> None:
    """Print each hit with its id, and below it the excerpt with the matches marked.

    With `has_more`, there may be matches beyond these.
    """
    number = "1 match" if len(hits) == 1 else f"{len(hits)} matches"
    out.print(Text(f"the best {number}" if has_more else number, style="bold italic"))
    for hit in hits:
        position, message_id, state, role, _ = _columns(hit)
        heading = Text.assemble(
            (f"{role:>9}", f"bold {ROLE_COLORS.get(role, 'white')}"),
            (f" {message_id} · ", "dim"),
            (state, STATE_COLORS.get(state, "")),
            (f" · position {position}", "dim"),
        )
        out.print(heading, soft_wrap=True)
        snippet, places = snippet_of(searched_text(hit["message"]), q)
        shown = Text(snippet)
        for start, end in places:
            shown.stylize(HIT_STYLE, start, end)
        show_text(out, shown, indent=BODY_INDENT)


def snippet_of(text: str, q: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a one-line excerpt around the query, and the positions of matches in it.

    If the query does not occur as a whole, its words are matched.
    """
    line = " ".join(one_line(text).split())
    whole = re.compile(re.escape(" ".join(q.split())), re.IGNORECASE)
    # Longest first: an alternation takes the first word that matches, not the longest.
    words = re.compile(
        "|".join(re.escape(word) for word in sorted(q.split(), key=len, reverse=True)) or "(?!)",
        re.IGNORECASE,
    )
    pattern = whole if whole.search(line) else words
    first = pattern.search(line)
    start = max(0, first.start() - BEFORE) if first else 0
    head, tail = ("…" if start else ""), ("…" if start + AROUND < len(line) else "")
    shown = f"{head}{line[start : start + AROUND]}{tail}"
    return shown, [match.span() for match in pattern.finditer(shown)]
