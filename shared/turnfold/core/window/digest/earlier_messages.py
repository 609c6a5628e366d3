"""The part of a digest that names requests, calls and exact values."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from turnfold.core.history.gist import (
    SEAM_TOKENS,
    SEPARATOR,
    Item,
    RankedValue,
    gist_of,
    named_calls,
)
from turnfold.core.text.values import RANK_BY_USER, worth_of
from turnfold.core.window.views import BlockView, RoundView

SHARES: Final = (0.4, 0.25, 0.35)
"""The shares of requests, calls and exact values, as far as each needs its share."""

REQUESTS, CALLS, VALUES = "Requests, the newest last:", "Calls: ", "Exact values: "
# Counted with the line ends before them, by a test; see `framing`.
HEADINGS_TOKENS: Final = 7 + 4 + 5 + 3 * SEAM_TOKENS
_LINE: Final = "\n- "
_LINE_TOKENS: Final = 2

LEAST_VALUE_TOKENS: Final = 3
_WORD: Final = re.compile(r"[\w./-]+")


def count_line(messages: int, calls: int) -> str:
    """Return the line with the number of omitted messages."""
    return f"{messages} messages with {calls} tool calls are left out."


# Counted with the line end before it, by a test; see `framing`. The widest numbers are assumed.
COUNT_TOKENS: Final = 16 + SEAM_TOKENS


class BestValues:
    """The best exact values of the messages left out.

    Values that a user stated are first, by their rank in the ledger. The others follow by their
    worth per token, which is greater if they recur, or if a person or the model named them. The
    newer of two equals is first. Only about as many as may fit are kept, so that a long session
    costs no more.
    """

    def __init__(self, room: int) -> None:
        self.tokens = 0
        self._most = max(1, room // LEAST_VALUE_TOKENS)
        self._found: dict[str, tuple[int, int, int, int]] = {}

    def add(self, values: Iterable[RankedValue], position: int) -> None:
        """Add the values of the next message."""
        for value in values:
            if value.text not in self._found:
                self.tokens += value.tokens
            _, times, rank, _ = self._found.get(value.text, (0, 0, 0, 0))
            self._found[value.text] = (position, times + 1, max(rank, value.rank), value.tokens)
        # Sorted once in a while, not at each message, so that the cost stays in proportion.
        if len(self._found) > 4 * self._most:
            # The others stay in `tokens`: by now, the values found exceed the room anyway.
            best = sorted(self._found, key=self._order)[: 2 * self._most]
            self._found = {text: self._found[text] for text in best}

    @property
    def ranked(self) -> list[Item]:
        """The values, the best first."""
        ordered = sorted(self._found, key=self._order)[: self._most]
        return [Item(text, self._found[text][3]) for text in ordered]

    def _order(self, text: str) -> tuple[bool, float, int]:
        position, times, rank, tokens = self._found[text]
        if rank >= RANK_BY_USER:
            return False, -rank, -position
        return True, -worth_of(rank, is_repeated=times > 1) / tokens, -position


class EarlierMessages:
    """The omitted messages, without the calls of the open round, which are named elsewhere.

    `room` is the maximum of its tokens. Mutable, because it grows with the window.
    """

    def __init__(self, room: int) -> None:
        self.messages = 0
        self._calls = 0
        self._room = room
        self._blocks: list[BlockView] = []
        self._requests: list[Item] = []
        self._values = BestValues(room)
        self._requests_tokens = self._calls_tokens = self._named_tokens = 0

    def add(self, block: BlockView, calls_tokens: int, *, is_named: bool) -> None:
        """Add a block; with `is_named`, the open round names its calls for now."""
        self._blocks.append(block)
        self.messages += block.messages
        self._calls += len(block.results)
        message = block.head.message
        gist = gist_of(message)
        if message.is_request and gist.opening is not None:
            request = Item(gist.opening.text, gist.opening.tokens + _LINE_TOKENS)
            self._requests.append(request)
            self._requests_tokens += request.tokens
        self._values.add(gist.values, message.position)
        if is_named:
            self._named_tokens += calls_tokens
        else:
            self._calls_tokens += calls_tokens

    def include_named_calls(self) -> None:
        """Take over the calls that the open round named, because another round is open now."""
        self._calls_tokens += self._named_tokens
        self._named_tokens = 0

    @property
    def cost(self) -> int:
        """The tokens that it takes: what is needed, within the room."""
        if not self._blocks:
            return 0
        needed = sum(self._needs)
        return COUNT_TOKENS + min(self._room, HEADINGS_TOKENS + needed if needed else 0)

    @property
    def _needs(self) -> tuple[int, int, int]:
        """The tokens of all requests, calls and exact values."""
        return self._requests_tokens, self._calls_tokens, self._values.tokens

    def lines(self, named_round: RoundView | None, names: Iterable[str]) -> Iterator[str]:
        """Yield the number of messages, their requests, calls and exact values, while they fit.

        The calls of `named_round` are left to `names`, the lines that follow, with their values.
        """
        if not self._blocks:
            return
        yield count_line(self.messages, self._calls)
        rooms = shares(self._needs, SHARES, self._room - HEADINGS_TOKENS)
        if shown := newest_within(self._requests, rooms[0]):
            yield REQUESTS + _LINE + _LINE.join(shown)
        if shown := self._newest_calls(named_round, rooms[1]):
            yield CALLS + SEPARATOR.join(shown)
        told = ToldText("".join(names))
        values = [value for value in self._values.ranked if value.text not in told]
        if shown := first_within(values, rooms[2]):
            yield VALUES + SEPARATOR.join(shown)

    def _newest_calls(self, named_round: RoundView | None, room: int) -> list[str]:
        """Return the calls that fit, each once, the newest last."""
        newest: dict[str, None] = {}
        for block in reversed(self._blocks):
            if block.in_round is named_round:
                continue
            for item in reversed(named_calls(block.head.message) if block.results else []):
                if item.text not in newest and item.tokens > room:
                    return list(newest)[::-1]
                room -= 0 if item.text in newest else item.tokens
                newest[item.text] = None
        return list(newest)[::-1]


class ToldText:
    """A text with the values that it tells: those in it, but not parts of longer ones."""

    def __init__(self, text: str) -> None:
        self._text = text
        # Split once: hundreds of values are sought in a text of up to a quarter of the budget.
        self._words = {word.rstrip(".") for word in _WORD.findall(text)}

    def __contains__(self, value: str) -> bool:
        words = _WORD.findall(value)
        return self._words.issuperset(words) and (words == [value] or value in self._text)


def shares(needs: Sequence[int], weights: Sequence[float], room: int) -> list[int]:
    """Divide the room by weight; what one part does not need goes to the others."""
    rooms = [0] * len(needs)
    waiting = list(range(len(needs)))
    while waiting:
        total = sum([weights[part] for part in waiting])
        fair = {part: int(max(0, room) * weights[part] / total) for part in waiting}
        content = [part for part in waiting if needs[part] <= fair[part]]
        for part in content or waiting:
            rooms[part] = min(needs[part], fair[part])
            room -= rooms[part]
        waiting = [part for part in waiting if part not in content] if content else []
    return rooms


def newest_within(items: Sequence[Item], room: int) -> list[str]:
    """Return the texts of the last items that fit, in order."""
    first = len(items)
    while first and items[first - 1].tokens <= room:
        first -= 1
        room -= items[first].tokens
    return [item.text for item in items[first:]]


def first_within(items: Iterable[Item], room: int) -> list[str]:
    """Return the texts of the items that fit, in order; an item that is too large is skipped."""
    texts: list[str] = []
    for item in items:
        if item.tokens <= room:
            room -= item.tokens
            texts.append(item.text)
    return texts
