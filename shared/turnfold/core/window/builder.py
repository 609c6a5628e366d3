"""Build a window message by message, and track its cost.

`build_window` in `window` adds the messages of a session, and the ladder trims the window
whenever it exceeds its limits.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final

from turnfold.core.history.blocks import is_turn_boundary
from turnfold.core.history.priority import priority_of
from turnfold.core.policy.presets import Policy
from turnfold.core.window.candidates import Candidate, TrimCandidates
from turnfold.core.window.digest import DigestForm, WindowDigest
from turnfold.core.window.framing import summary_within
from turnfold.core.window.limits import WindowLimits, WindowPrefix
from turnfold.core.window.sizes import level_sizes, upper_bounds
from turnfold.core.window.truncation import LEAST_ARGUMENTS_TOKENS, STAND_IN_TOKENS, cut_to
from turnfold.core.window.views import BlockView, MessageView, RoundView
from turnfold.messages import CompactionId, Message, Role, place_of_slot

LEVEL_STEP_TOKENS: Final = 4
FREE_LOOKS: Final = 256
LOOKS_PER_MESSAGE: Final = 8
"""Trimming is delayed by one message per so many examined parts that stayed unchanged.

The first `FREE_LOOKS` are free. The total cost therefore stays proportional to the session.
"""
WASTE_RATIO: Final = 0.03
LARGE_WASTE_RATIO: Final = 0.1
"""Shares of the budget: a step that frees more than needed by this share keeps a longer cut."""


class WindowBuilder:
    """A window that grows one message at a time, and is trimmed when it exceeds its limits.

    Its content after n messages depends on these n alone, and messages only ever get shorter.
    Two windows therefore begin alike until the limits are next exceeded, and the model's prompt
    cache stays valid. `trim` shortens the window; None never trims it. `make_room` shortens it for
    a recall block. `taken` are the n messages, and `live` counts the live ones. The window last
    exceeded its limits with the message `trimmed_after`.

    While `never_overflows`, no trimming is needed, and its candidates are not collected. If not
    `can_continue`, the last trim came late, and new messages need a window built from the start.

    Mutable, because it is on the hot path: a request continues the window of the one before.
    """

    def __init__(
        self,
        limits: WindowLimits,
        policy: Policy,
        prefix: WindowPrefix,
        *,
        trim: "Callable[[WindowBuilder], None] | None",
        tells_omitted: bool = True,
        make_room: "Callable[[WindowBuilder], None] | None" = None,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.prefix = prefix
        self.never_overflows = False
        self.can_continue = True
        self.taken: list[Message] = []
        self.live = 0
        self.blocks: list[BlockView] = []
        self.summary = (
            summary_within(prefix.summary, prefix.placement, limits.summary_tokens)
            if prefix.summary
            else None
        )
        self.total = (prefix.pinned.tokens if prefix.pinned else 0) + (
            self.summary.tokens if self.summary else 0
        )
        self.size = prefix.summary_messages if self.summary else 0
        self._most_tokens = self.summary.tokens if self.summary else 0
        self._most_size = self.size
        self.results_tokens = 0
        self._trim_window = trim
        self.digest = WindowDigest(
            prefix.pending,
            budget_tokens=limits.tokens,
            ratio=policy.digest_ratio,
            is_told=tells_omitted,
        )
        self._digest_tokens = self._digest_size = 0
        self.digested: set[CompactionId] = set() if policy.shows_pending else set(prefix.pending)
        self._held: list[BlockView] = []
        self._make_room = make_room
        self._has_hidden = prefix.summary is not None
        self.trimmed_after: Message | None = None
        self.request: BlockView | None = None
        self.unseen: BlockView | None = None
        self.open_round = RoundView()
        self.soft_tokens = int(policy.soft_ratio * limits.tokens)
        self.candidates = TrimCandidates(policy, self.blocks, self.soft_tokens)
        self.waste_tokens = int(WASTE_RATIO * limits.tokens)
        self.large_waste_tokens = int(LARGE_WASTE_RATIO * limits.tokens)
        self._calling: dict[tuple[int, bool], BlockView] = {}
        self._waiting: dict[tuple[int, bool], list[Message]] = {}
        self.pending_blocks: dict[CompactionId, list[BlockView]] = {}
        self.line_starts: dict[tuple[str, str | None], int] = {}
        self._oldest = 0
        self._passed_over: list[BlockView] = []
        self.looked_at = 0
        self._due = 0

    # Growing

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        """Return whether these fit without trimming, however many calls are open at a time."""
        tokens, size = upper_bounds(messages)
        limit = self.limits.arrival_tokens if self._has_hidden else self.limits.tokens
        return (
            self._most_tokens + tokens <= limit and self._most_size + size <= self.limits.messages
        )

    def extend(self, messages: Sequence[Message]) -> None:
        """Add the next messages, in order of position, and trim the window when needed."""
        tokens, size = upper_bounds(messages)
        self._most_tokens += tokens
        self._most_size += size
        start = len(self.taken)
        self.taken += messages
        self.live += sum([message.compaction_id is None for message in messages])
        trim = None if self.never_overflows else self._trim_window
        is_postponed = False
        for number, message in enumerate(messages, start=start):
            if message.role.is_system:
                continue
            if message.role is Role.TOOL:
                self._add_result(message)
            else:
                self._add_block(message)
            if trim is None:
                continue
            is_postponed = self.is_over and number < self._due
            if self.is_over and not is_postponed:
                self._trim(trim, number)
                self.trimmed_after = message
            if self._make_room and self._lacks_room(message) and not is_postponed:
                self._trim(self._make_room, number)
        if trim is not None and is_postponed and self.is_over:
            self.begin_trim()
            trim(self)
            self.can_continue = False

    def _trim(self, trim: "Callable[[WindowBuilder], None]", number: int) -> None:
        """Trim after message `number`, and delay the next trim by the parts examined in vain."""
        self.looked_at = 0
        self.begin_trim()
        trim(self)
        self._due = number + 1 + max(0, self.looked_at - FREE_LOOKS) // LOOKS_PER_MESSAGE

    def begin_trim(self) -> None:
        """Tell all that is possible of what is left out, before more has to go."""
        self.digest.begin_trim(self.open_round)
        self._count_digest()

    def _lacks_room(self, message: Message) -> bool:
        """Return whether a message begins or ends a turn, and leaves too little room for recall."""
        return (
            self._has_hidden
            and self.total > self.limits.arrival_tokens
            and is_turn_boundary(message)
        )

    @property
    def is_over(self) -> bool:
        """Whether the window exceeds a limit."""
        return self.total > self.limits.tokens or self.size > self.limits.messages

    def is_protected(self, block: BlockView) -> bool:
        """Return whether a block must stay: the newest request, or results not seen by the model.

        The request that led to these results stays, too. Without any, the newest block stays.
        """
        if block is self.request or block is self.unseen or block is self.interrupted_request:
            return True
        return self.request is None and self.unseen is None and block is self.blocks[-1]

    @property
    def interrupted_request(self) -> BlockView | None:
        """The older request whose results the model had not seen when a new request came."""
        request = self.unseen.in_round.request if self.unseen is not None else None
        return None if request is self.request else request

    def _add_block(self, message: Message) -> None:
        is_request = message.role is Role.USER and (
            self.request is None or not message.is_meta or self.request.head.message.is_meta
        )
        block = BlockView(message, self.open_round)
        if is_request:
            self._open_round(block)
        block.in_round.blocks.append(block)
        self.blocks.append(block)
        self.total += block.tokens
        self.size += block.size
        if message.role is not Role.USER:
            self.unseen = block if block.results else None
        if not self.never_overflows:
            self.candidates.add_block(block, is_newest_request=is_request)
        if block.results:
            key = (message.position, block.compaction_id is None)
            self._calling[key] = block
            for result in self._waiting.pop(key, ()):
                self._attach(block, result)
        if block.compaction_id is not None:
            self.pending_blocks.setdefault(block.compaction_id, []).append(block)
        if block.compaction_id in self.digested:
            self._held.append(block)
        if block.compaction_id in self.digested or (is_request and not self.policy.shows_pending):
            self._fold_pending()

    def _fold_pending(self) -> None:
        """Leave out blocks of compactions that are shown by their digest, unless protected.

        Without `shows_pending`, those leave as well that lose their protection later.
        """
        held = [block for block in self._held if block.is_shown]
        for block in held:
            if self.is_protected(block) or not block.is_shown:
                continue
            if block is block.in_round.request:
                self.leave_out(block)
            else:
                self.fold(block)
        self._held = [] if self.policy.shows_pending else [one for one in held if one.is_shown]

    def _open_round(self, request: BlockView) -> None:
        """Begin a round. The one before is closed: its request and answers leave together."""
        self.open_round.is_closed = True
        if not self.never_overflows:
            self.candidates.close_round(self.open_round)
        self.request = request
        self.open_round = request.in_round = RoundView(request)

    def _add_result(self, message: Message) -> None:
        if message.answers is None:
            return
        key = (message.answers.position, message.compaction_id is None)
        block = self._calling.get(key)
        if block is not None:
            self._attach(block, message)
        elif message.answers.position > message.position:
            self._waiting.setdefault(key, []).append(message)

    def _attach(self, block: BlockView, message: Message) -> None:
        assert message.answers is not None
        calls = block.head.message.calls
        place = place_of_slot(calls, message.answers.slot)
        if place is None or block.results[place] is not None:
            return
        view = MessageView(message, calls[place])
        block.add_result(place, view)
        block.tokens += view.tokens - STAND_IN_TOKENS
        if block.is_shown:
            self.total += view.tokens - STAND_IN_TOKENS
            self.results_tokens += view.text
            if not self.never_overflows:
                self.candidates.add_result(block, view)
                block.best_answer = max(block.best_answer, priority_of(message))
                if (priority := block.priority) != block.queued_priority:
                    self.candidates.change_priority(block, priority)
        else:
            self.digest.add_result(block)
            self._count_digest()

    # Shrinking

    def apply_step(
        self,
        heap: list[Candidate],
        act: Callable[[BlockView, MessageView], int],
        target: int,
        *,
        above: int | None = None,
    ) -> None:
        """Call `act` on the candidates of a step, in order, until the target is met.

        With `above`, it also stops once all results together take at most so many tokens.
        """
        kept: list[Candidate] = []
        is_of_blocks = self.candidates.holds_blocks(heap)
        # A result that kept a longer cut may have to shrink further in a later step.
        is_of_results = heap is self.candidates.seen_results
        while heap and self.total > target and (above is None or self.results_tokens > above):
            entry = heappop(heap)
            block, view = entry[2], entry[3]
            if not block.is_shown or (is_of_blocks and entry[0] != block.queued_priority):
                continue
            if self.is_protected(block):
                kept.append(entry)
                continue
            self.free(block, view, act)
            if _is_shown(block) and (is_of_blocks or (is_of_results and view.was_softened)):
                kept.append(entry)
        for entry in kept:
            heappush(heap, entry)
        self.looked_at += len(kept)

    def free(
        self, block: BlockView, view: MessageView, act: Callable[[BlockView, MessageView], int]
    ) -> None:
        """Call `act` on one message, and subtract the tokens that it frees."""
        before = view.text
        freed = act(block, view)
        block.has_changed()
        block.tokens -= freed
        if block.is_shown:
            self.total -= freed
            if view.call is not None:
                self.results_tokens -= before - view.text

    def fold(self, block: BlockView) -> None:
        """Leave a block out. The digest tells of it instead."""
        block.is_shown = False
        self._has_hidden = True
        self.total -= block.tokens
        self.size -= block.size
        self.results_tokens -= sum(view.text for view in block.results if view is not None)
        self.digest.add(block)
        self._count_digest()

    @property
    def is_worth_folding(self) -> bool:
        """Whether leaving out all that may go frees more tokens than its digest takes."""
        if self.digest.size:
            return True
        tokens = sum(
            [
                block.tokens
                for block in self.blocks
                if block.is_shown and not self.is_protected(block)
            ]
        )
        return tokens > self.digest.first_cost

    def shorten_digest(self, form: DigestForm) -> None:
        """Let the digest tell no more than this form does, if the window does not fit."""
        if self.is_over:
            self.digest.shorten(form)
            self._count_digest()

    def _count_digest(self) -> None:
        """Count the digest as it is now."""
        self.total += self.digest.tokens - self._digest_tokens
        self.size += self.digest.size - self._digest_size
        self._digest_tokens, self._digest_size = self.digest.tokens, self.digest.size

    def leave_out(self, block: BlockView) -> None:
        """Leave a block out; the request and the answers of a closed round only together."""
        for other in self._leaving_with(block):
            self.fold(other)

    def _leaving_with(self, block: BlockView) -> list[BlockView]:
        if not block.needs_its_round:
            return [block]
        return [other for other in block.in_round.shown if not self.is_protected(other)]

    def cut_summary(self) -> None:
        """Shorten the summary to the tokens that the rest of the window leaves."""
        if self.summary is None or self.prefix.summary is None or self.total <= self.limits.tokens:
            return
        room = self.summary.tokens - (self.total - self.limits.tokens)
        form = summary_within(self.prefix.summary, self.prefix.placement, room)
        self.total -= self.summary.tokens - (form.tokens if form else 0)
        self.size -= 0 if form else self.prefix.summary_messages
        self.summary = form

    def keep_longer_cut(self, block: BlockView, target: int) -> bool:
        """Shorten the longest parts of a block until the window just meets its target.

        A block that needs its round is shortened together with it. Return False if that is not
        possible, or would keep too little to be worth it.
        """
        blocks = self._leaving_with(block)
        if sum([block.tokens for block in blocks]) - (self.total - target) <= self.waste_tokens:
            return False
        return self.level(blocks, target, least=LEAST_ARGUMENTS_TOKENS)

    def level(self, blocks: Sequence[BlockView], target: int, *, least: int) -> bool:
        """Shorten the longest texts and arguments of these blocks to one length, at least `least`.

        Return whether that meets the target.
        """
        views = [
            (block, view)
            for block in blocks
            for view in block.views
            if view.message.cuts and view.line is None
        ]
        cap = max((view.text for _, view in views), default=0) + max(
            [size for block in blocks for size in block.head.arguments_sizes], default=0
        )
        while self.total > target and cap > least:
            sizes = [view.text for _, view in views]
            sizes += [size for block in blocks for size in block.head.arguments_sizes]
            self.looked_at += len(sizes)
            # Names of calls may cost more than their estimate. Then another iteration is needed.
            cap = max(least, min(cap - LEVEL_STEP_TOKENS, level_sizes(sizes, self.total - target)))
            for block, view in views:
                if view.text > cap:
                    self.free(block, view, partial(_shorten, cap))
            if cap >= LEAST_ARGUMENTS_TOKENS:
                for block in blocks:
                    self.free(block, block.head, partial(_preview, cap))
        return self.total <= target

    def oldest(self, is_enough: Callable[[], bool]) -> Iterator[BlockView]:
        """Yield the blocks that may be left out, the oldest first, until it is enough.

        Blocks that stay, or are protected, are candidates again in the next call.
        """
        postponed, kept = deque(self._passed_over), list[BlockView]()
        self.looked_at += len(postponed)
        while not is_enough() and (postponed or self._oldest < len(self.blocks)):
            if postponed:
                block = postponed.popleft()
            else:
                block = self.blocks[self._oldest]
                self._oldest += 1
            if block.is_shown and not self.is_protected(block):
                yield block
            if block.is_shown:
                kept.append(block)
        self._passed_over = [*kept, *postponed]

    def fold_oldest(self, is_enough: Callable[[], bool]) -> None:
        """Leave out the oldest blocks, of any priority, until it is enough."""
        for block in self.oldest(is_enough):
            self.leave_out(block)


def _is_shown(block: BlockView) -> bool:
    # The type checker assumes that an attribute keeps its value while `act` runs.
    return block.is_shown


def _shorten(cap: int, _: BlockView, view: MessageView) -> int:
    return view.shorten(cut_to(view.message, view.offsets, cap))


def _preview(cap: int, _: BlockView, view: MessageView) -> int:
    return view.preview_arguments(cap, cap)
