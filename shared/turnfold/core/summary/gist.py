"""Write the gist of a message, when it is stored. See `turnfold.core.history.gist`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from turnfold.core.history.gist import (
    SEAM_TOKENS,
    SEPARATOR,
    Gist,
    Item,
    RankedValue,
    call_text,
)
from turnfold.core.summary.digest import main_argument
from turnfold.core.summary.ledger.collect import values_with_ranks
from turnfold.core.summary.sources import Source, clip, printable
from turnfold.core.text.markers import defused
from turnfold.core.text.tokens import Count, text_of
from turnfold.messages import Json, ToolCall

OPENING_CHARACTERS: Final = 80
READ_CHARACTERS: Final = 2_000
MOST_CALLS: Final = 32
MOST_VALUES: Final = 6
VALUE_CHARACTERS: Final = 120
"""Caps of one gist. Calls beyond the cap are told by their tool and file alone."""


def write_gist(body: Json, calls: Sequence[ToolCall], count: Count) -> str:
    """Return the gist of a chat message, encoded; empty for results and system messages.

    `calls` are those of its calls that may be sent. Of texts, only the beginning of what users
    wrote is read: the values of other texts rank lower, and reading them takes as long as counting.
    """
    role = str(body.get("role"))
    if not (role == "user" or (role == "assistant" and calls)):
        return ""
    text = printable(text_of(body)[:READ_CHARACTERS]) if role == "user" else ""
    calls = calls[:MOST_CALLS] if role == "assistant" else ()
    arguments = [_arguments(body, call) for call in calls]
    told = [
        call_text(call.name, printable(main_argument(argument)))
        for call, argument in zip(calls, arguments, strict=True)
    ]
    source = Source(
        "",
        role,
        text,
        tuple([(call.name, one) for call, one in zip(calls, arguments, strict=True)]),
    )
    opening = defused(clip(text, OPENING_CHARACTERS)) if role == "user" else ""
    return Gist(
        Item(opening, _tokens(opening, count)) if opening else None,
        tuple([Item(text, _tokens(text, count)) for text in told]),
        tuple(_values(source, count)),
    ).encode()


def _tokens(text: str, count: Count) -> int:
    return SEAM_TOKENS + count(SEPARATOR + text)


def _arguments(body: Mapping[str, Any], call: ToolCall) -> str:
    arguments = body["tool_calls"][call.slot]["function"].get("arguments")
    return arguments[:READ_CHARACTERS] if isinstance(arguments, str) else ""


def _values(source: Source, count: Count) -> Iterator[RankedValue]:
    """Yield the best values of a message; of equal ones the first."""
    ranks: dict[str, int] = {}
    for value, rank in values_with_ranks(source):
        if len(value.text) <= VALUE_CHARACTERS:
            ranks[value.text] = max(rank, ranks.get(value.text, rank))
    for text in sorted(ranks, key=lambda text: -ranks[text])[:MOST_VALUES]:
        yield RankedValue(defused(text), _tokens(text, count), ranks[text])
