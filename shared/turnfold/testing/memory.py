"""A store in memory that satisfies every port: the same contract as the databases, without one."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from secrets import randbits

from turnfold.core.history.as_of import AsOf, AtTime
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.text.search import Lookup
from turnfold.errors import BadRequest, UnknownSession
from turnfold.messages import AgentId, SessionKey
from turnfold.ports.admin import Notice
from turnfold.ports.query import (
    AuditRow,
    Candidates,
    Chosen,
    DeadLetterRow,
    OriginalMessage,
    PendingEviction,
    Scope,
    SessionCounts,
    StoredSummary,
    WindowSnapshot,
)
from turnfold.testing.campaigns import MemoryCampaigns
from turnfold.testing.erasures import MemoryErasures
from turnfold.testing.intake import MemoryChanges, MemoryIdle, MemoryIntake
from turnfold.testing.jobs import MemoryJobs
from turnfold.testing.kept import Compaction, Erasure, Memory, Session
from turnfold.testing.letters import MemoryLetters
from turnfold.testing.versions import MemoryVersions


class MemoryWindows:
    """See `turnfold.ports.query.WindowStore`."""

    _memory: Memory

    async def window(
        self,
        key: SessionKey,
        *,
        glance: Callable[[WindowSnapshot], Chosen | None],
        choose: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session; nothing else runs meanwhile."""
        session = self._memory.sessions.get(key)
        ingested_to = next((last for first, last in self._memory.ingested if first == 1), 0)
        if session is None:
            facts = WindowSnapshot(ingested_to, None)
            seen = glance(facts)
            return (seen if seen is not None else choose(facts)[0]), {}
        head = WindowSnapshot(
            ingested_to, session.facts(self._memory.wishes_of(key.agent_id)), session.summary
        )
        seen = glance(head)
        if seen is not None:
            return seen, {}
        waiting = {row.compaction_id for row in session.pending} | {None}
        kept = [one for one in session.kept if one.message.compaction_id in waiting]
        pending = tuple(_waiting(row) for row in session.pending)
        messages = tuple(one.message for one in kept)
        chosen, positions = choose(
            WindowSnapshot(ingested_to, head.session, session.summary, pending, messages)
        )
        return chosen, {
            one.message.position: one.body for one in kept if one.message.position in set(positions)
        }

    async def window_as_of(
        self,
        key: SessionKey,
        moment: AsOf,
        *,
        glance: Callable[[WindowSnapshot], Chosen | None],
        choose: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session as it was; nothing else runs meanwhile."""
        session = self._memory.sessions.get(key)
        ingested_to = next((last for first, last in self._memory.ingested if first == 1), 0)
        head = WindowSnapshot(ingested_to, None)
        if session is not None:
            head = WindowSnapshot(
                ingested_to, session.facts(self._memory.wishes_of(key.agent_id)), session.summary
            )
        seen = glance(head)
        if seen is not None:
            return seen, {}
        if session is None or head.session is None:
            if not isinstance(moment, AtTime):
                raise BadRequest("as_of: nothing was published in this session yet")
            return choose(head)[0], {}
        state = session.then(moment)
        kept = session.kept_then(state)
        rows = {int(row.compaction_id): row for row in session.compactions}
        pending = tuple(_waiting(rows[one.compaction_id]) for one in state.pending)
        facts = replace(
            head.session, messages_total=state.covered + len(kept), version=state.version
        )
        summary = next((one for one in session.summaries if one.version == state.version), None)
        chosen, positions = choose(
            WindowSnapshot(ingested_to, facts, summary, pending, tuple(one.message for one in kept))
        )
        return chosen, {
            one.message.position: one.body for one in kept if one.message.position in set(positions)
        }


def _waiting(row: Compaction) -> PendingEviction:
    return PendingEviction(
        row.compaction_id,
        len(row.evicted),
        row.tokens_evicted,
        row.digest,
        row.digest_tokens,
        row.requested_at_ms,
    )


def _order(counts: SessionCounts) -> tuple[int, int]:
    at_ms, sid = counts.sort_key
    return -at_ms, sid


class MemoryHistory:
    """See `turnfold.ports.query.HistoryStore`."""

    _memory: Memory

    async def page(
        self, key: SessionKey, *, after_position: int, limit: int, newest_first: bool = False
    ) -> Sequence[OriginalMessage]:
        """Originals behind a position in order, or before it with the newest first."""
        session = self._session(key)
        if newest_first:
            before = [
                one for one in reversed(session.kept) if one.message.position < after_position
            ]
            return [session.original(one) for one in before[:limit]]
        behind = [one for one in session.kept if one.message.position > after_position]
        return [session.original(one) for one in behind[:limit]]

    async def by_ids(
        self, key: SessionKey, message_ids: Sequence[str]
    ) -> Sequence[OriginalMessage]:
        """The originals of these ids, in order of position."""
        session = self._session(key)
        return [
            session.original(one) for one in session.kept if one.message.message_id in message_ids
        ]

    async def counts(self, key: SessionKey) -> SessionCounts:
        """What a session holds."""
        return self._session(key).counts(self._memory.wishes_of(key.agent_id))

    async def wishes(self, key: SessionKey | AgentId) -> tuple[PolicyOverrides, PolicyOverrides]:
        """Return the policy overrides of an agent and its session."""
        session = self._memory.sessions.get(key) if isinstance(key, SessionKey) else None
        agent_id = key.agent_id if isinstance(key, SessionKey) else key
        return self._memory.wishes_of(agent_id), session.wishes if session else PolicyOverrides()

    async def sessions(
        self, *, agent_ids: Collection[str] | None, limit: int, after: tuple[int, int] | None = None
    ) -> Sequence[SessionCounts]:
        """Sessions behind a place, of these agents or of all, the one with the newest event first."""
        chosen = [
            session
            for key, session in self._memory.sessions.items()
            if agent_ids is None or key.agent_id in agent_ids
        ]
        found = [session.counts(self._memory.wishes_of(session.key.agent_id)) for session in chosen]
        found.sort(key=_order)
        return [one for one in found if after is None or _order(one) > (-after[0], after[1])][
            :limit
        ]

    async def versions(
        self, key: SessionKey, version: int | None = None
    ) -> tuple[int | None, Sequence[StoredSummary]]:
        """The version in force, and all versions (or this one), oldest first."""
        session = self._session(key)
        return session.version, [one for one in session.summaries if version in (None, one.version)]

    async def audit(self, key: SessionKey, *, after: int, limit: int) -> Sequence[AuditRow]:
        """Audit rows behind an ordinal."""
        session = self._memory.sessions.get(key)
        rows = session.audit if session else self._memory.erasures.get(key, Erasure(0)).audit
        return list(rows[after : after + limit])

    async def dead_letters(self, *, after: int, limit: int) -> Sequence[DeadLetterRow]:
        """Dead letters behind an id, oldest first."""
        return [row for row in self._memory.dead_letters if row.dead_letter_id > after][:limit]

    async def dead_letter_counts(self) -> Mapping[str, int]:
        """How many dead letters there are, by reason."""
        return Counter(row.reason for row in self._memory.dead_letters)

    def _session(self, key: SessionKey) -> Session:
        if key not in self._memory.sessions:
            raise UnknownSession("nothing was published in this session yet")
        return self._memory.sessions[key]


class MemorySearch:
    """See `turnfold.ports.query.SearchStore` and `SearchIndex`: without an index every message is one that waits for it."""

    _memory: Memory

    async def unindexed(
        self, key: SessionKey, *, scope: Scope, after_position: int
    ) -> Sequence[OriginalMessage]:
        """Every message of the session that is in scope, a hundred at a time."""
        if key not in self._memory.sessions:
            raise UnknownSession("nothing was published in this session yet")
        session = self._memory.sessions[key]
        behind = [
            one
            for one in session.kept
            if one.message.position > after_position and scope.role in (None, str(one.message.role))
        ]
        if scope.version is not None:
            spoken_for = session.speaks_for.get(scope.version, frozenset())
            behind = [one for one in behind if one.message.compaction_id in spoken_for]
        first = -1 if scope.after_position is None else scope.after_position
        found = [
            original for original in map(session.original, behind) if original.position > first
        ]
        found = [
            one
            for one in found
            if scope.before_position is None or one.position < scope.before_position
        ]
        return [one for one in found if scope.state in (None, one.state)][:100]

    async def candidates(
        self, key: SessionKey, lookups: Sequence[Lookup], *, scope: Scope
    ) -> Candidates:
        """None beside those."""
        del key, lookups, scope
        return Candidates(())

    async def index_some(self) -> bool:
        """Nothing is to be done."""
        return False


class MemoryOutbox:
    """See `turnfold.ports.admin.OutboxStore`."""

    _memory: Memory

    async def unsent(self, limit: int) -> Sequence[Notice]:
        """The oldest notices that the stream may not have yet."""
        return self._memory.outbox[:limit]

    async def sent(self, notices: Sequence[Notice]) -> None:
        """Forget notices that the stream has."""
        gone = {notice.outbox_id for notice in notices}
        self._memory.outbox = [
            notice for notice in self._memory.outbox if notice.outbox_id not in gone
        ]


class MemoryStore(
    MemoryIntake,
    MemoryJobs,
    MemoryWindows,
    MemoryHistory,
    MemorySearch,
    MemoryChanges,
    MemoryVersions,
    MemoryCampaigns,
    MemoryOutbox,
    MemoryIdle,
    MemoryErasures,
    MemoryLetters,
):
    """All ports over one memory. Each method runs without interruption, so each is one transaction."""

    def __init__(self, *, new_id: Callable[[], int] = lambda: randbits(62)) -> None:
        self._memory = Memory(new_id=new_id)
        self._campaigns = []

    @property
    def memory(self) -> Memory:
        """What is kept, for whoever wants to look."""
        return self._memory
