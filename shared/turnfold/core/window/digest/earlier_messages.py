"""The part of a digest that names requests, calls and exact values."""

from collections.abc import Iterator
from typing import Final

from turnfold.core.history.gist import SEAM_TOKENS, SEPARATOR, Item, calls_told, gist_of
from turnfold.core.window.digest.items import (
    COUNT_TOKENS,
    BestValues,
    count_line,
    first_within,
    newest_within,
    shares,
)
from turnfold.core.window.views import BlockView, RoundView

SHARES: Final = (0.4, 0.25, 0.35)
"""The shares of requests, calls and exact values, as far as each needs its share."""

REQUESTS, CALLS, VALUES = "Requests, the newest last:", "Calls: ", "Exact values: "
# Counted with the line ends before them, by a test; see `framing`.
HEADINGS_TOKENS: Final = 7 + 4 + 5 + 3 * SEAM_TOKENS
_LINE: Final = "\n- "
_LINE_TOKENS: Final = 2


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
        self.messages += len(block.views)
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

    def lines(self, named_round: RoundView | None) -> Iterator[str]:
        """Yield the number of messages, their requests, calls and exact values, while they fit.

        The calls of `named_round` are left to another line.
        """
        if not self._blocks:
            return
        yield count_line(self.messages, self._calls)
        rooms = shares(self._needs, SHARES, self._room - HEADINGS_TOKENS)
        if shown := newest_within(self._requests, rooms[0]):
            yield REQUESTS + _LINE + _LINE.join(shown)
        if shown := self._newest_calls(named_round, rooms[1]):
            yield CALLS + SEPARATOR.join(shown)
        if shown := first_within(self._values.ranked, rooms[2]):
            yield VALUES + SEPARATOR.join(shown)

    def _newest_calls(self, named_round: RoundView | None, room: int) -> list[str]:
        """Return the calls that fit, each once, the newest last."""
        newest: dict[str, None] = {}
        for block in reversed(self._blocks):
            if block.in_round is named_round:
                continue
            for item in reversed(calls_told(block.head.message) if block.results else []):
                if item.text not in newest and item.tokens > room:
                    return list(newest)[::-1]
                room -= 0 if item.text in newest else item.tokens
                newest[item.text] = None
        return list(newest)[::-1]
