"""The items of a digest: what they cost, which exact values are best, and which items fit."""

from collections.abc import Iterable, Sequence
from typing import Final

from turnfold.core.history.gist import SEAM_TOKENS, Item, RankedValue
from turnfold.core.text.values import RANK_BY_USER, worth_of

LEAST_VALUE_TOKENS: Final = 3

_COUNT: Final = "{} messages with {} tool calls are left out."


def count_line(messages: int, calls: int) -> str:
    """Return the line with the number of omitted messages."""
    return _COUNT.format(messages, calls)


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


def without_seam(item: Item) -> int:
    """Return the tokens of an item whose end joins the separator after it at no cost.

    A closing bracket after a letter, a digit or an ellipsis is one token with the comma after it.
    """
    text = item.text
    is_plain = text[-1:] == ")" and (text[-2:-1].isalnum() or text[-2:-1] == "…")
    return item.tokens - SEAM_TOKENS * is_plain


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
