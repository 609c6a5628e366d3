"""A window under construction: what it shows, what that costs, and how parts of it leave.

`growth` adds the messages and decides when to trim; the ladder decides what to shorten or to leave
out. The builder carries it out, and keeps the sums.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final
from weakref import ref

from turnfold.core.history.blocks import is_one_event
from turnfold.core.history.priority import priority_of
from turnfold.core.policy.presets import Policy
from turnfold.core.window.budget_shares import SessionTurns, WindowLimits, WindowLimitsByActivity
from turnfold.core.window.candidates import Candidate, TrimCandidates
from turnfold.core.window.digest.digest import DigestForm, WindowDigest
from turnfold.core.window.forms import STAND_IN_TOKENS
from turnfold.core.window.framing import SummaryForm, summary_within
from turnfold.core.window.prefix import WindowPrefix, extra_items
from turnfold.core.window.views import BlockView, MessageView, RoundView
from turnfold.messages import JOINED, CompactionId, Message, Role, Shape, place_of_slot

WASTE_RATIO: Final = 0.03
LARGE_WASTE_RATIO: Final = 0.1
"""Shares of the budget: a step that frees more than needed by this share keeps a longer cut."""


class WindowBuilder:
    """A window that takes one message after another, and its cost.

    `taken` are the messages so far; `live` counts the live ones. `total` are the tokens and `size`
    the messages of the window.

    Mutable, because it is on the hot path: a request continues the window of the one before, and
    needs how it was trimmed. It last exceeded its limits with `trimmed_after`, was last trimmed to
    `trimmed_to` tokens, and is not trimmed before message `next_trim`, or for an unseen `hopeless`.
    Unless `can_continue`, the last trim came late, and new messages need a window from the start.
    """

    def __init__(
        self,
        limits: WindowLimitsByActivity,
        policy: Policy,
        prefix: WindowPrefix,
        *,
        tells_omitted: bool = True,
    ) -> None:
        self.all_limits, self.limits = limits, limits.at_work
        self.policy = policy
        self.prefix = prefix
        self.taken: list[Message] = []
        self.live = 0
        self.summary: SummaryForm | None = None
        self.total = prefix.pinned.tokens if prefix.pinned else 0
        self.size = 0
        self.show_summary(self.limits.summary_tokens)
        self.results_tokens = 0
        self.digest = WindowDigest(
            prefix.pending,
            budget_tokens=self.limits.tokens,
            ratio=policy.digest_ratio,
            is_told=tells_omitted,
        )
        self._digest_tokens = self._digest_size = 0
        self._unnamed = list(reversed(prefix.covered_calls))
        self.blocks: list[BlockView] = []
        self.request: BlockView | None = None
        self.unseen: BlockView | None = None
        self.hopeless: BlockView | None = None
        self.open_round = RoundView()
        self._rounds = [self.open_round]
        # By position, and whether it is live: a live result never joins an evicted call.
        self._calling: dict[tuple[int, bool], BlockView] = {}
        self._waiting: dict[tuple[int, bool], list[Message]] = {}
        self.pending_blocks: dict[CompactionId, list[BlockView]] = {}
        self.digested: set[CompactionId] = set() if policy.shows_pending else set(prefix.pending)
        self._held: list[BlockView] = []
        self._shows_items = prefix.shape is Shape.RESPONSES
        self.turns = SessionTurns()
        self.can_continue = True
        self.trimmed_after: Message | None = None
        self.made_room_after: Message | None = None
        self.next_trim = 0
        self.trimmed_to = 0
        self.looked_at = 0
        self.budget_tokens = tokens = self.limits.tokens
        self.soft_tokens = int(policy.soft_ratio * tokens)
        self.waste_tokens = int(WASTE_RATIO * tokens)
        self.large_waste_tokens = int(LARGE_WASTE_RATIO * tokens)
        self.candidates = TrimCandidates(policy, self.blocks, self.soft_tokens)
        self.line_starts: dict[tuple[str, str | None], int] = {}

    # Growing

    def extend(self, messages: Sequence[Message]) -> None:
        """Add the next messages, in order of position, without trimming."""
        self.take(messages)
        for message in messages:
            self.add(message)
        self.name_covered_calls()

    def take(self, messages: Sequence[Message]) -> None:
        """Count the next messages, each of which is then added."""
        self.taken += messages
        self.live += sum([message.compaction_id is None for message in messages])

    def add(self, message: Message) -> None:
        """Add a message that was taken. Pinned messages belong to the prefix, if anywhere."""
        self.name_covered_calls(message)
        self.turns.add(message)
        # Only from now on: earlier trims stay as they were.
        self.limits = self.all_limits.in_talk if self.turns.are_talk else self.all_limits.at_work
        if message.role is Role.TOOL:
            self._add_result(message)
        elif message.element is JOINED:
            self._join(message)
        elif not message.is_pinnable:
            self._add_block(message)

    def name_covered_calls(self, before: Message | None = None) -> None:
        """Let the digest name the covered calls that came before a message, or all of them."""
        while self._unnamed and (before is None or self._unnamed[-1].position < before.position):
            self.digest.name_covered(BlockView(self._unnamed.pop(), self.open_round))
            self._count_digest()

    def show_summary(self, max_tokens: int) -> None:
        """Show as much of the summary as these tokens hold."""
        size, shown = self.prefix.summary, self.summary
        self.summary = summary_within(size, self.prefix.placement, max_tokens) if size else None
        self.total += (self.summary.tokens if self.summary else 0) - (shown.tokens if shown else 0)
        if (self.summary is None) is not (shown is None):
            self.size += self.prefix.summary_messages * (1 if self.summary else -1)

    def begin_trim(self) -> None:
        """Leave out what an earlier trim had to keep, and let the digest name all it can again."""
        self._fold_held()
        self.digest.begin_trim(self.open_round)
        self._count_digest()

    @property
    def limits_by_turns(self) -> WindowLimits:
        """The limits, with the room that turns, the newest request and the system message need."""
        pinned, request = self.prefix.pinned, self.request
        fixed_tokens = pinned.tokens if pinned else 0
        fixed_tokens += request.tokens if request else 0
        return self.limits.for_turns(self.turns.median).beside(fixed_tokens)

    @property
    def has_hidden(self) -> bool:
        """Whether the session has messages that the window does not show."""
        return self.prefix.summary is not None or self.digest.live + self.digest.pending > 0

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
        is_request = self._is_request(message)
        block = BlockView(message, self.open_round)
        if self._shows_items:
            block.extra_size = extra_items(message)
        # No eviction takes the newest request: the next one had come before it.
        was_evicted = self.request is not None and self.request.compaction_id is not None
        # First, because it gives the block its own round, to which the block is then added.
        if is_request:
            self._open_round(block)
        block.in_round.blocks.append(block)
        self.blocks.append(block)
        self.total += block.tokens
        self.size += block.size
        if message.role is Role.ASSISTANT:
            # The model has seen all results before its next answer.
            self.unseen = block if block.results else None
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
        # Otherwise only in a trim, or the beginning of the window would change without one.
        if block.compaction_id in self.digested or (is_request and was_evicted):
            self._fold_held()

    def _join(self, message: Message) -> None:
        """Add a further item of the newest response: all its items stay or leave together."""
        block = self.blocks[-1] if self.blocks else None
        if block is None or not is_one_event(block.head.message, message):
            return
        block.join(message)
        if block.is_shown:
            block.extra_size += self._shows_items
            self.total += message.tokens
            self.size += self._shows_items
        else:
            self.digest.add_joined(block)
            self._count_digest()

    def _is_request(self, message: Message) -> bool:
        """Return whether a message starts a round.

        A message of a program does only until a person has written a request.
        """
        if message.role is not Role.USER:
            return False
        return self.request is None or not message.is_meta or self.request.head.message.is_meta

    def _fold_held(self) -> None:
        """Leave out blocks of compactions that are shown by their digest, unless protected.

        A request takes along the answers of its round, which may not belong to its compaction.
        """
        for block in self._held:
            if block.is_shown and not self.is_protected(block):
                (self.leave_out if block is block.in_round.request else self.fold)(block)
        self._held = [block for block in self._held if block.is_shown]

    def _open_round(self, request: BlockView) -> None:
        """Begin a round. The one before is closed: its request and answers leave together."""
        self.open_round.is_closed = True
        self.candidates.close_round(self.open_round)
        self.request = request
        self.open_round = RoundView(request)
        self._rounds.append(self.open_round)
        request.round = ref(self.open_round)

    def _add_result(self, message: Message) -> None:
        if message.answers is None:
            return
        # `core.history.pairing` decided which call it answers; this only looks for the shown
        # call.
        key = (message.answers.position, message.compaction_id is None)
        block = self._calling.get(key)
        if block is not None:
            self._attach(block, message)
        elif message.answers.position > message.position:
            # Order is that of the stream: several publishers may let a result come first.
            self._waiting.setdefault(key, []).append(message)

    def _attach(self, block: BlockView, message: Message) -> None:
        assert message.answers is not None
        calls = block.head.message.calls
        place = place_of_slot(calls, message.answers.slot)
        # The result of a call that may not be sent, or another result of the same call.
        if place is None or block.results[place] is not None:
            return
        view = MessageView(message, calls[place])
        block.add_result(place, view)
        # A new block counts a stand-in for each call, and the result takes the place of one.
        block.tokens += view.tokens - STAND_IN_TOKENS
        if block.is_shown:
            self.total += view.tokens - STAND_IN_TOKENS
            self.results_tokens += view.text
            self.candidates.add_result(block, view)
            block.best_answer = max(block.best_answer, priority_of(message))
            if (priority := block.priority) != block.queued_priority:
                self.candidates.change_priority(block, priority)
        else:
            self.digest.count(block, 1)

    # Shrinking

    def apply(
        self, block: BlockView, view: MessageView, change: Callable[[MessageView], object]
    ) -> None:
        """Change the form of one message, and subtract the tokens that this frees."""
        tokens, text = view.tokens, view.text
        change(view)
        block.has_changed()
        freed = tokens - view.tokens
        block.tokens -= freed
        if block.is_shown:
            self.total -= freed
            if view.call is not None:
                self.results_tokens -= text - view.text

    def apply_step(
        self,
        queue: list[Candidate],
        change: Callable[[MessageView], object],
        target: int,
        *,
        results_above: int | None = None,
    ) -> None:
        """Change the candidates of a step, in order, until the target is met.

        With `results_above`, the candidates are results: the step also stops once all results
        together take at most so many tokens, and one that was only cut is a candidate again.
        """
        kept: list[Candidate] = []
        while (
            queue
            and self.total > target
            and (results_above is None or self.results_tokens > results_above)
        ):
            candidate = heappop(queue)
            block, view = candidate[2], candidate[3]
            # It was left out after it had been queued.
            if not block.is_shown:
                continue
            # The next request or answer may end the protection, and a later trim needs it then.
            if self.is_protected(block):
                kept.append(candidate)
                continue
            self.apply(block, view, change)
            if results_above is not None and view.may_become_line:
                kept.append(candidate)
        self._put_back(queue, kept)

    def fold_step(
        self, queue: list[Candidate], stays: Callable[[BlockView], bool], target: int
    ) -> None:
        """Call `stays` on the blocks of a queue, in order, until the target is met.

        It leaves a block out, or shortens it and returns True.
        """
        kept: list[Candidate] = []
        while queue and self.total > target:
            candidate = heappop(queue)
            priority, _, block, _ = candidate
            # A block whose priority changed is queued again: this may be its older entry.
            if not block.is_shown or priority != block.queued_priority:
                continue
            if self.is_protected(block) or stays(block):
                kept.append(candidate)
        self._put_back(queue, kept)

    def _put_back(self, queue: list[Candidate], kept: Sequence[Candidate]) -> None:
        # After the step, not within it: it would find the same candidate again and again.
        for candidate in kept:
            heappush(queue, candidate)
        self.looked_at += len(kept)

    def fold(self, block: BlockView) -> None:
        """Leave a block out. The digest names it instead."""
        block.is_shown = False
        block.in_round.hidden += 1
        self.total -= block.tokens
        self.size -= block.size
        self.results_tokens -= sum(view.text for view in block.results if view is not None)
        self.digest.add(block)
        self._count_digest()

    def shorten_digest(self, form: DigestForm) -> None:
        """Reduce the digest to this form, if the window does not fit."""
        if self.is_over:
            self.digest.shorten(form)
            self._count_digest()

    def _count_digest(self) -> None:
        """Count the digest as it is now."""
        self.total += self.digest.tokens - self._digest_tokens
        self.size += self.digest.size - self._digest_size
        self._digest_tokens, self._digest_size = self.digest.tokens, self.digest.size

    def show_digest_of(self, compaction: CompactionId, blocks: Sequence[BlockView]) -> None:
        """Show a compaction by its digest instead of its blocks, unless they are protected."""
        self.digested.add(compaction)
        self._held += blocks
        self._fold_held()

    def leave_out(self, block: BlockView) -> None:
        """Leave a block out; the request and the answers of a closed round only together."""
        for other in self.leaving_with(block):
            self.fold(other)
        request = block.in_round.request
        # Without its last tool block, the request would seem unanswered.
        if request and block.in_round.is_unanswered and not self.is_protected(request):
            self.fold(request)

    def leaving_with(self, block: BlockView) -> list[BlockView]:
        """Return the blocks that leave together with this one."""
        if not block.needs_its_round:
            return [block]
        return [other for other in block.in_round.shown if not self.is_protected(other)]

    def oldest(self, is_enough: Callable[[], bool]) -> Iterator[BlockView]:
        """Yield the blocks that may be left out, the oldest first, until it is enough."""
        self.looked_at += len(self.candidates.passed_over)
        return self.candidates.oldest(is_enough, self.is_protected)
