"""The messages and lines that a recall block is written from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnfold.core.recall.quotes import MarkedLine
from turnfold.core.text.calls import arguments_of
from turnfold.core.text.lines import one_line, printable
from turnfold.core.text.names import LINE_CHARACTERS
from turnfold.core.text.tokens import token_upper_bound
from turnfold.messages import Message, ToolCall, place_of_slot


class RecalledMessage(NamedTuple):
    """A message that may be recalled, with its JSON body.

    `ordinal` counts within the session, and `said_at` is a time as `2026-11-20 10:00`.
    """

    message: Message
    ordinal: int
    said_at: str
    body: Mapping[str, Any]

    @property
    def position(self) -> int:
        """Its position in the session."""
        return self.message.position


@dataclass(frozen=True, slots=True)
class Quote:
    """A line of a message that may be quoted without the rest of it."""

    of: RecalledMessage
    line: MarkedLine


@dataclass(frozen=True, slots=True)
class RecallMaterial:
    """The material of a block: whole messages and lines of messages, each best first.

    `partners` are the calls and results of the messages.
    """

    messages: Sequence[RecalledMessage] = ()
    partners: Sequence[RecalledMessage] = ()
    quotes: Sequence[Quote] = ()


def call_text(recalled: RecalledMessage, call: ToolCall) -> str:
    """Return a call as text: the name of its tool, and its arguments."""
    arguments = arguments_of(recalled.body["tool_calls"][call.slot])
    return f"{call.name} {arguments if isinstance(arguments, str) else ''}".rstrip()


def beginning_of_call(recalled: RecalledMessage, slot: int) -> tuple[MarkedLine, str] | None:
    """Return a line with the beginning of a call, before all other lines; None if unknown."""
    calls = recalled.message.calls
    place = place_of_slot(calls, slot)
    if place is None:
        return None
    called = f"called {call_text(recalled, calls[place])}"
    # Cut first: with spaces joined, a line that is too short to be cut would seem complete.
    begun = called if len(called) <= LINE_CHARACTERS else called[: LINE_CHARACTERS - 1] + "…"
    text = one_line(printable(begun), LINE_CHARACTERS)
    return MarkedLine(place - len(calls), len(text), token_upper_bound(text), ()), text
