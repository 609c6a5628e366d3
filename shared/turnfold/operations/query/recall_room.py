"""Decide the room of a recall block, and its share for single lines."""

from typing import Final

from turnfold.core.history.blocks import is_turn_boundary
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import LEAST_ROOM
from turnfold.core.window.budget_shares import MOST_TURN_SHARE, TAKEN_WITHIN_TURN
from turnfold.core.window.builder import WindowBuilder
from turnfold.operations.query.recall_decisions import RecallWish, newest_message

QUOTES_AT_REQUEST: Final = 0.5


def room_for_recall(window: WindowBuilder, policy: Policy, wish: RecallWish, factor: float) -> int:
    """Return the raw tokens that the block of a window may take; 0 if it is too little.

    When a turn begins or ends, the room is what the window leaves of its budget. If the agent acts,
    it is less what the turn is expected to add, but at least what windows leave at a request; in
    talk, the next message decides another block. In a running turn the room is most of what is
    left, so that the block is halved only after some steps; small windows are trimmed before a
    block that takes all is gone. `factor` converts the limits of the wish to raw counts.
    """
    budget = window.limits.tokens
    left = room = budget - window.total
    if not _is_at_boundary(window):
        room = left if window.limits.is_small else int(TAKEN_WITHIN_TURN * left)
    elif window.turns.is_work:
        expected = min(window.turns.median_after_request, int(MOST_TURN_SHARE * budget))
        room = min(max(left - expected, budget - window.limits_by_turns.arrival_tokens), left)
    room = min(room, policy.recall_max_tokens)
    if wish.tokens is not None:
        room = min(room, int(wish.tokens / factor))
    if wish.share is not None:
        room = min(room, int(wish.share * budget))
    return room if room >= LEAST_ROOM and window.size < window.limits.messages else 0


def share_of_quotes(window: WindowBuilder) -> float:
    """Return the share of a block that single lines take before whole messages.

    An agent at work needs names and numbers for its next step. But a request is also a question,
    which whole messages answer; within its turn, they have been quoted already.
    """
    if not window.turns.is_work:
        return 0.0
    return QUOTES_AT_REQUEST if _is_at_boundary(window) else 1.0


def _is_at_boundary(window: WindowBuilder) -> bool:
    """Return whether the newest message begins or ends a turn."""
    newest = newest_message(window)
    return newest is not None and is_turn_boundary(newest)
