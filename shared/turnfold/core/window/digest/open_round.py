"""The part of a digest that names the calls of the open round."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from turnfold.core.history.gist import SEAM_TOKENS, SEPARATOR, Item, calls_told, gist_of
from turnfold.core.text.estimates import token_upper_bound
from turnfold.core.window.digest.items import newest_within
from turnfold.core.window.views import BlockView, RoundView

ROUND: Final = 'Calls made so far for the request "{}": '
_OPEN_ROUND: Final = "Calls made so far: "
# Counted with the line end before it, by a test; see `framing`.
ROUND_TOKENS: Final = 11 + 2 * SEAM_TOKENS
TIMES_TOKENS: Final = token_upper_bound(" x999999")
"""The tokens of the number of times that a call was made, at most."""


class OpenRoundCalls:
    """The calls of the open round that the window leaves out, equal ones once with their number.

    None is lost, because a model that does not see a call makes it again: the newest are told by
    name, and those that exceed `room` tokens by number.
    """

    def __init__(self, in_round: RoundView, room: int) -> None:
        self.in_round = in_round
        self._room = room
        self._called: dict[str, _NamedCall] = {}
        self._tokens = 0

    def add(self, block: BlockView) -> None:
        """Add a block of the round."""
        message = block.head.message
        for call, item in zip(message.calls, calls_told(message), strict=True):
            known = self._called.pop(item.text, None)
            now = _NamedCall(call.name, item, known.times + 1 if known else 1)
            self._tokens += now.tokens - (known.tokens if known else 0)
            # Where it was made last, because the newest are kept longest.
            self._called[item.text] = now

    @property
    def cost(self) -> int:
        """The tokens that the line takes, at most."""
        if not self._called:
            return 0
        request = self._request
        heading = ROUND_TOKENS + (request.tokens if request else 0)
        return heading + min(self._tokens, self._room)

    @property
    def lines(self) -> list[str]:
        """The line that names the calls, if there are any."""
        if not self._called:
            return []
        request = self._request
        heading = ROUND.format(request.text) if request else _OPEN_ROUND
        return [heading + SEPARATOR.join(self._names())]

    @property
    def _request(self) -> Item | None:
        request = self.in_round.request
        return gist_of(request.head.message).opening if request else None

    def _names(self) -> list[str]:
        called = list(self._called.values())
        if self._tokens <= self._room:
            return [call.text for call in called]
        # Numbers take at most half of the room, however many tools there are: names matter more.
        made = sum([call.times for call in called])
        groups = {call.name: _group_tokens(call.name, made) for call in called}
        room = self._room - min(sum(groups.values()), self._room // 2)
        newest = newest_within([Item(call.text, call.tokens) for call in called], room)
        older = Counter[str]()
        for call in called[: len(called) - len(newest)]:
            older[call.name] += call.times
        return [*_grouped(older, groups, self._room // 2), *newest]


class _NamedCall(NamedTuple):
    """A call as the digest tells it: its tool, its text, and how often it was made."""

    name: str
    item: Item
    times: int

    @property
    def text(self) -> str:
        """The text, with the number of times if there were more."""
        return self.item.text if self.times == 1 else f"{self.item.text} x{self.times}"

    @property
    def tokens(self) -> int:
        """The tokens of the text, at most."""
        return self.item.tokens + (TIMES_TOKENS if self.times > 1 else 0)


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
