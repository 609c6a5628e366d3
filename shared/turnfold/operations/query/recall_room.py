"""Decide the share of a budget for recall, and the share of its block for single lines."""

from collections.abc import Sequence
from typing import Final

from turnfold.core.history.blocks import is_turn_boundary
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import LEAST_ROOM
from turnfold.core.window.budget_shares import MOST_TURN_SHARE, TAKEN_WITHIN_TURN
from turnfold.core.window.builder import WindowBuilder
from turnfold.messages import Message, Role
from turnfold.operations.query.recall_decisions import RecallWish, newest_message

TALK_RATIO: Final = 0.7
ASKED_TALK_RATIO: Final = 0.2
"""If an agent does not act, recall leaves only the first ratio of what it usually leaves.

The second ratio applies if the request has its own query, because its caller asks for the past.
"""
QUOTES_AT_REQUEST: Final = 0.5


def share_for_recall(policy: Policy, messages: Sequence[Message], *, is_asked: bool) -> float:
    """Return the share of a budget that stays free for a block when a request arrives.

    In a conversation without actions, only earlier messages matter, and the block finds them best.
    Actions of the newest turn do not count, because the beginning of its window stays the same
    within the turn. Without an earlier turn, the agent may work on a single task. `is_asked` if the
    request has its own query.
    """
    if not policy.recall_share:
        return 0.0
    places = range(len(messages) - 1, -1, -1)
    request = next((place for place in places if messages[place].is_request), 0)
    earlier = messages[:request]
    if is_at_work(earlier) or not any(message.is_request for message in earlier):
        return policy.recall_share
    return 1 - (ASKED_TALK_RATIO if is_asked else TALK_RATIO) * (1 - policy.recall_share)


def room_for_recall(window: WindowBuilder, policy: Policy, wish: RecallWish, factor: float) -> int:
    """Return the raw tokens that the block of a window may take; 0 if it is too little.

    When a turn begins or ends, the room is what the window leaves of its budget, less what the turn
    is expected to add, but at least what windows leave when a request arrives. In a running turn it
    is most of what is left, so that the block is halved only after some steps; small windows are
    trimmed before a block that takes all is gone. `factor` converts the limits of the wish to raw
    counts.
    """
    budget = window.limits.tokens
    left = room = budget - window.total
    if _is_at_boundary(window):
        expected = min(window.turns.median_after_request, int(MOST_TURN_SHARE * budget))
        room = min(max(left - expected, budget - window.limits_by_turns.arrival_tokens), left)
    elif not window.limits.is_small:
        room = int(TAKEN_WITHIN_TURN * left)
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
    if not is_at_work(window.taken):
        return 0.0
    return QUOTES_AT_REQUEST if _is_at_boundary(window) else 1.0


def is_at_work(messages: Sequence[Message]) -> bool:
    """Return whether an agent acts: it calls tools, or programs write half of its user messages.

    Agents without tool calls write commands as text, and a program sends back the results.
    """
    if any(message.calls for message in messages):
        return True
    from_programs = [message.is_meta for message in messages if message.role is Role.USER]
    return any(from_programs) and 2 * sum(from_programs) >= len(from_programs)


def _is_at_boundary(window: WindowBuilder) -> bool:
    """Return whether the newest message begins or ends a turn."""
    newest = newest_message(window)
    return newest is not None and is_turn_boundary(newest)
