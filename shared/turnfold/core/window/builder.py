"""The window that grows as its session did: what is in it by now, what that costs, and what could be given up."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Final

from turnfold.core.history.priority import priority_of
from turnfold.core.policy.presets import Policy
from turnfold.core.window.framing import (
    DIGEST_FRAME_TOKENS,
    Placement,
    SummarySize,
    digest_tokens,
    summary_within,
    whole_summary,
)
from turnfold.core.window.truncation import (
    LEAST_ARGUMENTS_TOKENS,
    STAND_IN_TOKENS,
    arguments_tokens,
    cut_to,
)
from turnfold.core.window.views import BlockView, MessageView
from turnfold.messages import CompactionId, Message, Role, place_of_slot

CHARACTERS_PER_REASONING_TOKEN: Final = 4
LEVEL_STEP_TOKENS: Final = 4
FREE_LOOKS: Final = 256
LOOKS_PER_MESSAGE: Final = 8
"""Trimming that looks at more than so many parts which stay as they are waits for a message per so many of them: a session costs about as much as it holds."""
WASTE_RATIO: Final = 0.03
LARGE_WASTE_RATIO: Final = 0.1
"""A step that frees more than it has to by such a share of the budget is softened to a longer cut, where one is possible."""


@dataclass(frozen=True, slots=True)
class PendingDigest:
    """An evicting compaction that no summary covers yet: what its digest costs and how many messages it stands for."""

    compaction_id: CompactionId
    digest_tokens: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """What a window may hold at most, and down to what it is trimmed once it holds more. Tokens are raw counts."""

    tokens: int
    target_tokens: int
    messages: int
    target_messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPrefix:
    """What stands before the history whatever is said in it: the pinned system message, the summary, and the rows that wait for one."""

    pinned: Message | None
    facts: SummarySize | None
    placement: Placement
    rows: Mapping[CompactionId, PendingDigest]

    @property
    def summary_size(self) -> int:
        """How many messages the summary takes that count."""
        is_own = self.placement.is_message or (
            self.placement is Placement.SYSTEM and self.pinned is None
        )
        return int(self.facts is not None and is_own)


Entry = tuple[int, int, BlockView, MessageView]


class WindowBuilder:
    """A window that grows by one message at a time, as its session did, and is trimmed whenever it outgrows its limits.

    What it shows after n messages depends on these n alone and forms only ever shrink, so a window begins as it did
    before until the next time the limits are exceeded. `relieve` trims it then; without it nobody does. `taken` are the n
    messages, of which `live` are live. While `is_roomy` nothing was ever trimmed, and what trimming needs is not prepared.
    If not `can_continue`, it was trimmed at its end and not in its turn: it is grown again from the start when messages come.
    """

    def __init__(
        self,
        limits: WindowLimits,
        policy: Policy,
        frame: WindowPrefix,
        *,
        relieve: "Callable[[WindowBuilder], None] | None",
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.frame = frame
        self.never_overflows = False
        self.can_continue = True
        self.taken: list[Message] = []
        self.live = 0
        self.units: list[BlockView] = []
        self.summary = whole_summary(frame.facts, frame.placement) if frame.facts else None
        self.total = (frame.pinned.tokens if frame.pinned else 0) + (
            self.summary.tokens if self.summary else 0
        )
        self.size = frame.summary_size
        self._most_tokens = self.summary.tokens if self.summary else 0
        self._most_size = self.size
        self.results_tokens = 0
        self._relieve = relieve
        self.digested: dict[CompactionId, None] = {}
        self.shows_digests = True
        self.folded_rows: set[CompactionId] = set()
        self.request: BlockView | None = None
        self.unseen: BlockView | None = None
        self.soft_tokens = int(policy.soft_ratio * limits.tokens)
        self.waste_tokens = int(WASTE_RATIO * limits.tokens)
        self.large_waste_tokens = int(LARGE_WASTE_RATIO * limits.tokens)
        self._calling: dict[tuple[int, bool], BlockView] = {}
        self._waiting: dict[tuple[int, bool], list[Message]] = {}
        self.row_units: dict[CompactionId, list[BlockView]] = {}
        self.line_starts: dict[tuple[str, str | None], int] = {}
        self._round_heads: list[BlockView] = []
        self._newest_tool_units: deque[BlockView] = deque()
        self._oldest = 0
        self._passed_over: list[BlockView] = []
        self.with_reasoning: list[Entry] = []
        self.large_results: list[Entry] = []
        self.seen_results: list[Entry] = []
        self.long_texts: list[Entry] = []
        self.costly: list[Entry] = []
        self.tool_units: list[Entry] = []
        self._all_units: list[Entry] = []
        self._listed_units = 0
        self.looked_at = 0
        self._due = 0

    # Growing

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        """Whether the window never gets too large while these are added, however many calls are open at a time."""
        tokens, size = _most(messages)
        return (
            self._most_tokens + tokens <= self.limits.tokens
            and self._most_size + size <= self.limits.messages
        )

    def extend(self, messages: Sequence[Message]) -> None:
        """Take in the next messages, in order of position."""
        tokens, size = _most(messages)
        self._most_tokens += tokens
        self._most_size += size
        start = len(self.taken)
        self.taken += messages
        self.live += sum([message.compaction_id is None for message in messages])
        relieve = None if self.never_overflows else self._relieve
        is_postponed = False
        for number, message in enumerate(messages, start=start):
            if message.role.is_system:
                continue
            if message.role is Role.TOOL:
                self._add_result(message)
            else:
                self._add_unit(message)
            if relieve is not None and self.is_over:
                is_postponed = number < self._due
                if not is_postponed:
                    self._trim(relieve, number)
        if relieve is not None and is_postponed and self.is_over:
            relieve(self)
            self.can_continue = False

    def _trim(self, relieve: "Callable[[WindowBuilder], None]", number: int) -> None:
        """Trim after the message of this number. The more was looked at that stays as it is, the more messages come until the next time."""
        self.looked_at = 0
        relieve(self)
        self._due = number + 1 + max(0, self.looked_at - FREE_LOOKS) // LOOKS_PER_MESSAGE

    @property
    def is_over(self) -> bool:
        """Whether it holds more than it may."""
        return self.total > self.limits.tokens or self.size > self.limits.messages

    def is_protected(self, unit: BlockView) -> bool:
        """The newest request and results the model has not seen yet stay; where neither is, the newest block does."""
        if unit is self.request or unit is self.unseen:
            return True
        return self.request is None and self.unseen is None and unit is self.units[-1]

    def _add_unit(self, message: Message) -> None:
        unit = BlockView(message)
        self.units.append(unit)
        self.total += unit.tokens
        self.size += unit.size
        if message.role is Role.USER:
            if self.request is None or not message.is_meta or self.request.head.message.is_meta:
                self.request = unit
        else:
            self.unseen = unit if unit.results else None
        if not self.never_overflows:
            self._enlist(unit)
        if unit.results:
            key = (message.position, unit.row is None)
            self._calling[key] = unit
            for result in self._waiting.pop(key, ()):
                self._attach(unit, result)
        if unit.row is not None:
            self.row_units.setdefault(unit.row, []).append(unit)
            if unit.row in self.folded_rows and not self.is_protected(unit):
                self.fold(unit)

    def _add_result(self, message: Message) -> None:
        if message.answers is None:
            return
        key = (message.answers.position, message.compaction_id is None)
        unit = self._calling.get(key)
        if unit is not None:
            self._attach(unit, message)
        elif message.answers.position > message.position:
            self._waiting.setdefault(key, []).append(message)

    def _attach(self, unit: BlockView, message: Message) -> None:
        assert message.answers is not None
        calls = unit.head.message.calls
        place = place_of_slot(calls, message.answers.slot)
        if place is None or unit.results[place] is not None:
            return
        piece = MessageView(message, calls[place])
        unit.add_result(place, piece)
        unit.tokens += piece.tokens - STAND_IN_TOKENS
        if unit.is_shown:
            self.total += piece.tokens - STAND_IN_TOKENS
            self.results_tokens += piece.text
            if not self.never_overflows:
                self._enlist_result(unit, piece)
                unit.best_answer = max(unit.best_answer, priority_of(message))
                if (priority := unit.priority) != unit.listed:
                    self._enlist_again(unit, priority)

    # What each step will look at, in its order: LOW before NORMAL before HIGH, the oldest first

    def _enlist(self, unit: BlockView) -> None:
        policy, head, message = self.policy, unit.head, unit.head.message
        if message.role is Role.USER and unit is self.request:
            for older in self._round_heads:
                _put(self.with_reasoning, older, older.head)
            self._round_heads.clear()
        if (
            policy.reasoning_max_chars
            and message.reasoning_tokens * CHARACTERS_PER_REASONING_TOKEN
            > policy.reasoning_max_chars
        ):
            self._round_heads.append(unit)
        cap = policy.user_max_chars if message.role is Role.USER else policy.assistant_max_chars
        if cap and message.characters > cap:
            _put(self.long_texts, unit, head)
        if unit.results:
            most = policy.arguments_max_tokens
            if most and any(
                call.tokens > most and arguments_tokens(call) > most for call in message.calls
            ):
                _put(self.costly, unit, head)
            self._newest_tool_units.append(unit)
            unit.is_recent = True
            if len(self._newest_tool_units) > policy.keep_tool_blocks:
                older = self._newest_tool_units.popleft()
                older.is_recent = False
                heappush(self.tool_units, (older.listed, older.position, older, older.head))

    @property
    def all_units(self) -> list[Entry]:
        """Every block. They are enlisted when a step asks for them, which most windows never come to."""
        for unit in self.units[self._listed_units :]:
            heappush(self._all_units, (unit.listed, unit.position, unit, unit.head))
        self._listed_units = len(self.units)
        return self._all_units

    def _enlist_again(self, unit: BlockView, priority: int) -> None:
        """A block is as important as its best message: where a result changed that, what was said before is passed over."""
        unit.listed = priority
        entry = (priority, unit.position, unit, unit.head)
        heappush(self._all_units, entry)
        if not unit.is_recent:
            heappush(self.tool_units, entry)

    def _enlist_result(self, unit: BlockView, piece: MessageView) -> None:
        policy, message = self.policy, piece.message
        _put(self.seen_results, unit, piece)
        if message.is_truncated:
            return
        cap = policy.tool_result_max_chars
        if piece.text > self.soft_tokens or (cap and message.characters > cap):
            _put(self.large_results, unit, piece)
        if policy.result_max_tokens and piece.text > policy.result_max_tokens:
            _put(self.costly, unit, piece)

    # Shrinking

    def apply_step(
        self,
        heap: list[Entry],
        act: Callable[[BlockView, MessageView], int],
        target: int,
        *,
        above: int | None = None,
    ) -> None:
        """Act on what is enlisted, in order, until the target is met (and, with `above`, only while results take more)."""
        kept: list[Entry] = []
        is_of_blocks = heap is self._all_units or heap is self.tool_units
        while heap and self.total > target and (above is None or self.results_tokens > above):
            entry = heappop(heap)
            unit, piece = entry[2], entry[3]
            if not unit.is_shown or (is_of_blocks and entry[0] != unit.listed):
                continue
            if self.is_protected(unit):
                kept.append(entry)
                continue
            self.free(unit, piece, act)
            if self._comes_back(heap, unit, piece):
                kept.append(entry)
        for entry in kept:
            heappush(heap, entry)
        self.looked_at += len(kept)

    def _comes_back(self, heap: list[Entry], unit: BlockView, piece: MessageView) -> bool:
        """Whether a step was softened, and may have to take the rest another time."""
        if heap is self.seen_results:
            return unit.is_shown and piece.was_softened
        return unit.is_shown and (heap is self._all_units or heap is self.tool_units)

    def free(
        self, unit: BlockView, piece: MessageView, act: Callable[[BlockView, MessageView], int]
    ) -> None:
        """Act on one message and keep the sums right."""
        before = piece.text
        freed = act(unit, piece)
        unit.has_changed()
        unit.tokens -= freed
        if unit.is_shown:
            self.total -= freed
            if piece.call is not None:
                self.results_tokens -= before - piece.text

    def fold(self, unit: BlockView) -> None:
        """Leave a block out; of what was evicted and is not summarised yet, the digest speaks instead."""
        unit.is_shown = False
        self.total -= unit.tokens
        self.size -= unit.size
        self.results_tokens -= sum(piece.text for piece in unit.results if piece is not None)
        row = self.frame.rows.get(unit.row) if unit.row is not None else None
        if (
            row is not None
            and row.digest_tokens
            and self.shows_digests
            and row.compaction_id not in self.digested
        ):
            self.total += self.digest_cost(row)
            self.size += not self.digested
            self.digested[row.compaction_id] = None

    def digest_cost(self, row: PendingDigest) -> int:
        """What showing the digest of a row adds to the window."""
        if row.compaction_id in self.digested or not row.digest_tokens or not self.shows_digests:
            return 0
        return digest_tokens(row.digest_tokens) + (0 if self.digested else DIGEST_FRAME_TOKENS)

    def drop_digests(self) -> None:
        """Leave the digests out, now and later."""
        if self.digested:
            self.total -= DIGEST_FRAME_TOKENS + sum(
                digest_tokens(self.frame.rows[row].digest_tokens) for row in self.digested
            )
            self.size -= 1
            self.digested.clear()
        self.shows_digests = False

    def cut_summary(self) -> None:
        """Show as much of the summary as the rest leaves room for."""
        if self.summary is None or self.frame.facts is None or self.total <= self.limits.tokens:
            return
        room = self.summary.tokens - (self.total - self.limits.tokens)
        form = summary_within(self.frame.facts, self.frame.placement, room)
        self.total -= self.summary.tokens - (form.tokens if form else 0)
        self.size -= 0 if form else self.frame.summary_size
        self.summary = form

    def keep_longer_cut(self, unit: BlockView, target: int) -> bool:
        """Shorten the longest parts of a block so that the window just meets its target; False where that cannot be."""
        if unit.tokens - (self.total - target) <= self.waste_tokens:
            return False
        return self.level(unit, target, least=LEAST_ARGUMENTS_TOKENS)

    def level(self, unit: BlockView, target: int, *, least: int) -> bool:
        """Shorten the longest texts and arguments of a block to one length, none below `least`, and say whether that meets the target."""
        pieces = [piece for piece in unit.pieces if piece.message.cuts and piece.line is None]
        cap = max((piece.text for piece in pieces), default=0) + max(
            unit.head.arguments_sizes, default=0
        )
        while self.total > target and cap > least:
            sizes = [*(piece.text for piece in pieces), *unit.head.arguments_sizes]
            self.looked_at += len(sizes)
            # The names of calls may be dearer than the sizes say: then it takes another step.
            cap = max(least, min(cap - LEVEL_STEP_TOKENS, level_sizes(sizes, self.total - target)))
            for piece in pieces:
                if piece.text > cap:
                    self.free(unit, piece, partial(_shorten, cap))
            if cap >= LEAST_ARGUMENTS_TOKENS:
                self.free(unit, unit.head, partial(_preview, cap))
        return self.total <= target

    def oldest(self, is_enough: Callable[[], bool]) -> Iterator[BlockView]:
        """The blocks that may go, the oldest first, until it is enough; one that stays, or is protected, comes again another time."""
        again, kept = deque(self._passed_over), list[BlockView]()
        self.looked_at += len(again)
        while not is_enough() and (again or self._oldest < len(self.units)):
            if again:
                unit = again.popleft()
            else:
                unit = self.units[self._oldest]
                self._oldest += 1
            if unit.is_shown and not self.is_protected(unit):
                yield unit
            if unit.is_shown:
                kept.append(unit)
        self._passed_over = [*kept, *again]

    def fold_oldest(self, is_enough: Callable[[], bool]) -> None:
        """Leave out blocks from the oldest on, whatever their priority."""
        for unit in self.oldest(is_enough):
            self.fold(unit)


def _most(messages: Sequence[Message]) -> tuple[int, int]:
    """The tokens and the messages of a window that these take at most, with a stand-in for each result."""
    calls = sum([len(message.calls) for message in messages])
    return sum([message.tokens for message in messages]) + STAND_IN_TOKENS * calls, len(
        messages
    ) + calls


def _shorten(cap: int, _: BlockView, piece: MessageView) -> int:
    return piece.shorten(cut_to(piece.message, piece.grid, cap))


def _preview(cap: int, _: BlockView, piece: MessageView) -> int:
    return piece.preview_arguments(cap, cap)


def level_sizes(sizes: Sequence[int], excess: int) -> int:
    """The height to which the tallest must be levelled so that the sum falls by the excess."""
    remaining = sorted(sizes, reverse=True)
    for count, size in enumerate(remaining, start=1):
        lower = remaining[count] if count < len(remaining) else 0
        gain = count * (size - lower)
        if gain >= excess:
            return size - -(-excess // count)
        excess -= gain
    return 0


def _put(heap: list[Entry], unit: BlockView, piece: MessageView) -> None:
    heappush(heap, (priority_of(piece.message), piece.message.position, unit, piece))
