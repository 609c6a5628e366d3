"""The part of a digest that names the calls of the open round."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from turnfold.core.history.gist import SEAM_TOKENS, SEPARATOR, Item, calls_told, gist_of
from turnfold.core.text.estimates import token_upper_bound
from turnfold.core.window.digest.items import newest_within
from turnfold.core.window.views import BlockView, RoundView

ROUND: Final = 'Calls made so far for the request "{}": '
_OPEN_ROUND: Final = "Calls made so far: "
# Counted with the line end before it, by a test; see `framing`.
ROUND_TOKENS: Final = 11 + 2 * SEAM_TOKENS


class OpenRoundCalls:
    """The calls of the open round that the window leaves out.

    None is lost, because a model that does not see a call makes it again: the newest are told by
    name, and those that exceed `room` tokens by number.
    """

    def __init__(self, in_round: RoundView, room: int) -> None:
        self.in_round = in_round
        self._room = room
        self._blocks: list[BlockView] = []
        self._tokens = 0

    def add(self, block: BlockView, tokens: int) -> None:
        """Add a block of the round, whose calls take so many tokens."""
        self._blocks.append(block)
        self._tokens += tokens

    @property
    def cost(self) -> int:
        """The tokens that the line takes, at most."""
        if not self._blocks:
            return 0
        request = self._request
        heading = ROUND_TOKENS + (request.tokens if request else 0)
        return heading + min(self._tokens, self._room)

    @property
    def lines(self) -> list[str]:
        """The line that names the calls, if there are any."""
        if not self._blocks:
            return []
        request = self._request
        heading = ROUND.format(request.text) if request else _OPEN_ROUND
        return [heading + SEPARATOR.join(self._names())]

    @property
    def _request(self) -> Item | None:
        request = self.in_round.request
        return gist_of(request.head.message).opening if request else None

    def _names(self) -> list[str]:
        calls = [
            (call.name, item)
            for block in self._blocks
            for call, item in zip(
                block.head.message.calls, calls_told(block.head.message), strict=True
            )
        ]
        if self._tokens <= self._room:
            return _counted([item.text for _, item in calls])
        # Numbers take at most half of the room, however many tools there are: names matter more.
        groups = {name: _group_tokens(name, len(calls)) for name, _ in calls}
        room = self._room - min(sum(groups.values()), self._room // 2)
        newest = newest_within([item for _, item in calls], room)
        older = Counter([name for name, _ in calls[: len(calls) - len(newest)]])
        return [*_grouped(older, groups, self._room // 2), *_counted(newest)]


def _counted(texts: Sequence[str]) -> list[str]:
    """Return each text once, where it was last, with the number of times if there were more."""
    times = Counter(texts)
    last = list(dict.fromkeys(reversed(texts)))[::-1]
    return [text if times[text] == 1 else f"{text} x{times[text]}" for text in last]


def _group(name: str, number: int) -> str:
    return f"{name[:64]} x{number}"


def _group_tokens(name: str, number: int) -> int:
    return SEAM_TOKENS + token_upper_bound(SEPARATOR + _group(name, number))


def _grouped(older: Counter[str], tokens: Mapping[str, int], room: int) -> Iterator[str]:
    """Yield each tool with the number of its calls, the most used first, as far as they fit."""
    for name, number in older.most_common():
        room -= tokens[name]
        if room < 0:
            return
        yield _group(name, number)
