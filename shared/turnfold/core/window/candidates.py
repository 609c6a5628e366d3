"""The parts of a window that each trimming step may shorten or leave out, as priority queues.

`WindowBuilder` fills the queues while it grows, and the steps of the ladder empty them: LOW
before NORMAL before HIGH, the oldest first.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappush
from typing import Final

from turnfold.core.history.priority import priority_of
from turnfold.core.policy.presets import Policy
from turnfold.core.window.forms import arguments_tokens
from turnfold.core.window.views import UNRANKED, BlockView, MessageView, RoundView
from turnfold.messages import Role

CHARACTERS_PER_REASONING_TOKEN: Final = 4

# Equal numbers mean one object that was queued twice, so a heap never has to order two blocks.
Candidate = tuple[int, int, BlockView, MessageView]
"""Priority, position, block and message."""


class TrimCandidates:
    """One queue per trimming step. Mutable, because it grows with each message of a window.

    `blocks` is the builder's own list of blocks, oldest first.
    """

    def __init__(self, policy: Policy, blocks: Sequence[BlockView], soft_tokens: int) -> None:
        self._policy = policy
        self._blocks = blocks
        self._soft_tokens = soft_tokens
        self._with_new_reasoning: list[BlockView] = []
        self._newest_tool_blocks: deque[BlockView] = deque()
        self.with_reasoning: list[Candidate] = []
        self.large_results: list[Candidate] = []
        self.seen_results: list[Candidate] = []
        self.long_texts: list[Candidate] = []
        self.costly: list[Candidate] = []
        self.tool_blocks: list[Candidate] = []
        self._open_tool_blocks: list[BlockView] = []
        self._closed_rounds: list[RoundView] = []
        self._closed_blocks: list[Candidate] = []
        self._open_blocks: list[Candidate] = []
        self._open_from = 0
        self._queued_blocks = 0
        self._passed = 0
        self.passed_over: list[BlockView] = []
        """Blocks that `oldest` has passed and that are still shown."""

    @property
    def closed_blocks(self) -> list[Candidate]:
        """Every block of the closed rounds; queued on use, because most windows need none."""
        for closed in self._closed_rounds:
            self._queue_round(closed)
        self._closed_rounds.clear()
        return self._closed_blocks

    @property
    def open_blocks(self) -> list[Candidate]:
        """Every block of the open round; queued on first use."""
        start = max(self._queued_blocks, self._open_from)
        for block in self._blocks[start:]:
            _push_block(self._open_blocks, block)
        self._queued_blocks = len(self._blocks)
        return self._open_blocks

    def oldest(
        self, is_enough: Callable[[], bool], is_protected: Callable[[BlockView], bool]
    ) -> Iterator[BlockView]:
        """Yield the blocks that may be left out, the oldest first, until it is enough.

        Blocks that stay, or are protected, are candidates again in the next call.
        """
        postponed, kept = deque(self.passed_over), list[BlockView]()
        while not is_enough() and (postponed or self._passed < len(self._blocks)):
            if postponed:
                block = postponed.popleft()
            else:
                block = self._blocks[self._passed]
                self._passed += 1
            if block.is_shown and not is_protected(block):
                yield block
            if block.is_shown:
                kept.append(block)
        # Reached only if the caller exhausts the generator, as every caller does.
        self.passed_over = [*kept, *postponed]

    def close_round(self, closed: RoundView) -> None:
        """Make the blocks of a round that a new request has ended candidates."""
        self._closed_rounds.append(closed)
        for block in self._open_tool_blocks:
            _push_block(self.tool_blocks, block)
        self._open_tool_blocks.clear()
        # They are queued again with their closed round, by its priority.
        self._open_blocks.clear()
        self._open_from = len(self._blocks)

    def _queue_round(self, closed: RoundView) -> None:
        """Queue the blocks of a closed round.

        Its request and its answers have its highest priority, because they leave together.
        """
        closed.priority = max([block.queued_priority for block in closed.blocks], default=UNRANKED)
        for block in closed.shown:
            if block.needs_its_round:
                block.queued_priority = closed.priority
            _push_block(self._closed_blocks, block)

    def add_block(self, block: BlockView, *, is_newest_request: bool) -> None:
        """Queue a new block for the steps that may shorten it."""
        policy, message = self._policy, block.head.message
        if is_newest_request:
            for older in self._with_new_reasoning:
                _push(self.with_reasoning, older, older.head)
            self._with_new_reasoning.clear()
        if (
            policy.reasoning_max_chars
            and message.reasoning_tokens * CHARACTERS_PER_REASONING_TOKEN
            > policy.reasoning_max_chars
        ):
            # Not a candidate before the next request: the open round still needs its reasoning.
            self._with_new_reasoning.append(block)
        cap = policy.user_max_chars if message.role is Role.USER else policy.assistant_max_chars
        if cap and message.characters > cap:
            _push(self.long_texts, block, block.head)
        if block.results:
            self._add_tool_block(block)

    def _add_tool_block(self, block: BlockView) -> None:
        max_tokens = self._policy.arguments_max_tokens
        if max_tokens and any(
            call.tokens > max_tokens and arguments_tokens(call) > max_tokens
            for call in block.head.message.calls
        ):
            _push(self.costly, block, block.head)
        self._newest_tool_blocks.append(block)
        block.is_recent = True
        if len(self._newest_tool_blocks) > self._policy.keep_tool_blocks:
            older = self._newest_tool_blocks.popleft()
            older.is_recent = False
            if older.in_round.is_closed:
                _push_block(self.tool_blocks, older)
            else:
                self._open_tool_blocks.append(older)

    def add_result(self, block: BlockView, view: MessageView) -> None:
        """Queue a result for the steps that may shorten it."""
        policy, message = self._policy, view.message
        _push(self.seen_results, block, view)
        # Its publisher has already cut it: no step cuts it again, but (3) may replace it by a line.
        if message.is_truncated:
            return
        cap = policy.tool_result_max_chars
        if view.text > self._soft_tokens or (cap and message.characters > cap):
            _push(self.large_results, block, view)
        if policy.result_max_tokens and view.text > policy.result_max_tokens:
            _push(self.costly, block, view)

    def change_priority(self, block: BlockView, priority: int) -> None:
        """Queue a block again after a result changed its priority.

        Its older entries stay in the queues. `WindowBuilder.fold_step` skips them.
        """
        block.queued_priority = priority
        if not block.in_round.is_closed:
            _push_block(self._open_blocks, block)
            return
        if not block.is_recent:
            _push_block(self.tool_blocks, block)
        # Otherwise the round is queued later, with this priority.
        if block.in_round.priority != UNRANKED:
            _push_block(self._closed_blocks, block)
            if priority > block.in_round.priority:
                self._raise_round(block.in_round, priority)

    def _raise_round(self, closed: RoundView, priority: int) -> None:
        closed.priority = priority
        for block in closed.shown:
            if block.needs_its_round:
                block.queued_priority = priority
                _push_block(self._closed_blocks, block)


def _push(heap: list[Candidate], block: BlockView, view: MessageView) -> None:
    heappush(heap, (priority_of(view.message), view.message.position, block, view))


def _push_block(queue: list[Candidate], block: BlockView) -> None:
    heappush(queue, (block.queued_priority, block.position, block, block.head))
