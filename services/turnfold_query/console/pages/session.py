"""Pages about one session: its timeline, its window, its audit and its compactions."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from turnfold.core.text.search import BEGINNINGS, SearchQuery, searchable
from turnfold.messages import MOST_INT32, MOST_INT64
from turnfold_query.console.api import ApiError
from turnfold_query.console.strips import strip_of
from turnfold_query.console.views import PageView

MESSAGES = 30
LISTED = 150
MOST_SHOWN = 1_000
"""The most messages of a window on a page: while one is rendered, no request is answered."""
MOST_READINGS = 3
"""How often a window and its messages are read while the session changes."""
AUDIT_ROWS = 100
COMPACTIONS = 100
DIFFERENCES = 200
DEFAULT_BUDGET = 8_000
LEAST_BUDGET = 200
STEPS = (50, 100, 250, 500)
"""The steps of the slider. All of them lead to round budgets."""
MOST_BUDGET = 200_000
"""The end of the slider at most; the URL takes larger budgets."""

FORMS = {
    "whole": "As published: it fits.",
    "cut": "Shortened, so that more messages fit the budget.",
    "line": "One line replaces this result, because newer messages need the room.",
    "mended": "Rewritten, so that providers accept it.",
    "stand_in": "Replaces a missing result, because providers require one for each call.",
    "summary": "The summary in force, in place of the messages that it covers.",
    "digest": "A short text about messages that are neither shown nor summarized yet.",
    "recall": "Quotes messages that match the newest request or left recently.",
}
"""The meaning of each form of a message in a window."""


async def timeline(view: PageView) -> Response:
    """Show the strip of a session, its counts, and the messages at a place of it."""
    position = view.whole("position", most=MOST_INT64)
    before = view.whole("before", most=MOST_INT64) if position is None else None
    counts, drawn, history = await asyncio.gather(
        view.get_session(), view.get_session("/timeline"), _messages_at(view, position, before)
    )
    messages = history["messages"]
    first = drawn["parts"][0]["first_position"] if drawn["parts"] else 0
    return view.page(
        "timeline.html",
        counts=counts,
        tab="timeline",
        session_path=view.session_path,
        strip=strip_of(drawn),
        messages=messages,
        is_newest=position is None and before is None,
        earlier=messages[0]["position"] if messages and messages[0]["position"] > first else None,
        # Positions are exclusive: the page after this one begins with `before` itself.
        later=history["next_position"] if position is not None else (before and before - 1),
    )


async def search(view: PageView) -> Response:
    """Show the messages with some words, and where each of them is now."""
    counts, sought = await view.get_session(), view.text("q")
    found: dict[str, Any] = {"hits": [], "is_partial": False}
    fault, grade = None, None
    try:
        if sought:
            found = await view.get_session("/search", q=sought, limit=MESSAGES)
    except ApiError as error:
        fault = error.message.removeprefix("q: ")
    hits = found["hits"]
    if sought and hits:
        grade = SearchQuery.of(sought).grade(searchable(hits[0]["message"]))
    return view.page(
        "search.html",
        counts=counts,
        tab="timeline",
        session_path=view.session_path,
        sought=sought,
        hits=hits,
        has_more=found["is_partial"] or len(hits) == MESSAGES,
        has_all_words=grade is not None and grade.tier > BEGINNINGS,
        fault=fault,
    )


async def changes(view: PageView) -> Response:
    """Stream the changes of a session, for an open timeline."""
    return view.visitor.api.stream(f"/v1{view.session_path}/changes")


async def _messages_at(view: PageView, position: int | None, before: int | None) -> dict[str, Any]:
    """Return the messages after or before a position, or the newest."""
    place: dict[str, object] = (
        {"after_position": position, "limit": MESSAGES}
        if position is not None
        else {"before_position": before or None, "newest": MESSAGES}
    )
    return await view.get_session("/history", include_retracted="true", **place)


class WindowMessage(NamedTuple):
    """A message of the window: its ids, its form, why it has it, and the message itself."""

    ids: Sequence[str]
    form: str
    why: str
    without: Sequence[str]
    message: Mapping[str, Any]


class ListedMessage(NamedTuple):
    """A message of the session and what a window does with it."""

    message_id: str
    position: int
    state: str
    form: str
    why: str
    message: Mapping[str, Any]


async def window(view: PageView) -> Response:
    """Show what the model would read with a budget, and what happens to every message."""
    counts = await view.get_session()
    most = budget_limit(counts["tokens_total"])
    step = next(step for step in STEPS if most <= 400 * step)
    budget = min(view.whole("max_tokens") or DEFAULT_BUDGET, 10_000_000)
    as_of = view.text("as_of")
    shown: list[WindowMessage] = []
    listed: list[ListedMessage] = []
    messages: list[dict[str, Any]] = []
    answer, fault = None, None
    try:
        answer, messages = await _window_of(view, budget, as_of)
    except ApiError as error:
        fault = error.message
    if answer is not None:
        shown = list(_shown(answer))
        listed = list(_listed(messages, answer, shown))
    return view.page(
        "window.html",
        counts=counts,
        tab="window",
        session_path=view.session_path,
        budget=budget,
        most=max(most, budget),
        # A slider moves itself to the nearest of its steps, so the budget has to be one.
        least=min(budget, max(LEAST_BUDGET, step) + budget % step),
        step=step,
        as_of=as_of,
        answer=answer,
        fault=fault,
        shown=shown[-MOST_SHOWN:],
        listed=listed,
    )


async def _window_of(
    view: PageView, budget: int, as_of: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a window and the newest messages of the same moment, if the session ever rests."""
    asked: dict[str, Any] = {
        "max_tokens": budget,
        "entries": "true",
        "placement": "user",
        "as_of": as_of,
        "follow_budget": "false",
    }
    answer, messages = await view.get_session("/context", **asked), []
    for _ in range(MOST_READINGS):
        messages = (await view.get_session("/history", newest=LISTED, as_of=as_of))["messages"]
        # Empty if the window is the same.
        changed = await view.get_session("/context", etag=answer["etag"], **asked)
        if not changed:
            break
        answer = changed
    return answer, messages


CHANGES = {
    "added": "Published in between.",
    "folded": "No longer shown",
    "returned": "Shown again.",
    "gone": "Retracted in between.",
    "changed": "Shown in another form.",
}
"""The meaning of each change of a message between two windows."""
_FOLDED = {
    "covered": "a summary covers it.",
    "pending": "evicted, and described by a digest.",
    "live": "newer messages take the budget.",
}


async def difference(view: PageView) -> Response:
    """Show what changed between the windows of two moments."""
    counts = await view.get_session()
    before, after = view.text("before"), view.text("after")
    budget = min(view.whole("max_tokens") or DEFAULT_BUDGET, 10_000_000)
    answer, texts, fault = None, {}, None
    if before:
        try:
            answer = await view.get_session(
                "/context/difference",
                before=before,
                after=after,
                max_tokens=budget,
                limit=DIFFERENCES,
            )
            texts = await _texts(view, [change["message_id"] for change in answer["changes"]])
        except ApiError as error:
            fault = error.message
    return view.page(
        "difference.html",
        counts=counts,
        tab="window",
        session_path=view.session_path,
        budget=budget,
        before=before,
        after=after,
        answer=answer,
        fault=fault,
        changes=[
            change | {"why": _why(change), "message": texts.get(change["message_id"], {})}
            for change in reversed(answer["changes"])
        ]
        if answer
        else [],
        most=DIFFERENCES,
    )


async def _texts(view: PageView, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return messages by id."""
    found: dict[str, dict[str, Any]] = {}
    groups = [list(ids)] if ids else []
    while groups:
        group = groups.pop()
        try:
            page = await view.get_session("/history", message_ids=group, include_retracted="true")
        except ApiError as error:
            if error.code != "too_large" or len(group) == 1:
                raise
            half = len(group) // 2
            groups += [group[:half], group[half:]]
            continue
        found |= {stored["message_id"]: stored["message"] for stored in page["messages"]}
    return found


def _why(change: dict[str, Any]) -> str:
    if change["change"] == "folded":
        return f"{CHANGES['folded']}: {_FOLDED.get(change['state_after'], 'left out.')}"
    return CHANGES[change["change"]]


def budget_limit(tokens: int) -> int:
    """Return the end of the slider: the smallest round number that shows everything, or less."""
    wanted = min(max(int(tokens * 1.1), 4_000), MOST_BUDGET)
    return -(-wanted // 1_000) * 1_000


def _shown(answer: dict[str, Any]) -> Iterator[WindowMessage]:
    for message, entry in zip(answer["messages"], answer["entries"], strict=True):
        ids = entry["id"]
        yield WindowMessage(
            [name for name in (ids if isinstance(ids, list) else [ids]) if name],
            entry["form"],
            FORMS[entry["form"]],
            entry["without"],
            message,
        )


def _listed(
    messages: Sequence[dict[str, Any]], answer: dict[str, Any], shown: Sequence[WindowMessage]
) -> Iterator[ListedMessage]:
    forms = {name: part for part in shown for name in part.ids}
    recalled = set((answer["recall"] or {}).get("message_ids", ()))
    for entry in reversed(messages):
        form, why = _form_of(entry, forms, recalled)
        yield ListedMessage(
            entry["message_id"], entry["position"], entry["state"], form, why, entry["message"]
        )


def _form_of(
    entry: dict[str, Any], forms: Mapping[str, WindowMessage], recalled: set[str]
) -> tuple[str, str]:
    """Return the form of a message in a window, and why it has it."""
    part = forms.get(entry["message_id"])
    if part is not None:
        if entry["state"] == "pending" and part.form == "whole":
            return part.form, "Evicted and not summarized yet; it still fits."
        return part.form, part.why
    if entry["message_id"] in recalled:
        return "recall", "Quoted, because it matches the newest request or left recently."
    if entry["state"] == "covered":
        return "covered", "The summary in force covers it."
    if entry["state"] == "pending":
        return "digest", "Evicted; a digest describes it until a summary covers it."
    return "folded", "Left out: newer messages take the budget. A larger budget shows it."


async def audit(view: PageView) -> Response:
    """Show the audit trail of a session; verify its chain if asked."""
    after = view.whole("after") or 0
    rows = (await view.get_session("/audit", after=after, limit=AUDIT_ROWS))["audit"]
    check = await view.get_session("/audit/verification") if view.text("verify") else None
    return view.page(
        "audit.html",
        counts=await _counts_if_kept(view),
        tab="audit",
        session_path=view.session_path,
        rows=rows,
        check=check,
        after=after,
        next_after=rows[-1]["ordinal"] if len(rows) == AUDIT_ROWS else None,
    )


async def _counts_if_kept(view: PageView) -> dict[str, Any] | None:
    """Return the counts of a session; None if it was erased, whose audit is kept."""
    try:
        return await view.get_session()
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def compactions(view: PageView) -> Response:
    """Show the compactions of a session."""
    before = view.whole("before", most=MOST_INT32) or None
    listed = await view.get_session("/compactions", before=before, limit=COMPACTIONS)
    return view.page(
        "compactions.html",
        counts=await view.get_session(),
        tab="compactions",
        session_path=view.session_path,
        rows=listed["compactions"],
        before=before,
        next_before=listed["next_before"],
        did=view.text("did"),
    )
