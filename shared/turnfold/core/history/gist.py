"""The gist of a message: what a digest may contain of it without its whole text.

Ingest writes the parts that need a token counter, and stores them with the message: the opening of
a user's text, and the calls of an assistant, with their exact values. A window that leaves the
message out reads its gist. For a short text of a user, it finds the exact values in the body, and
the opening as well if the text is ASCII: at ingest, finding them would take longer than all other
work on a short message.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from turnfold.core.text.caches import cached_text
from turnfold.core.text.defuse import defused, markers_in
from turnfold.core.text.estimates import token_upper_bound
from turnfold.core.text.json_text import compact
from turnfold.core.text.lines import clip, clip_exact, one_line, printable
from turnfold.core.text.tokens import text_of
from turnfold.core.text.values import KIND_WEIGHTS, RANK_BY_USER, Value, values_in
from turnfold.messages import Message

NAME_CHARACTERS: Final = 64
ARGUMENT_CHARACTERS: Final = 80
MOST_VALUES: Final = 6
VALUE_CHARACTERS: Final = 120
SHORT_CHARACTERS: Final = 1_000
"""Up to this length, the gist of a user's text is computed when it is needed."""
OPENING_CHARACTERS: Final = 80

SEPARATOR: Final = ", "
SEAM_TOKENS: Final = 1
"""The most tokens that joining adds to each item of a list."""
FRAME_TOKENS, ELLIPSIS_TOKENS = 2, 2
"""The most tokens that a separator before a text adds, and an ellipsis after it."""


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

    `opening` is None for a message without text. `calls` are in call order. `text_tokens` is the
    size of the text alone, for content in parts, whose images count too; otherwise None.
    """

    opening: Item | None = None
    calls: tuple[Item, ...] = ()
    values: tuple[RankedValue, ...] = ()
    text_tokens: int | None = None


NOTHING: Final = Gist()


def opening_of(text: str) -> str:
    """Return the beginning of a text on one line; empty if nothing in it can be shown."""
    # Only the beginning is read: texts of users may be long.
    return defused(clip(printable(text[: 4 * OPENING_CHARACTERS]), OPENING_CHARACTERS))


def is_told_from_body(text: str) -> bool:
    """Return whether a text of a user needs no stored gist, because its body suffices."""
    return len(text) <= SHORT_CHARACTERS and text.isascii()


def encode_short(opening: Item) -> str:
    """Return the stored gist of a short text of a user: its opening alone."""
    return f"{opening.tokens} {opening.text}"


def encode(gist: Gist) -> str:
    """Return the stored gist of any other message; it ends with a size only if it has one."""
    return compact(gist if gist.text_tokens is not None else gist[:3])


def gist_of(message: Message) -> Gist:
    """Return the gist of a message, as far as it has one."""
    try:
        # The gist of a short text begins with a digit instead: the number of its tokens.
        if message.gist[:1] == "[":
            return _whole(message.gist)
        if message.short_body:
            return _short(message.gist, message.short_body, message.content_tokens)
    except (TypeError, ValueError):
        # The first code of revision 1003 wrote other forms.
        pass
    return NOTHING


@cached_text(4_096)
def _short(encoded: str, body: str, content_tokens: int) -> Gist:
    text = text_of(json.loads(body))
    if encoded:
        tokens, _, stored = encoded.partition(" ")
        opening = Item(stored, int(tokens))
    else:
        opening = _bounded_opening(text, content_tokens)
    return Gist(opening if opening.text else None, (), tuple(_stated(text)))


def _bounded_opening(text: str, text_tokens: int) -> Item:
    """Return the opening of a text with this many tokens, and an upper bound of the opening's."""
    opening = opening_of(text)
    tokens = token_upper_bound(SEPARATOR + opening)
    # A defused tag may have more tokens than the tag itself.
    if not markers_in(text):
        words, opening_words = text.split(), opening.removesuffix("…").split()
        bound = FRAME_TOKENS + text_tokens + ELLIPSIS_TOKENS * opening.endswith("…")
        if words[: len(opening_words)] == opening_words:
            # No token reaches from one word into the next, so each word left out is at least one.
            bound -= len(words) - len(opening_words)
        tokens = min(tokens, bound)
    return Item(opening, SEAM_TOKENS + tokens)


@cached_text(4_096)
def _whole(encoded: str) -> Gist:
    opening, calls, values, *sizes = json.loads(encoded)
    return Gist(
        None if opening is None else Item(*opening),
        tuple([Item(*call) for call in calls]),
        tuple([RankedValue(*value) for value in values]),
        *sizes,
    )


def _stated(text: str) -> Iterator[RankedValue]:
    """Yield the best values of a user's text, with upper bounds of their tokens."""
    for value, rank in stated_values(text):
        shown = defused(value)
        yield RankedValue(shown, SEAM_TOKENS + token_upper_bound(SEPARATOR + shown), rank)


def stated_values(text: str) -> Iterator[tuple[str, int]]:
    """Yield the best exact values of a user's text with their ranks."""
    values = values_in(printable(text))
    return best_values([(value, RANK_BY_USER + KIND_WEIGHTS[value.kind]) for value in values])


def best_values(ranked: Iterable[tuple[Value, int]]) -> Iterator[tuple[str, int]]:
    """Yield the best values of a message with their ranks; of equal ones the first."""
    ranks: dict[str, int] = {}
    for value, rank in ranked:
        if len(value.text) <= VALUE_CHARACTERS:
            ranks[value.text] = max(rank, ranks.get(value.text, rank))
    for text in sorted(ranks, key=lambda text: -ranks[text])[:MOST_VALUES]:
        yield text, ranks[text]


def named_calls(message: Message) -> list[Item]:
    """Return each call of a message as tool and main arguments, in call order."""
    known = gist_of(message).calls
    others = [call_text(call.name, call.path or "") for call in message.calls[len(known) :]]
    return [*known, *map(_bounded, others)]


def call_text(name: str, argument: str) -> str:
    """Return a call as a digest shows it."""
    tool = one_line(name, NAME_CHARACTERS)
    return defused(f"{tool}({clip_exact(argument, ARGUMENT_CHARACTERS)})" if argument else tool)


@cached_text(1_024)
def _bounded(text: str) -> Item:
    return Item(text, SEAM_TOKENS + token_upper_bound(SEPARATOR + text))
