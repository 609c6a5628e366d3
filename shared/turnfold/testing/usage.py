"""What providers reported, in memory: the factor it teaches, worked out from the events each time."""

from collections.abc import Callable, Iterable
from itertools import pairwise

from turnfold.core.eviction.eviction import Trigger
from turnfold.core.eviction.usage import (
    COMPACTIONS_LOOKED_AT,
    NEVER_MS,
    REPORTS_LOOKED_AT,
    ReportDelta,
    calibration_factor,
)
from turnfold.messages import MESSAGES_PER_EVENT, Message, Role, position_of
from turnfold.testing.kept import Compaction, Memory, Session


def settled_ms(session: Session) -> int:
    """When the last compaction was done; far off where it is not, -1 where there was none."""
    if not session.compactions:
        return -1
    newest = session.compactions[-1]
    return (
        NEVER_MS
        if newest.is_open and not Trigger(newest.trigger).rewrites
        else max(_moments([newest]))
    )


class MemoryCalibrator:
    """The factors of one transaction: learnt from what is kept, and from the evictions that come of it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._compacted = {
            session.sid: list(_moments(session.compactions[-COMPACTIONS_LOOKED_AT:]))
            for session in memory.sessions.values()
        }

    def of(self, session: Session) -> Callable[[int, int], float]:
        """What tells the factor of a session's model after an eviction."""

        def learn(seq: int, at_ms: int) -> float:
            self._compacted[session.sid].append(at_ms)
            return self.factor(session, seq)

        return learn

    def factor(self, session: Session, seq: int = 1 << 42) -> float:
        """The factor of a session's model, as the reports up to a stream sequence tell it."""
        reports: list[tuple[int, ReportDelta | None]] = []
        for other in self._memory.sessions.values():
            if other.key.agent_id == session.key.agent_id:
                reports += [one for one in _reports(other, session.model) if one[0] <= seq]
        reports.sort(key=lambda one: one[0], reverse=True)
        return calibration_factor(
            [one for _, one in reports[:REPORTS_LOOKED_AT] if one is not None], self._compacted
        )


def _moments(rows: Iterable[Compaction]) -> list[int]:
    return [
        moment
        for row in rows
        for moment in (row.requested_at_ms, row.finished_at_ms, row.restored_at_ms)
        if moment is not None
    ]


def _reports(session: Session, model: str | None) -> Iterable[tuple[int, ReportDelta | None]]:
    """The reports of a model in a session by sequence, and how each differs from the one before, where that tells anything."""
    messages = [one.message for one in session.kept]
    made = [
        (one, one.report.prompt_tokens, position_of(one.stream_seq, one.answer))
        for one in session.in_stream_order
        if one.report is not None and one.model and one.answer is not None
    ]
    if made and made[0][0].model == model:
        yield made[0][0].stream_seq, None
    for (earlier, fewer, first), (later, more, end) in pairwise(made):
        if later.model != model:
            continue
        between = [message for message in messages if first <= message.position < end]
        before = [
            message.created_at_ms
            for message in messages
            if message.position < earlier.stream_seq * MESSAGES_PER_EVENT
        ]
        is_fit = earlier.model == model and not any(
            message.role.is_system or message.reasoning_tokens for message in between
        )
        yield (
            later.stream_seq,
            ReportDelta(
                session.sid,
                later.stream_seq,
                before[-1] if before else 0,
                later.at_ms,
                more - fewer,
                sum(message.tokens for message in between if _is_shown(message)),
            )
            if is_fit
            else None,
        )


def _is_shown(message: Message) -> bool:
    return message.role is not Role.TOOL or message.answers is not None
