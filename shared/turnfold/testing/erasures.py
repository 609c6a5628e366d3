"""Erasing in memory."""

from collections.abc import Sequence

from turnfold.contracts.events import claimed_key
from turnfold.contracts.subjects import key_of_event_subject
from turnfold.core.policy.retention import is_over
from turnfold.messages import AgentId, EventId, SessionKey
from turnfold.ports.admin import EraseResult
from turnfold.ports.ingest import Installation
from turnfold.testing.kept import Erasure, Memory, Session


class MemoryErasures:
    """See `turnfold.ports.admin.ErasureStore`."""

    _memory: Memory

    async def erase_expired(
        self, *, after: int, limit: int, installation: Installation, now_ms: int
    ) -> int | None:
        """Look at some sessions, and erase those that their policy retains no longer."""
        looked_at = sorted(
            (one for one in self._memory.sessions.values() if one.sid > after),
            key=lambda one: one.sid,
        )[:limit]
        ingested_to = next((last for first, last in self._memory.ingested if first == 1), 0)
        for session in looked_at:
            policy = installation.policy(
                self._memory.wishes_of(session.key.agent_id), session.wishes
            )
            if is_over(session.last_event_at_ms, policy, now_ms=now_ms):
                _erase_letters(self._memory, session.key)
                _erase_session(self._memory, session, ingested_to, now_ms, "retention")
        return looked_at[-1].sid if looked_at else None

    async def to_purge(self, limit: int) -> Sequence[int]:
        """The lowest sequences that the stream has still to forget."""
        return sorted(self._memory.purges)[:limit]

    async def purged(self, sequences: Sequence[int]) -> None:
        """The stream holds these no more."""
        self._memory.purges -= set(sequences)

    async def tidy(self) -> bool:
        """There are no files."""
        return True


def turned_away(
    memory: Memory, key: SessionKey | None, seq: int, event_id: EventId | None = None
) -> bool:
    """Whether what came for a session was erased before it came; the stream will forget it too."""
    if key is None:
        return False
    last = max(memory.erasures.get(one, Erasure(0)).last_seq for one in (key, key.agent_id))
    is_erased = seq <= last or (
        event_id is not None and (key.agent_id, event_id) in memory.erased_events
    )
    if is_erased:
        memory.purges.add(seq)
    return is_erased


def erased(memory: Memory, key: SessionKey | AgentId, last_seq: int, now_ms: int) -> EraseResult:
    """Erase a session, or all of an agent."""
    _erase_letters(memory, key)
    if isinstance(key, SessionKey):
        session = memory.session(key)
        number = _erase_session(memory, session, last_seq, now_ms, "request")
        return EraseResult(1, number) if number else EraseResult()
    mine = [session for session in memory.sessions.values() if session.key.agent_id == key]
    memory.agents.pop(key, None)
    for mark in [one for one in memory.spending if one[0] == key]:
        del memory.spending[mark]
    memory.erasures[key] = Erasure(max(last_seq, memory.erasures.get(key, Erasure(0)).last_seq))
    return EraseResult(
        len(mine),
        sum([_erase_session(memory, session, last_seq, now_ms, "agent") for session in mine]),
    )


def _erase_session(
    memory: Memory, session: Session, last_seq: int, now_ms: int, reason: str
) -> int:
    number, key = len(session.kept), session.key
    memory.seal(
        session, "erased", at_ms=now_ms, reason=reason, messages=number, versions=len(session.summaries), last_seq=last_seq
    )  # fmt: skip
    memory.erased_events |= {(key.agent_id, event_id) for event_id in session.events}
    memory.purges |= {
        arrival.stream_seq for arrival in session.events.values()
    } | memory.copies.pop(key, set())
    before = memory.erasures.get(key, Erasure(0))
    memory.erasures[key] = Erasure(max(last_seq, before.last_seq), tuple(session.audit))
    for row in session.compactions:
        memory.chunks.pop(row.compaction_id, None)
    del memory.sessions[key]
    return number


def _erase_letters(memory: Memory, key: SessionKey | AgentId) -> None:
    def is_mine(seq: int, subject: str) -> bool:
        found = (
            memory.letter_keys.get(seq),
            key_of_event_subject(subject),
            claimed_key(memory.payloads.get(seq, b"")),
        )
        named = [one for one in found if one is not None]
        return (
            key in named if isinstance(key, SessionKey) else key in [one.agent_id for one in named]
        )

    gone = {row.stream_seq for row in memory.dead_letters if is_mine(row.stream_seq, row.subject)}
    memory.purges |= gone
    memory.dead_letters = [row for row in memory.dead_letters if row.stream_seq not in gone]
