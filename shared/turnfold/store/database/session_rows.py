"""Session rows within a transaction: lock, change, add audit rows, and write back."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from turnfold.contracts.subjects import session_subject
from turnfold.core.eviction.triggers import SessionLoad, idle_at_ms
from turnfold.core.eviction.usage import UsageState
from turnfold.core.history.audit_chain import SEALED_FIELDS, WORKER, seal
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.cooldown import COOLDOWN_MAX_MS, cooldown_ms
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.ingest import Installation
from turnfold.ports.query import SessionSnapshot
from turnfold.store.database.engine import insert_for
from turnfold.store.database.predicates import is_kept
from turnfold.store.database.schema import (
    agents,
    audit,
    erasures,
    outbox,
    session_counts,
    sessions,
    summaries,
)
from turnfold.store.database.statements import (
    PAIRS,
    BulkInsert,
    PreparedIn,
    PreparedPairs,
    bulk_update,
)

ANY_NUMBER = 1 << 62
"""More sessions than there will ever be."""


@dataclass(slots=True)
class SessionRow(SessionSnapshot):
    """A locked session; `SessionJournal.write` stores what is changed here."""

    model_seq: int
    rounds: int
    idle_at_ms: int | None
    reported_seq: int
    reported_at_ms: int
    reported_tokens: int
    usage_evictions: int
    failures: int
    cooldown_until_ms: int
    cooldown_reason: str | None
    held_to_tokens: int
    unindexed_from: int | None
    summary_tokens: int
    key: SessionKey = field(kw_only=True)

    def policy(self, installation: Installation) -> Policy:
        """Return the policy that the overrides of the session and its agent result in."""
        return installation.policy(self.agent_wishes, self.wishes)

    def renew_idle_time(self, installation: Installation) -> None:
        """Set when the session becomes idle by its policy."""
        self.idle_at_ms = idle_at_ms(self.last_event_at_ms or 0, self.policy(installation))

    @property
    def load(self) -> SessionLoad:
        """The numbers that triggers examine. Reported usage counts only after it was metered."""
        return SessionLoad(self.live_messages, self.live_tokens, self.rounds, self.factor)

    @property
    def window_tokens(self) -> int:
        """The tokens of live messages and the summary in force."""
        return self.live_tokens + self.summary_tokens

    @property
    def held_tokens(self) -> int:
        """How many tokens must still arrive before restored messages may be evicted again."""
        return max(0, self.held_to_tokens - self.tokens_total)

    def begin_cooldown(self, reason: str, *, at_ms: int) -> None:
        """Pause the model, each time for longer, because all attempts failed."""
        self.failures += 1
        self.cooldown_until_ms, self.cooldown_reason = at_ms + cooldown_ms(self.failures), reason

    def is_cooling(self, now_ms: int) -> bool:
        """Whether the model rests. A later end than any was set while a clock was ahead."""
        return now_ms < self.cooldown_until_ms <= now_ms + COOLDOWN_MAX_MS

    def end_cooldown(self) -> None:
        """Call the model again, because it wrote a version."""
        self.failures, self.cooldown_until_ms, self.cooldown_reason = 0, 0, None

    @property
    def gauge(self) -> UsageState:
        """The usage that its model reported, as if no compaction had ever been."""
        return UsageState(
            self.factor,
            self.reported_seq,
            self.reported_at_ms,
            self.reported_tokens,
            -1,
            self.usage_evictions,
        )

    @gauge.setter
    def gauge(self, gauge: UsageState) -> None:
        """The reported usage, before corrections for compactions."""
        (
            self.factor,
            self.reported_seq,
            self.reported_at_ms,
            self.reported_tokens,
            _,
            self.usage_evictions,
        ) = gauge


_names = [of_row.name for of_row in fields(SessionRow)]
COUNTERS = tuple(_names[_names.index("model") : _names.index("summary_tokens")])
"""The columns that may change, in the order of their fields."""
OVERRIDES = [table.c[name] for table in (sessions, agents) for name in PolicyOverrides._fields]
"""The columns of the overrides of a session, and then of its agent."""
_LOCKED = (
    select(
        sessions.c.sid,
        sessions.c.agent_id,
        sessions.c.session_id,
        *OVERRIDES,
        *(sessions.c[name] for name in COUNTERS),
        summaries.c.tokens,
    )
    .outerjoin(agents, agents.c.agent_id == sessions.c.agent_id)
    .outerjoin(
        summaries, (summaries.c.sid == sessions.c.sid) & (summaries.c.version == sessions.c.version)
    )
    # A number may come from a snapshot that is older than an erasure.
    .where(is_kept)
    # One order for every transaction that locks several sessions, or PostgreSQL finds deadlocks.
    .order_by(sessions.c.sid)
    .with_for_update(of=sessions)
)
_VERSION = 9 + COUNTERS.index("version")
_SUMMARY_TOKENS = -1
_is_of_key = (sessions.c.agent_id == PAIRS.c.a) & (sessions.c.session_id == PAIRS.c.b)
_BY_KEY = PreparedPairs(
    _LOCKED.where(_is_of_key),
    (sessions.c.agent_id.type, sessions.c.session_id.type),
    is_locked=True,
)
_KNOWN = PreparedPairs(
    select(sessions.c.agent_id, sessions.c.session_id).where(_is_of_key),
    (sessions.c.agent_id.type, sessions.c.session_id.type),
)
_AUDIT_ENDS = PreparedPairs(
    select(
        erasures.c.agent_id, erasures.c.session_id, erasures.c.audit_rows, erasures.c.audit_hash
    ).where(erasures.c.agent_id == PAIRS.c.a, erasures.c.session_id == PAIRS.c.b),
    (erasures.c.agent_id.type, erasures.c.session_id.type),
)
_MADE = ("agent_id", "session_id", "audit_rows", "audit_hash")
_BY_SID = PreparedIn(_LOCKED, sessions.c.sid)
_COUNTS = PreparedIn(
    select(session_counts.c.agent_id, session_counts.c.total)
    .order_by(session_counts.c.agent_id)
    .with_for_update(),
    session_counts.c.agent_id,
)
_WRITE_BACK = bulk_update(sessions, where=("sid",), values=COUNTERS)
_stored_values = attrgetter(*COUNTERS, "sid")
_SEALED = BulkInsert(audit, (*SEALED_FIELDS, "prev_hash", "hash", "actor"))
_TOLD = BulkInsert(outbox, ("subject", "payload"))


def lock_by_key(
    connection: Connection, keys: Iterable[SessionKey], *, create: int = 0
) -> dict[SessionKey, SessionRow]:
    """Lock the sessions with these keys; create missing ones, up to `create` per agent."""
    wanted = list(dict.fromkeys(keys))
    if create and (missing := _unknown(connection, wanted)):
        _make(connection, missing, create)
    locked = _built(connection, _BY_KEY.rows(connection, sorted(wanted)))
    return {session.key: session for session in locked}


def _unknown(connection: Connection, keys: Sequence[SessionKey]) -> list[SessionKey]:
    known = {SessionKey(*row) for row in map(tuple, _KNOWN.rows(connection, sorted(keys)))}
    return [key for key in keys if key not in known]


def _make(connection: Connection, missing: Sequence[SessionKey], most: int) -> None:
    """Create sessions. The lock on the agent's count prevents duplicates and one too many."""
    counts = lock_session_counts(connection, {key.agent_id for key in missing})
    chosen: list[SessionKey] = []
    # Asked again under the lock: another transaction may have created some of them meanwhile.
    for key in _unknown(connection, missing):
        if counts[key.agent_id] < most:
            counts[key.agent_id] += 1
            chosen.append(key)
    if chosen:
        # The audit of a session that was erased goes on.
        ends = {row[:2]: row[2:] for row in map(tuple, _AUDIT_ENDS.rows(connection, chosen))}
        connection.execute(
            sessions.insert(),
            [dict(zip(_MADE, (*key, *ends.get(key, (0, ""))), strict=True)) for key in chosen],
        )


def lock_session_counts(connection: Connection, agent_ids: Iterable[AgentId]) -> dict[str, int]:
    """Lock and return the number of sessions of each agent; call before locking any session."""
    # Sorted, because transactions that lock several agents must lock them in one order.
    wanted = sorted(set(agent_ids))
    rows = [{"agent_id": agent_id} for agent_id in wanted]
    if not rows:
        # Without values, SQLAlchemy would insert a row of defaults.
        return {}
    # First: a row that does not exist cannot be locked, and two transactions could count.
    connection.execute(insert_for(connection)(session_counts).on_conflict_do_nothing(), rows)
    return {str(agent_id): int(number) for agent_id, number in _COUNTS.rows(connection, wanted)}


def lock_by_sid(connection: Connection, sids: Iterable[int]) -> dict[int, SessionRow]:
    """Lock the sessions with these numbers."""
    locked = _built(connection, _BY_SID.rows(connection, sorted(set(sids))))
    return {session.sid: session for session in locked}


def _built(connection: Connection, rows: Sequence[Sequence[Any]]) -> list[SessionRow]:
    """Build sessions from rows of `_LOCKED`."""
    # After a wait for the lock PostgreSQL reads only the locked row again. A version that was
    # committed meanwhile has found no summary, and is read again under the lock.
    stale = {row[0] for row in rows if row[_VERSION] is not None and row[_SUMMARY_TOKENS] is None}
    if stale:
        current = {row[0]: row for row in _BY_SID.rows(connection, sorted(stale))}
        rows = [current.get(row[0], row) for row in rows]
    return [_session(*row) for row in rows]


def _session(sid: int, agent_id: str, session_id: str, *rest: Any) -> SessionRow:
    """Build a session from a row of `_LOCKED`."""
    session = SessionRow(
        sid,
        PolicyOverrides(*rest[:3]),
        PolicyOverrides(*rest[3:6]),
        *rest[6:],
        key=SessionKey(AgentId(agent_id), SessionId(session_id)),
    )
    session.summary_tokens = session.summary_tokens or 0
    return session


@dataclass(slots=True)
class AgentChain:
    """The audit chain of an agent, which has no session: its key, and its end so far."""

    key: SessionKey
    audit_rows: int
    audit_hash: str


@dataclass(slots=True)
class SessionJournal:
    """The audit rows and notices of one transaction, in order; `actor` asked for it."""

    actor: str = WORKER
    audit_rows: list[tuple[Any, ...]] = field(default_factory=list)
    notices: list[tuple[str, str]] = field(default_factory=list)

    @property
    def asked_by(self) -> str | None:
        """The actor of this transaction; None for a worker's own work."""
        return None if self.actor == WORKER else self.actor

    def add_audit_row(
        self,
        session: SessionRow | AgentChain,
        phase: str,
        *,
        at_ms: int,
        compaction_id: int | None = None,
        reason: str | None = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        actor: str | None = None,
        **details: Any,
    ) -> None:
        """Append an audit row to the session's chain; `actor` overrides that of the transaction."""
        session.audit_rows += 1
        details_json = json.dumps(details, separators=(",", ":"))
        key = session.key
        sealed = (
            key.agent_id,
            key.session_id,
            session.audit_rows,
            at_ms,
            compaction_id,
            phase,
            reason,
            tokens_before,
            tokens_after,
            details_json,
        )
        by = actor or self.actor
        before, session.audit_hash = session.audit_hash, seal(session.audit_hash, sealed, by)
        self.audit_rows.append((*sealed, before, session.audit_hash, by))

    def add_notice(self, session: SessionRow, subject: str, **fields: Any) -> None:
        """Add a notice about the session.

        It carries the newest hash of the audit chain, so that a shortened audit is noticed.
        """
        payload = {
            "agent_id": session.key.agent_id,
            "session_id": session.key.session_id,
            **fields,
            "audit": {"rows": session.audit_rows, "hash": session.audit_hash},
        }
        self.notices.append((session_subject(subject, session.key), json.dumps(payload)))

    def write(self, connection: Connection, sessions: Sequence[SessionRow]) -> None:
        """Store the rows and notices, and the changes of these sessions."""
        _SEALED.run(connection, self.audit_rows)
        _TOLD.run(connection, self.notices)
        for session in sessions:
            # Two releases that count differently may leave them slightly off. Below zero, the
            # database would refuse the batch, and all events in it, for good.
            session.live_messages = max(0, session.live_messages)
            session.live_tokens = max(0, session.live_tokens)
        _WRITE_BACK.run(connection, [_stored_values(session) for session in sessions])


class SessionChange(NamedTuple):
    """A change of a locked session: its transaction, its journal, and its time (ms since 1970)."""

    connection: Connection
    session: SessionRow
    journal: SessionJournal
    now_ms: int

    def add_audit_row(self, phase: str, **values: Any) -> None:
        """Append an audit row of this time; see `SessionJournal.add_audit_row`."""
        self.journal.add_audit_row(self.session, phase, at_ms=self.now_ms, **values)
