"""The digest of a window: it tells of the messages that the window leaves out.

`WindowBuilder` reports each block that it leaves out. The digest takes what it needs of a share of
the budget, and its cost is known before its text is written.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from turnfold.core.history.gist import (
    SEAM_TOKENS,
    SEPARATOR,
    Item,
    calls_told,
    gist_of,
)
from turnfold.core.text.estimates import token_upper_bound
from turnfold.core.window.digest_items import BestValues, newest_within, shares
from turnfold.core.window.framing import (
    DIGEST_FRAME_TOKENS,
    SHORT_DIGEST_TOKENS,
    digest_tokens,
    short_digest,
)
from turnfold.core.window.limits import PendingDigest
from turnfold.core.window.views import BlockView, RoundView
from turnfold.messages import CompactionId

LEAST_TOKENS: Final = 120
MOST_TOKENS: Final = 1_200
NAMES_RATIO: Final = 0.3
"""The share of the budget that the calls of the open round take at most."""

SHARES: Final = (0.4, 0.25, 0.35)
"""The shares of requests, calls and exact values, as far as each needs its share."""

_COUNT: Final = "{} messages with {} tool calls are left out."
_REQUESTS, _CALLS, _VALUES = "Requests, the newest last:", "Calls: ", "Exact values: "
_ROUND: Final = 'Calls made so far for the request "{}": '
_OPEN_ROUND: Final = "Calls made so far: "
_LINE: Final = "\n- "
_WIDEST: Final = 9_999_999


def _bound(text: str) -> int:
    return SEAM_TOKENS + token_upper_bound(f"\n{text}")


_COUNT_TOKENS: Final = _bound(_COUNT.format(_WIDEST, _WIDEST))
_HEADINGS_TOKENS: Final = sum(map(_bound, (_REQUESTS, _CALLS, _VALUES)))
_LINE_TOKENS: Final = 2
_ROUND_TOKENS: Final = _bound(_ROUND.format(""))


class DigestForm(IntEnum):
    """How much a digest tells: nothing, the number of messages, the open round, or all it can."""

    NONE = 0
    SHORT = 1
    NAMES = 2
    FULL = 3


class DigestText(NamedTuple):
    """The digest of a window: its compactions with digests of their own, and its own text.

    `is_framed` is false for the shortest form, which needs no frame.
    """

    rows: tuple[CompactionId, ...] = ()
    text: str = ""
    is_framed: bool = True

    @property
    def is_shown(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.rows or self.text)


class WindowDigest:
    """The messages that a window leaves out, and the cost of telling them.

    `tokens` and `size` are what the digest adds to the window. `live` and `pending` count the
    messages left out that it tells, `calls` their tool calls.

    Mutable, because it grows with the window.
    """

    def __init__(
        self,
        rows: Mapping[CompactionId, PendingDigest],
        *,
        budget_tokens: int,
        ratio: float,
        is_told: bool = True,
    ) -> None:
        self.rows = rows
        self.form = DigestForm.FULL
        self._folded_rows: dict[CompactionId, None] = {}
        self.live = self.pending = self.calls = 0
        self.tokens = self.size = 0
        self._room = max(LEAST_TOKENS, min(MOST_TOKENS, int(ratio * budget_tokens)))
        self._names_room = int(NAMES_RATIO * budget_tokens)
        self._is_told = is_told
        self._blocks: list[BlockView] = []
        self._messages = self._calls = 0
        self._requests: list[Item] = []
        self._values = BestValues(self._room)
        self._requests_tokens = self._calls_tokens = self._later_calls_tokens = 0
        self._named_round: RoundView | None = None
        self._named: list[BlockView] = []
        self._names_tokens = 0
        self._text: DigestText | None = None

    def begin_trim(self, open_round: RoundView) -> None:
        """Tell all that is possible again, and of the calls of the round that is open now."""
        self.form = DigestForm.FULL
        self._name_calls_of(open_round)
        self._has_changed()

    def add(self, block: BlockView) -> None:
        """Tell of a block that is left out."""
        messages, calls = len(block.views), len(block.results)
        self.calls += calls
        if block.compaction_id is None:
            self.live += messages
        else:
            self.pending += messages
        told_calls = sum([item.tokens for item in calls_told(block.head.message)]) if calls else 0
        is_named = calls > 0 and not block.in_round.is_closed
        if is_named:
            self._name_calls_of(block.in_round)
            self._named.append(block)
            self._names_tokens += told_calls
        if block.compaction_id is not None and self._has_digest(block.compaction_id):
            self._folded_rows[block.compaction_id] = None
        else:
            self._blocks.append(block)
            self._messages += messages
            self._calls += calls
            self._add_texts(block)
            if is_named:
                self._later_calls_tokens += told_calls
            else:
                self._calls_tokens += told_calls
        self._has_changed()

    def _add_texts(self, block: BlockView) -> None:
        message = block.head.message
        gist = gist_of(message)
        if message.is_request and gist.opening is not None:
            request = Item(gist.opening.text, gist.opening.tokens + _LINE_TOKENS)
            self._requests.append(request)
            self._requests_tokens += request.tokens
        self._values.add(gist.values, message.position)

    def add_result(self, block: BlockView) -> None:
        """Count a result that came after its block was left out."""
        if block.compaction_id is None:
            self.live += 1
        else:
            self.pending += 1
        if block.compaction_id is None or not self._has_digest(block.compaction_id):
            self._messages += 1
        self._has_changed()

    def shorten(self, form: DigestForm) -> None:
        """Tell no more than this form does, until the next trim."""
        self.form = min(self.form, form)
        self._has_changed()

    def cost_of(self, row: PendingDigest) -> int:
        """Return the tokens that the digest of a compaction would add to the window."""
        if row.compaction_id in self._folded_rows or self.form is not DigestForm.FULL:
            return 0
        if not row.digest_tokens:
            return 0
        return digest_tokens(row.digest_tokens) + (0 if self.size else DIGEST_FRAME_TOKENS)

    @property
    def first_cost(self) -> int:
        """The tokens that the first message left out adds, whatever it says."""
        return 0 if self.size or not self._is_told else DIGEST_FRAME_TOKENS + _COUNT_TOKENS

    @property
    def told(self) -> int:
        """The live messages left out that the digest tells."""
        return self.live if self.size else 0

    @property
    def untold(self) -> int:
        """The messages left out that nothing in the window tells."""
        return 0 if self.size else self.live + self.pending

    def _has_digest(self, row: CompactionId) -> bool:
        return row in self.rows and self.rows[row].digest_tokens > 0

    def _name_calls_of(self, in_round: RoundView) -> None:
        if self._named_round is not in_round:
            self._named_round, self._named, self._names_tokens = in_round, [], 0
            self._calls_tokens += self._later_calls_tokens
            self._later_calls_tokens = 0

    def _has_changed(self) -> None:
        self._text = None
        self.tokens = self._cost()
        self.size = int(self.tokens > 0)

    def _cost(self) -> int:
        is_needed = self._is_told and (self._blocks or self.live or self.pending)
        if not is_needed or self.form is DigestForm.NONE:
            return 0
        if self.form is DigestForm.SHORT:
            return SHORT_DIGEST_TOKENS
        names = self._names_cost()
        if self.form is DigestForm.NAMES:
            return DIGEST_FRAME_TOKENS + _COUNT_TOKENS + names
        tokens = sum([digest_tokens(self.rows[row].digest_tokens) for row in self._folded_rows])
        return DIGEST_FRAME_TOKENS + tokens + self._earlier_cost() + names

    def _earlier_cost(self) -> int:
        """Return the tokens of all but the calls of the open round: what is needed, within a share."""
        if not self._blocks:
            return 0
        needed = sum(self._needs)
        return _COUNT_TOKENS + min(self._room, _HEADINGS_TOKENS + needed if needed else 0)

    @property
    def _needs(self) -> tuple[int, int, int]:
        """The tokens of all requests, calls and exact values."""
        return self._requests_tokens, self._calls_tokens, self._values.tokens

    def _names_cost(self) -> int:
        if not self._named or self._named_round is None:
            return 0
        opening = _opening_of(self._named_round)
        heading = _ROUND_TOKENS + (opening.tokens if opening else 0)
        return heading + min(self._names_tokens, self._names_room)

    # Writing

    @property
    def content(self) -> DigestText:
        """The digest as text."""
        if self._text is None:
            self._text = self._written()
        return self._text

    def _written(self) -> DigestText:
        if not self.size:
            return DigestText()
        if self.form is DigestForm.SHORT:
            messages = self.live + self.pending
            return DigestText(text=short_digest(messages, self.calls), is_framed=False)
        lines: list[str] = []
        if self.form is DigestForm.NAMES:
            lines.append(_COUNT.format(self.live + self.pending, self.calls))
        elif self._blocks:
            lines.append(_COUNT.format(self._messages, self._calls))
            lines += self._earlier()
        if self._named:
            lines.append(self._names())
        is_full = self.form is DigestForm.FULL
        rows = tuple([row for row in self.rows if is_full and row in self._folded_rows])
        return DigestText(rows, "\n".join(lines))

    def _earlier(self) -> Iterator[str]:
        """Yield the requests, calls and exact values, as far as there is room."""
        rooms = shares(self._needs, SHARES, self._room - _HEADINGS_TOKENS)
        if shown := newest_within(self._requests, rooms[0]):
            yield _REQUESTS + _LINE + _LINE.join(shown)
        if shown := self._newest_calls(rooms[1]):
            yield _CALLS + SEPARATOR.join(shown)
        if shown := newest_within(self._values.ranked[::-1], rooms[2]):
            yield _VALUES + SEPARATOR.join(shown[::-1])

    def _newest_calls(self, room: int) -> list[str]:
        """Return the calls that fit, each once, the newest last."""
        newest: dict[str, None] = {}
        for block in reversed(self._blocks):
            if block.in_round is self._named_round:
                continue
            for item in reversed(calls_told(block.head.message) if block.results else []):
                if item.text not in newest and item.tokens > room:
                    return list(newest)[::-1]
                room -= 0 if item.text in newest else item.tokens
                newest[item.text] = None
        return list(newest)[::-1]

    def _names(self) -> str:
        """Return the calls of the round that was open: the newest by name, older ones by number."""
        calls = [
            (call.name, item)
            for block in self._named
            for call, item in zip(
                block.head.message.calls, calls_told(block.head.message), strict=True
            )
        ]
        opening = _opening_of(self._named_round) if self._named_round else None
        heading = _ROUND.format(opening.text) if opening else _OPEN_ROUND
        if self._names_tokens <= self._names_room:
            return heading + SEPARATOR.join(_counted([item.text for _, item in calls]))
        groups = {name: _group_tokens(name, len(calls)) for name, _ in calls}
        room = self._names_room - min(sum(groups.values()), self._names_room // 2)
        newest = newest_within([item for _, item in calls], room)
        older = Counter([name for name, _ in calls[: len(calls) - len(newest)]])
        grouped = _grouped(older, groups, self._names_room // 2)
        return heading + SEPARATOR.join([*grouped, *_counted(newest)])


def _opening_of(in_round: RoundView) -> Item | None:
    return gist_of(in_round.request.head.message).opening if in_round.request else None


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
