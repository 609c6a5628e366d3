"""Token counts at offsets of a long text, so that parts of it are never counted again."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

Count = Callable[[str], int]

LONG_BYTES: Final = 512
STEP_BYTES: Final = 256
HEAD_LINES: Final = 20
TAIL_LINES: Final = 10


def is_long(text: str) -> bool:
    """Return whether a text has offsets: above 512 bytes."""
    return len(text) > LONG_BYTES or (
        4 * len(text) > LONG_BYTES and not text.isascii() and _bytes_of(text) > LONG_BYTES
    )


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class TokenOffsets:
    """Points of a text with their offset, and the tokens and line ends before them.

    The first point is the start, the last the end; neighbors are at most about 256 bytes apart. The
    ends of the first 20 lines and the starts of the last 10 are points unless that splits a token;
    the 20th and the 10th always are. Token counts add up, and none is below the tokenizer's count
    of the same part.
    """

    offsets: tuple[int, ...] = (0,)
    tokens: tuple[int, ...] = (0,)
    line_ends: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, text: str, count: Count) -> Self:
        """Count a text, each stretch between two points separately."""
        offsets, tokens, line_ends = [0], [0], [0]
        start = spent = ended = 0
        for end in _grid(text):
            stretch = text[start:end]
            # A word that is split may count one less than it does as a whole.
            spent += count(stretch) + (PARTED.match(text, end) is None)
            ended += stretch.count("\n")
            offsets.append(end)
            tokens.append(spent)
            line_ends.append(ended)
            start = end
        return cls(tuple(offsets), tuple(tokens), tuple(line_ends))

    @classmethod
    def parse(cls, encoded: str) -> Self:
        """Read the output of `encode`; an empty string means an empty text.

        Raises:
            ValueError: `encode` never wrote this.
        """
        offsets, tokens, line_ends = [0], [0], [0]
        offset = spent = ended = 0
        for step in encoded.split():
            characters, cost, *ends = step.split(".")
            offset += int(characters)
            spent += int(cost)
            ended += int(ends[0]) if ends else 0
            offsets.append(offset)
            tokens.append(spent)
            line_ends.append(ended)
        return cls(tuple(offsets), tuple(tokens), tuple(line_ends))

    def encode(self) -> str:
        """Write the steps between points: characters, tokens, and line ends if any."""
        steps = []
        for point in range(1, len(self.offsets)):
            before = point - 1
            characters = self.offsets[point] - self.offsets[before]
            step = f"{characters}.{self.tokens[point] - self.tokens[before]}"
            ends = self.line_ends[point] - self.line_ends[before]
            steps.append(f"{step}.{ends}" if ends else step)
        return " ".join(steps)

    @property
    def total(self) -> int:
        """The tokens of the whole text."""
        return self.tokens[-1]

    @property
    def characters(self) -> int:
        """The length of the text."""
        return self.offsets[-1]

    def head(self, max_tokens: int) -> int:
        """Return where the longest beginning within these tokens ends; 0 if no stretch fits."""
        return self.offsets[max(0, bisect_right(self.tokens, max_tokens) - 1)]

    def tail(self, max_tokens: int) -> int:
        """Return where the longest end within these tokens starts."""
        return self.offsets[bisect_left(self.tokens, self.total - max(0, max_tokens))]

    @property
    def lines(self) -> int:
        """The number of lines, as `lines_of` counts them."""
        if len(self.offsets) == 1:
            return 0
        # The start of the last line is a point: the last stretch holds a line end only if the text
        # ends with one.
        return self.line_ends[-1] + (self.line_ends[-1] == self.line_ends[-2])

    def head_lines(self) -> int:
        """Return where the first 20 lines end, or all of fewer."""
        if self.lines <= HEAD_LINES:
            return self.characters
        return self.offsets[bisect_left(self.line_ends, HEAD_LINES)]

    def tail_lines(self) -> int:
        """Return where the last 10 lines start, or all of fewer."""
        return self.offsets[bisect_left(self.line_ends, max(0, self.lines - TAIL_LINES))]

    def at_or_before(self, offset: int) -> int:
        """Return the offset of the nearest point at or before an offset."""
        return self.offsets[self._point_before(offset)]

    def at_or_after(self, offset: int) -> int:
        """Return the offset of the nearest point at or after an offset."""
        return self.offsets[self._point_after(offset)]

    def tokens_between(self, start: int, end: int) -> int:
        """Return an upper bound of the tokens between two offsets; exact if both are points."""
        return (
            self.tokens[self._point_after(end)] - self.tokens[self._point_before(start)]
            if start < end
            else 0
        )

    def _point_before(self, offset: int) -> int:
        return max(0, bisect_right(self.offsets, offset) - 1)

    def _point_after(self, offset: int) -> int:
        return min(len(self.offsets) - 1, bisect_left(self.offsets, offset))


PUNCTUATION: Final = r"""[]!"#$%&()*+,./:;<=>?@[\\^`{|}~，。、；：？！（）「」『』【】《》…—-]"""
# In o200k_base, a run of signs takes the line ends and slashes after it into one piece: a text is
# split before a slash only if a letter or a digit precedes the line end.
LINE_START: Final = r"(?:(?<=\n)(?=[^\r\n/])|(?<=[^\W_]\n)(?=/))"
WORD_END: Final = rf"(?<=[^\W_])(?={PUNCTUATION})"
RUN: Final = r"(?<=([^\r\n]))(?=\1{8})(?<=\1{8})|(?<=[0-9])(?=[0-9])"

AT_LINE_START = re.compile(LINE_START)
TO_WORD_END = re.compile(rf"(?s:.*){WORD_END}")
PARTED = re.compile(rf"(?s:{LINE_START}|(?= )|{WORD_END}|{RUN}|\Z)")
JOINED = re.compile("[\u0300-\u036f\u200d\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\udc00-\udfff]")


def _grid(text: str) -> Iterator[int]:
    start, step = 0, STEP_BYTES if text.isascii() else STEP_BYTES * len(text) // _bytes_of(text)
    for stop in _line_stops(text):
        while start < stop:
            start = _cut(text, start, stop, step)
            yield start


def _line_stops(text: str) -> list[int]:
    """Return the ends of the first 20 lines, the starts of the last 10, and the end.

    Consecutive line ends are one token: no point lies between them, except the 20th, the 10th and
    the last.
    """
    head: list[int] = []
    end = 0
    while len(head) < HEAD_LINES and (end := text.find("\n", end) + 1):
        head.append(end)
    tail: list[int] = []
    line_end = len(text)
    while (
        len(tail) < TAIL_LINES + text.endswith("\n")
        and (line_end := text.rfind("\n", 0, line_end)) >= 0
    ):
        tail.append(line_end + 1)
    inner = (stop for stop in (*head, *tail) if AT_LINE_START.match(text, stop))
    return sorted({*head[-1:], *tail[:1], *tail[-1:], *inner, len(text)})


def _cut(text: str, start: int, stop: int, characters: int) -> int:
    """Return where to split a text after `start`: at a line end, else a space, else punctuation."""
    limit = start + characters
    if limit >= stop:
        return stop
    least = limit - characters * 3 // 4
    line_start = limit + 1
    while line_start := text.rfind("\n", least - 1, line_start - 1) + 1:
        if AT_LINE_START.match(text, line_start):
            return line_start
    space = text.rfind(" ", least, limit + 1)
    if space >= 0:
        return space
    if word_end := TO_WORD_END.match(text, least, limit + 1):
        return word_end.end()
    end = limit
    while end > limit - 16 and JOINED.match(text, end):
        end -= 1
    return end
