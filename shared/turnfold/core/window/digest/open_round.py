"""The part of a digest that names the calls of the open round."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from turnfold.core.history.gist import SEAM_TOKENS, SEPARATOR, Item, gist_of, named_calls
from turnfold.core.window.views import BlockView, RoundView

ROUND: Final = 'Calls made so far for the request "{}": '
_OPEN_ROUND: Final = "Calls made so far: "
# Counted with the line end before it, by a test; see `framing`.
ROUND_TOKENS: Final = 11 + 2 * SEAM_TOKENS
TIMES_SIGN_TOKENS: Final = 1
"""The tokens of the sign before the number of equal calls; counted by a test."""


class OpenRoundCalls:
    """The calls of the open round that the window leaves out; equal ones once, with their number.

    All are mentioned, because a model that does not see a call makes it again: the newest by name,
    and those that exceed `room` tokens by number.
    """

    def __init__(self, in_round: RoundView, room: int) -> None:
        self.in_round = in_round
        self._room = room
        self._called: dict[str, _NamedCall] = {}
        self._tokens = 0

    def add(self, block: BlockView) -> None:
        """Add a block of the round."""
        message = block.head.message
        for call, item in zip(message.calls, named_calls(message), strict=True):
            known = self._called.pop(item.text, None)
            now = _NamedCall(call.name, item, known.times + 1 if known else 1)
            self._tokens += now.tokens - (known.tokens if known else 0)
            # At its last place, because the newest are kept longest.
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
        called, left = _merged(list(self._called.values()), self._tokens, self._room)
        if left <= self._room:
            return [call.text for call in called]
        older = _Numbers(self._room // 2)
        for place, call in enumerate(called):
            if left + older.tokens <= self._room:
                return [*older.texts, *[newer.text for newer in called[place:]]]
            older.add(call)
            left -= call.tokens
        return older.texts


class _NamedCall(NamedTuple):
    """A call as the digest names it: its tool, its text, and the number of equal calls."""

    name: str
    item: Item
    times: int

    @property
    def text(self) -> str:
        """The text, with the number of equal calls if there are several."""
        return self.item.text if self.times == 1 else f"{self.item.text} x{self.times}"

    @property
    def tokens(self) -> int:
        """The tokens of the text, at most."""
        return _without_seam(self.item) + (_times_tokens(self.times) if self.times > 1 else 0)


def _without_seam(item: Item) -> int:
    """Return the tokens of an item whose end joins the separator after it at no cost.

    A closing bracket after a letter, a digit or an ellipsis is one token with the comma after it.
    """
    text = item.text
    is_plain = text[-1:] == ")" and (text[-2:-1].isalnum() or text[-2:-1] == "…")
    return item.tokens - SEAM_TOKENS * is_plain


def _merged(
    called: Sequence[_NamedCall], tokens: int, room: int
) -> tuple[Sequence[_NamedCall], int]:
    """Merge older calls that differ only behind their cut, until all fit; return their tokens, too.

    A path is cut in its middle: files of one folder become the folder and their number.
    """
    older: dict[str, _NamedCall] = {}
    for place, call in enumerate(called):
        if tokens <= room:
            return [*older.values(), *called[place:]], tokens
        start = call.item.text.partition("…")[0]
        known = older.pop(start, None)
        if known is None:
            older[start] = call
            continue
        item = Item(f"{start}…)", max(known.item.tokens, call.item.tokens))
        older[start] = _NamedCall(call.name, item, known.times + call.times)
        tokens += older[start].tokens - known.tokens - call.tokens
    return list(older.values()), tokens


def _times_tokens(times: int) -> int:
    return TIMES_SIGN_TOKENS + (len(str(times)) + 2) // 3


class _Numbers:
    """The calls that are counted and not named: each tool with the number of its calls.

    They take at most `room` tokens, however many tools there are: names are worth more. Mutable,
    because calls are added one by one.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._needed = 0
        self._times = Counter[str]()
        self._name_tokens: dict[str, int] = {}

    def add(self, call: _NamedCall) -> None:
        """Count a call. A tool's name takes no more tokens than the shortest of its calls."""
        name = call.name
        before = self._tokens_of(name)
        known = self._name_tokens.get(name, call.item.tokens)
        self._name_tokens[name] = min(known, call.item.tokens)
        self._times[name] += call.times
        self._needed += self._tokens_of(name) - before

    @property
    def tokens(self) -> int:
        """The tokens that they take, at most."""
        return min(self._room, self._needed)

    @property
    def texts(self) -> list[str]:
        """Each tool with the number of its calls, the most used first, as far as they fit."""
        room, texts = self._room, list[str]()
        for name, number in self._times.most_common():
            room -= self._tokens_of(name)
            if room < 0:
                break
            texts.append(f"{name[:64]} x{number}")
        return texts

    def _tokens_of(self, name: str) -> int:
        times = self._times[name]
        return self._name_tokens[name] + _times_tokens(times) if times else 0
