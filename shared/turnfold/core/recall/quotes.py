"""Quote lines of earlier messages that contain recurring names.

An agent needs a function, a path or a number again, together with the line that explains it. The
worker marks such lines of each message in the background, because their tokens must be counted. A
recall block quotes the best of those that its window does not show.
"""

import json
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain, islice, repeat
from math import exp
from typing import Any, Final, NamedTuple
from zlib import crc32

from turnfold.core.text.caches import cached_text
from turnfold.core.text.calls import arguments_of, call_entries
from turnfold.core.text.names import named_lines, names_in
from turnfold.core.text.tokens import Count, spoken_text, text_of, token_upper_bound

READ_CHARACTERS: Final = 64_000
"""The characters of a message that are searched for names."""
MOST_LINES: Final = 256
"""The most lines that are marked in a message, as many as large windows have room for."""
NEWEST_MESSAGES: Final = 128
"""The newest messages that are quoted and decide the worth of names. Two more count for each
message that the window shows."""
DECAY_MESSAGES: Final = 30
"""After this many messages, the weight of a use has fallen by a factor of e."""
WORTH_POWER: Final = 0.7
"""A name is worth this power of its uses, so that several names outweigh one frequent name."""
WRITTEN_WORTH: Final = 2
"""The factor for names that the agent wrote itself, for example in arguments."""
ASKED_WORTH: Final = 100.0
"""A name in the question is worth more than all others of a line."""
MOST_REVALUED: Final = 10_000
"""After so many values, such names keep theirs: each change has all lines with one valued again."""
LEAST_LINE_BYTES: Final = 16
"""The least bytes that a marked line takes, with one name."""
MESSAGE_TOKENS: Final = 10
"""About the tokens that the first line of a message needs in addition to its own."""

NameNumber = int
"""The 32-bit checksum of a name: equal names have equal numbers."""


class MarkedLine(NamedTuple):
    """A line of a message's quotable text: its place there, its tokens, and the names in it."""

    start: int
    characters: int
    tokens: int
    names: tuple[NameNumber, ...]


def said_in(body: Mapping[str, Any]) -> tuple[str, int]:
    """Return a message's text, and, if that is not its content, an upper bound of its tokens."""
    if said := text_of(body):
        return said, 0
    # A refusal or a transcript.
    said = spoken_text(body)
    return said, token_upper_bound(said)


def quotable_text(body: Mapping[str, Any]) -> str:
    """Return the text of a message, then the arguments of its calls without JSON."""
    arguments = [
        argument for entry in call_entries(body) for argument in _arguments(arguments_of(entry))
    ]
    return "\n".join([text_of(body), *arguments])[:READ_CHARACTERS]


def _arguments(arguments: object) -> Iterator[str]:
    if isinstance(arguments, str) and len(arguments) <= 2 * READ_CHARACTERS:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            yield str(arguments)
            return
    values = arguments.values() if isinstance(arguments, Mapping) else [arguments]
    for value in values:
        yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def mark_lines(body: Mapping[str, Any], count: Count) -> bytes | None:
    """Return the marked lines of a message as they are stored; None if no line holds a name.

    Each line takes 12 bytes and 4 for each name.
    """
    numbers: list[int] = []
    for line in islice(named_lines(quotable_text(body)), MOST_LINES):
        names = name_numbers(with_files(line.names))
        # Both fit into 16 bits: a line has at most 200 characters, and a token at least one byte.
        numbers += (line.start, len(line.text) << 16 | count(line.text), len(names), *names)
    return struct.pack(f"<{len(numbers)}I", *numbers) if numbers else None


def read_marks(stored: bytes) -> list[MarkedLine]:
    """Return the marked lines that `mark_lines` wrote, in order of their place."""
    numbers = struct.unpack(f"<{len(stored) // 4}I", stored)
    lines: list[MarkedLine] = []
    at = 0
    while at < len(numbers):
        start, size, names = numbers[at : at + 3]
        at += 3 + names
        lines.append(MarkedLine(start, size >> 16, size & 0xFFFF, numbers[at - names : at]))
    return lines


@cached_text(maxsize=128)
def numbers_of_names(text: str) -> frozenset[NameNumber]:
    """Return the numbers of the names in a text."""
    return frozenset(name_numbers(names_in(text)))


def numbers_in_lines(lines: Iterable[str]) -> frozenset[NameNumber]:
    """Return the numbers of the names in lines. No name reaches from one line into the next."""
    return frozenset(chain.from_iterable(map(_numbers_in_line, lines)))


@cached_text(maxsize=4_096)
def _numbers_in_line(line: str) -> tuple[NameNumber, ...]:
    """Return the numbers of the names in a line. Cached, because new versions keep most lines."""
    return tuple(name_numbers(with_files(names_in(line))))


def number_of_name(name: str) -> NameNumber:
    """Return the number of a name."""
    # Not `hash`: the numbers are stored, and it differs from process to process.
    return crc32(name.encode("utf-8", "surrogatepass"))


def with_files(names: Collection[str]) -> Collection[str]:
    """Return names, and those that paths and URLs end with: agents name a file with and without."""
    ends = " ".join([name.rpartition("/")[2] for name in names if "/" in name])
    return names_in(ends).union(names) if ends else names


def name_numbers(names: Collection[str]) -> list[NameNumber]:
    """Return the numbers of names, each once, in order."""
    return sorted({number_of_name(name) for name in names})


def best_lines(
    marked: Mapping[int, Sequence[MarkedLine]],
    newest: int,
    *,
    quotable: Sequence[tuple[int, MarkedLine]],
    known: Collection[NameNumber],
    own: Collection[int] = (),
    asked: Collection[NameNumber] = (),
    sizes: Sequence[int] = (),
) -> Iterator[tuple[int, MarkedLine]]:
    """Yield lines by the worth of their names per token, each with its message.

    `marked` has the lines of messages by their ordinals, up to `newest`, and `quotable` those that
    may be yielded, the first of equals first. A name that is `known`, or in a line yielded before,
    is worth nothing. Names in the agent's `own` messages are worth more, and names in the question
    (`asked`) most, in every message, but half as much after each line. `sizes` are the tokens of
    the messages by ordinal.
    """
    uses: defaultdict[NameNumber, float] = defaultdict(float)
    written: set[NameNumber] = set()
    for ordinal, lines in marked.items():
        weight = exp((ordinal - newest) / DECAY_MESSAGES)
        names = {name for line in lines for name in line.names}
        for name in names:
            uses[name] += weight
        if ordinal in own:
            written |= names
    worth = {
        name: used**WORTH_POWER * (WRITTEN_WORTH if name in written else 1)
        for name, used in uses.items()
    } | dict.fromkeys(asked, ASKED_WORTH)
    # The lines of a message take no more tokens than it does; if they seem to, theirs are bounds.
    ratios = {
        ordinal: min(1.0, sizes[ordinal] / max(1, sum([line.tokens for line in lines])))
        for ordinal, lines in marked.items()
        if ordinal < len(sizes)
    }
    offered = [
        (line.tokens * ratios.get(ordinal, 1.0) + MESSAGE_TOKENS, line.names)
        for ordinal, line in quotable
    ]
    for place in best_by_worth(offered, worth, known, asked):
        yield quotable[place]


def best_by_worth(
    offered: Sequence[tuple[float, Sequence[NameNumber]]],
    worth: Mapping[NameNumber, float],
    known: Collection[NameNumber],
    asked: Collection[NameNumber] = (),
) -> Iterator[int]:
    """Yield the places of lines, given by their tokens and names, by their worth per token.

    A name that is `known`, or in a line yielded before, is worth nothing; one that is `asked` for
    is worth half as much after each line, until `MOST_REVALUED`. Of equals, the first is yielded
    first. Lines without worth are not yielded.
    """
    left = {name: weight for name, weight in worth.items() if name in asked or name not in known}
    worth_left, none = left.get, repeat(0.0)

    def gain(place: int) -> float:
        tokens, names = offered[place]
        return sum(map(worth_left, names, none)) / tokens

    # Worth only falls as names are quoted, so a line is valued again only when it comes first.
    ranked = [(-worth_now, place) for place in range(len(offered)) if (worth_now := gain(place))]
    heapify(ranked)
    revalued = 0
    while ranked:
        promised, place = ranked[0]
        worth_now = gain(place)
        if not worth_now:
            heappop(ranked)
        elif -worth_now > promised:
            # Another line has quoted some of its names meanwhile.
            heapreplace(ranked, (-worth_now, place))
            revalued += 1
        else:
            heappop(ranked)
            yield place
            for name in offered[place][1]:
                if name not in asked:
                    left.pop(name, None)
                elif revalued < MOST_REVALUED:
                    left[name] /= 2
