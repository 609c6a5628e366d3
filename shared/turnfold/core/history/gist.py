"""The gist of a message: what a digest may tell of it without reading its text.

Ingest writes it once, with token counts, and stores it beside the message. Windows read it when
they leave the message out.
"""

import json
from functools import lru_cache
from typing import Final, NamedTuple

from turnfold.core.text.estimates import token_upper_bound
from turnfold.core.text.markers import defused
from turnfold.messages import Message, ToolCall

NAME_CHARACTERS: Final = 64
ARGUMENT_CHARACTERS: Final = 80
SEPARATOR: Final = ", "
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
SEAM_TOKENS: Final = 1
"""The most tokens that joining adds to each item of a list."""


class Item(NamedTuple):
    """A piece of text in a digest, and its tokens with the separator before it."""

    text: str
    tokens: int


class RankedValue(NamedTuple):
    """An exact value of a message, with its rank in the ledger."""

    text: str
    tokens: int
    rank: int


class Gist(NamedTuple):
    """The beginning of a message's text, its first calls, and its best exact values.

    `opening` is None for a message without text. `calls` are in call order.
    """

    opening: Item | None = None
    calls: tuple[Item, ...] = ()
    values: tuple[RankedValue, ...] = ()

    def encode(self) -> str:
        """Return it as JSON, empty if it holds nothing."""
        if not any(self):
            return ""
        return _ENCODER.encode(list(self))


NOTHING: Final = Gist()


def gist_of(message: Message) -> Gist:
    """Return the stored gist of a message."""
    return _read(message.gist) if message.gist else NOTHING


@lru_cache(maxsize=4_096)
def _read(encoded: str) -> Gist:
    opening, calls, values = json.loads(encoded)
    return Gist(
        None if opening is None else Item(*opening),
        tuple([Item(*call) for call in calls]),
        tuple([RankedValue(*value) for value in values]),
    )


def forget_gists() -> None:
    """Clear the cache of gists. Results do not change."""
    _read.cache_clear()
    _bounded.cache_clear()


def calls_told(message: Message) -> list[Item]:
    """Return each call of a message as tool and main argument, in call order."""
    known = gist_of(message).calls
    return [*known, *[_without_gist(call) for call in message.calls[len(known) :]]]


def call_text(name: str, argument: str) -> str:
    """Return a call as it stands in a digest."""
    tool = clipped(name, NAME_CHARACTERS)
    return defused(f"{tool}({clipped(argument, ARGUMENT_CHARACTERS)})" if argument else tool)


def clipped(text: str, characters: int) -> str:
    """Return the text on one line, at most `characters` long."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"


def _without_gist(call: ToolCall) -> Item:
    return _bounded(call_text(call.name, call.path or ""))


@lru_cache(maxsize=1_024)
def _bounded(text: str) -> Item:
    return Item(text, SEAM_TOKENS + token_upper_bound(SEPARATOR + text))
