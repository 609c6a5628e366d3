"""The parts of a window that each trimming step may shorten or leave out, as priority queues.

`WindowBuilder` fills the queues while it grows, and the steps of the ladder empty them: LOW
before NORMAL before HIGH, the oldest first.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappush
from typing import Final

from turnfold.core.history.priority import priority_of
from turnfold.core.policy.presets import Policy
from turnfold.core.window.truncation import arguments_tokens
from turnfold.core.window.views import UNRANKED, BlockView, MessageView, RoundView
from turnfold.messages import Role

CHARACTERS_PER_REASONING_TOKEN: Final = 4

Candidate = tuple[int, int, BlockView, MessageView]
"""Priority, position, block and message."""


class TrimCandidates:
    """One queue per trimming step. Mutable, because it grows with each message of a window.

    `units` is the builder's own list of blocks, oldest first.
    """

    def __init__(self, policy: Policy, units: Sequence[BlockView], soft_tokens: int) -> None:
        self._policy = policy
        self._units = units
        self._soft_tokens = soft_tokens
        self._with_new_reasoning: list[BlockView] = []
        self._newest_tool_units: deque[BlockView] = deque()
        self.with_reasoning: list[Candidate] = []
        self.large_results: list[Candidate] = []
        self.seen_results: list[Candidate] = []
        self.long_texts: list[Candidate] = []
        self.costly: list[Candidate] = []
        self.tool_units: list[Candidate] = []
        self._open_tool_units: list[BlockView] = []
        self.closed_units: list[Candidate] = []
        """Every block of the closed rounds."""
        self._open_units: list[Candidate] = []
        self._open_from = 0
        self._listed_units = 0

    @property
    def open_units(self) -> list[Candidate]:
        """Every block of the open round; queued on first use."""
        start = max(self._listed_units, self._open_from)
        for unit in self._units[start:]:
            heappush(self._open_units, (unit.listed, unit.position, unit, unit.head))
        self._listed_units = len(self._units)
        return self._open_units

    def holds_blocks(self, heap: list[Candidate]) -> bool:
        """Return whether this queue holds whole blocks, not single messages."""
        return any(
            heap is queue for queue in (self.closed_units, self._open_units, self.tool_units)
        )

    def close_round(self, closed: RoundView) -> None:
        """Queue the blocks of a round that a new request has ended.

        The request and the answers of a round have its highest priority, because they leave
        together.
        """
        closed.priority = max([unit.listed for unit in closed.units], default=UNRANKED)
        for unit in closed.shown:
            if unit.needs_its_round:
                unit.listed = closed.priority
            heappush(self.closed_units, (unit.listed, unit.position, unit, unit.head))
        for unit in self._open_tool_units:
            heappush(self.tool_units, (unit.listed, unit.position, unit, unit.head))
        self._open_tool_units.clear()
        self._open_units.clear()
        self._open_from = len(self._units)

    def add_block(self, unit: BlockView, *, is_newest_request: bool) -> None:
        """Queue a new block for the steps that may shorten it."""
        policy, message = self._policy, unit.head.message
        if is_newest_request:
            for older in self._with_new_reasoning:
                _push(self.with_reasoning, older, older.head)
            self._with_new_reasoning.clear()
        if (
            policy.reasoning_max_chars
            and message.reasoning_tokens * CHARACTERS_PER_REASONING_TOKEN
            > policy.reasoning_max_chars
        ):
            self._with_new_reasoning.append(unit)
        cap = policy.user_max_chars if message.role is Role.USER else policy.assistant_max_chars
        if cap and message.characters > cap:
            _push(self.long_texts, unit, unit.head)
        if unit.results:
            self._add_tool_block(unit)

    def _add_tool_block(self, unit: BlockView) -> None:
        max_tokens = self._policy.arguments_max_tokens
        if max_tokens and any(
            call.tokens > max_tokens and arguments_tokens(call) > max_tokens
            for call in unit.head.message.calls
        ):
            _push(self.costly, unit, unit.head)
        self._newest_tool_units.append(unit)
        unit.is_recent = True
        if len(self._newest_tool_units) > self._policy.keep_tool_blocks:
            older = self._newest_tool_units.popleft()
            older.is_recent = False
            if older.in_round.is_closed:
                heappush(self.tool_units, (older.listed, older.position, older, older.head))
            else:
                self._open_tool_units.append(older)

    def add_result(self, unit: BlockView, piece: MessageView) -> None:
        """Queue a result for the steps that may shorten it."""
        policy, message = self._policy, piece.message
        _push(self.seen_results, unit, piece)
        if message.is_truncated:
            return
        cap = policy.tool_result_max_chars
        if piece.text > self._soft_tokens or (cap and message.characters > cap):
            _push(self.large_results, unit, piece)
        if policy.result_max_tokens and piece.text > policy.result_max_tokens:
            _push(self.costly, unit, piece)

    def change_priority(self, unit: BlockView, priority: int) -> None:
        """Queue a block again after a result changed its priority.

        Its older entries stay in the queues. `WindowBuilder.apply_step` skips them.
        """
        unit.listed = priority
        entry = (priority, unit.position, unit, unit.head)
        if not unit.in_round.is_closed:
            heappush(self._open_units, entry)
            return
        heappush(self.closed_units, entry)
        if not unit.is_recent:
            heappush(self.tool_units, entry)
        if priority > unit.in_round.priority:
            self._raise_round(unit.in_round, priority)

    def _raise_round(self, closed: RoundView, priority: int) -> None:
        closed.priority = priority
        for unit in closed.shown:
            if unit.needs_its_round:
                unit.listed = priority
                heappush(self.closed_units, (priority, unit.position, unit, unit.head))


def _push(heap: list[Candidate], unit: BlockView, piece: MessageView) -> None:
    heappush(heap, (priority_of(piece.message), piece.message.position, unit, piece))
