"""Decide the recall block of a window: when a request arrives, and the same in every later step."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from statistics import median
from typing import Final

from turnfold.cache import LRUCache
from turnfold.contracts.requests import ContextRequest
from turnfold.core.history.blocks import is_turn_boundary
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import FRAME_TOKENS, LEAST_ROOM, RecallBlock, write_block
from turnfold.core.recall.question import RecallQuestion, question_of
from turnfold.core.recall.ranking import rank
from turnfold.core.text.tokens import text_of
from turnfold.core.window.builder import WindowBuilder
from turnfold.messages import Message
from turnfold.ports.query import RecallStore, Recollection, SearchedSession

DECISIONS_BYTES: Final = 16_000_000
MESSAGE_BYTES: Final = 1_000
"""About how many bytes a message of a cached decision takes besides its text."""
MOST_TURN_SHARE: Final = 0.25
"""The largest share of the budget that is left free for the rest of the turn."""
MOST_FILLED: Final = 1_000
"""How many of the newest messages are examined to fill a block."""


@dataclass(frozen=True, slots=True)
class RecallWish:
    """The recall that a request asks for; without a query, the text of the newest request is used.

    `tokens` and `share` (of the budget) limit the block.
    """

    query: str | None = None
    tokens: int | None = None
    share: float | None = None

    @staticmethod
    def of(request: ContextRequest, policy: Policy) -> "RecallWish | None":
        """Return what a request asks for; None if it, or the policy, wants no recall."""
        asked = request.recall
        if asked is False or request.mode == "emergency":
            return None
        if asked is None:
            return RecallWish(request.query) if policy.recall_share else None
        query = request.query if asked.query is None else asked.query
        return RecallWish(query, asked.tokens, asked.share)


@dataclass(frozen=True, slots=True)
class RecallMoment:
    """The window as it was when its block is decided.

    `shown` are the positions of its messages, `room` the raw tokens that the block may take, and
    `until` is the position after its newest message.
    """

    sid: int
    request_position: int
    until: int
    shown: frozenset[int]
    room: int


@dataclass(frozen=True, slots=True)
class RecallDecision:
    """The block of a turn, and what it was written from."""

    block: RecallBlock | None
    recollection: Recollection

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        recalled = (*self.recollection.messages, *self.recollection.partners)
        return sum(MESSAGE_BYTES + 4 * entry.message.characters for entry in recalled)

    @property
    def is_partial(self) -> bool:
        """Whether some messages were not searched, because the index has not caught up."""
        return self.recollection.is_partial

    def shows_any(self, positions: frozenset[int]) -> bool:
        """Return whether the block holds any of these messages."""
        return self.block is not None and not positions.isdisjoint(self.block.positions)

    def fitting(self, room: int) -> RecallBlock | None:
        """Return the block, or if the turn has outgrown its room half of it, or None."""
        if self.block is None or self.block.tokens <= room:
            return self.block
        # Half and not just what fits: otherwise each step of the turn would show another block.
        half = self.block.tokens // 2
        if half > room:
            return None
        return write_block(self.recollection.messages, self.recollection.partners, half)


@dataclass(frozen=True, slots=True)
class Recall:
    """The recall of a query server: where it searches, and what it has decided."""

    store: RecallStore
    decisions: LRUCache[object, RecallDecision] = field(
        default_factory=lambda: LRUCache(DECISIONS_BYTES)
    )

    def clear_caches(self) -> None:
        """Remove all text from memory, because something was erased."""
        self.decisions.clear()
        self.store.forget()

    def cached(self, key: object) -> RecallDecision | None:
        """Return the decision of this key, if it was made before."""
        decision = self.decisions.pop(key)
        if decision is not None:
            self.decisions.put(key, decision, decision.weight)
        return decision

    async def decide(self, moment: RecallMoment, wish: RecallWish, key: object) -> RecallDecision:
        """Search the session, write the block, and remember the decision.

        `key` None is not remembered.

        Raises:
            Unavailable: the database cannot be read now.
        """

        def question(body_at: Callable[[int], str]) -> RecallQuestion:
            if wish.query is not None:
                return question_of(wish.query)
            return question_of(text_of(json.loads(body_at(moment.request_position))))

        if not moment.room:
            return RecallDecision(None, Recollection((), (), moment.until, is_partial=False))
        recollection = await self.store.recall(
            moment.sid,
            until=moment.until,
            question=question,
            choose=lambda session: _chosen(session, moment),
        )
        block = write_block(recollection.messages, recollection.partners, moment.room)
        decision = RecallDecision(block, recollection)
        if key is not None:
            self.decisions.put(key, decision, decision.weight)
        return decision


def _chosen(session: SearchedSession, moment: RecallMoment) -> list[int]:
    """Return the ordinals to read: the best matches, then the newest while room is left."""
    known = len(session.positions)
    left = moment.room - FRAME_TOKENS
    chosen: dict[int, None] = {}
    newest = islice(range(known - 1, -1, -1), MOST_FILLED)
    for ordinal in chain(rank(session.matches, session.tokens, known, session.spoken), newest):
        tokens = session.tokens[ordinal]
        if (
            0 < tokens <= left
            and ordinal not in chosen
            and session.positions[ordinal] not in moment.shown
        ):
            chosen[ordinal] = None
            left -= tokens
    return list(chosen)


def room_for_recall(window: WindowBuilder, policy: Policy, wish: RecallWish, factor: float) -> int:
    """Return the raw tokens that the block of a window may take; 0 if it is too little.

    The room is what the window leaves of its budget, less what the turn is expected to add, but at
    least the share of the policy, or in a running turn half of what is left. `factor` converts the
    limits of the wish to raw counts.
    """
    budget = window.limits.tokens
    left = budget - window.total
    expected = min(expected_turn_tokens(window.taken), int(MOST_TURN_SHARE * budget))
    decided_at = deciding_message(window)
    is_boundary = decided_at is not None and is_turn_boundary(decided_at)
    least = int(policy.recall_share * budget) if is_boundary else left // 2
    room = min(max(left - expected, least), left)
    limits = [policy.recall_max_tokens]
    if wish.tokens is not None:
        limits.append(int(wish.tokens / factor))
    if wish.share is not None:
        limits.append(int(wish.share * budget))
    room = min(room, *limits)
    return room if room >= LEAST_ROOM and window.size < window.limits.messages else 0


def expected_turn_tokens(messages: Sequence[Message]) -> int:
    """Return the median tokens that a turn adds after its request; 0 without a whole turn."""
    return int(median(sizes)) if (sizes := list(_turn_sizes(messages))) else 0


def _turn_sizes(messages: Sequence[Message]) -> Iterator[int]:
    starts = [place for place, message in enumerate(messages) if message.is_request]
    for first, end in pairwise(starts):
        yield sum(message.tokens for message in messages[first + 1 : end])


def deciding_message(window: WindowBuilder) -> Message | None:
    """Return the message at which the block of a window is decided; None without a request.

    That is the newest request, the answer that ended its turn, or the message of a running turn
    with which the window was trimmed: its beginning changed then anyway.
    """
    if window.request is None:
        return None
    newest = next(
        (message for message in reversed(window.taken) if not message.role.is_system), None
    )
    if newest is not None and is_turn_boundary(newest):
        return newest
    request, trimmed = window.request.head.message, window.trimmed_after
    return request if trimmed is None or trimmed.position < request.position else trimmed


def shown_positions(window: WindowBuilder) -> frozenset[int]:
    """Return the positions of the messages that a window shows in any form."""
    views = [view for block in window.blocks if block.is_shown for view in block.views]
    return frozenset(view.message.position for view in views)
