"""Read what is stored of sessions: messages, versions, audit rows and counts."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import BigInteger, Select, func, literal, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from turnfold.core.history.states import state_of
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.errors import UnknownSession
from turnfold.messages import MESSAGES_PER_EVENT, AgentId, SessionKey, position_of, split_message_id
from turnfold.ports.query import (
    AuditRow,
    DeadLetterRow,
    OriginalMessage,
    SessionCounts,
    StoredSummary,
)
from turnfold.store.database.engine import Database
from turnfold.store.database.predicates import is_live, is_pending
from turnfold.store.database.schema import (
    agents,
    audit,
    compactions,
    dead_letters,
    events,
    messages,
    sessions,
    summaries,
)
from turnfold.store.query.window import SUMMARY_COLUMNS, summary_of

PAGE_CHARACTERS = 2_000_000
"""A page of messages ends at this size, so that a reply fits into one NATS message."""

ORIGINALS = select(
    messages.c.position,
    messages.c.event_id,
    messages.c.compaction_id,
    compactions.c.is_covered,
    messages.c.body,
    messages.c.original,
    messages.c.is_meta,
).outerjoin(compactions, compactions.c.compaction_id == messages.c.compaction_id)


class SqlHistoryStore:
    """Histories in SQL; see `turnfold.ports.query.HistoryStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, key: SessionKey, *, after_position: int, limit: int, newest_first: bool = False
    ) -> Sequence[OriginalMessage]:
        """Return messages after a position, in order; fewer than `limit` if they are very long.

        With `newest_first`, return those before the position, newest first.
        """
        async with self._session(key) as (connection, sid):
            order = messages.c.position.desc() if newest_first else messages.c.position
            behind = (
                messages.c.position < after_position
                if newest_first
                else messages.c.position > after_position
            )
            # The lengths first: a page of a thousand messages of a megabyte each must not be read
            # only to be cut.
            sizes = select(messages.c.position, func.length(messages.c.body)).where(
                messages.c.sid == sid, behind
            )
            room, last = PAGE_CHARACTERS, None
            for position, size in await connection.execute(sizes.order_by(order).limit(limit)):
                # At least one message, or nobody could read past a very long one.
                if last is not None and size > room:
                    break
                room, last = room - size, position
            if last is None:
                return []
            until = messages.c.position >= last if newest_first else messages.c.position <= last
            return await _originals(
                connection, ORIGINALS.where(messages.c.sid == sid, behind, until).order_by(order)
            )

    async def by_ids(
        self, key: SessionKey, message_ids: Sequence[str]
    ) -> Sequence[OriginalMessage]:
        """Return the messages with these ids, in order; unknown ids are left out."""
        named = [
            parts
            for message_id in message_ids
            if (parts := split_message_id(message_id)) is not None
        ]
        async with self._session(key) as (connection, sid):
            event_ids = {event_id for event_id, _ in named}
            of_agent = (
                (events.c.agent_id == key.agent_id)
                & (events.c.sid == sid)
                & events.c.event_id.in_(event_ids)
            )
            rows = await connection.execute(
                select(events.c.event_id, events.c.stream_seq).where(of_agent)
            )
            seqs: dict[str, int] = {row.event_id: row.stream_seq for row in rows}
            places = [
                position_of(seqs[event_id], index)
                for event_id, index in named
                if event_id in seqs and index < MESSAGES_PER_EVENT
            ]
            chosen = ORIGINALS.where(
                messages.c.sid == sid, messages.c.position.in_(places)
            ).order_by(messages.c.position)
            return await _originals(connection, chosen)

    async def counts(self, key: SessionKey) -> SessionCounts:
        """Return the counts of a session."""
        async with self._session(key) as (connection, sid):
            return (await _counts(connection, _SESSIONS.where(sessions.c.sid == sid)))[0]

    async def wishes(self, key: SessionKey | AgentId) -> tuple[PolicyOverrides, PolicyOverrides]:
        """Return the policy overrides of an agent and its session; empty if there are none."""
        agent_id, session_id = key if isinstance(key, SessionKey) else (key, None)
        of_agent = select(agents.c.preset, agents.c.mode, agents.c.overrides).where(
            agents.c.agent_id == agent_id
        )
        is_session = (sessions.c.agent_id == agent_id) & (sessions.c.session_id == session_id)
        of_session = select(sessions.c.preset, sessions.c.mode, sessions.c.overrides).where(
            is_session
        )
        async with self._database.read() as connection:
            first, second = [
                (await connection.execute(wanted)).one_or_none()
                for wanted in (of_agent, of_session)
            ]
        return PolicyOverrides(*(first or ())), PolicyOverrides(*(second or ()))

    async def sessions(
        self, *, agent_ids: Collection[str] | None, limit: int, after: tuple[int, int] | None = None
    ) -> Sequence[SessionCounts]:
        """Return sessions after a sort key, of these agents or of all, newest event first."""
        at_ms = func.coalesce(sessions.c.last_event_at_ms, literal_column("-1"))
        chosen = _SESSIONS.order_by(at_ms.desc(), sessions.c.sid).limit(limit)
        if after is not None:
            chosen = chosen.where(
                or_(at_ms < after[0], (at_ms == after[0]) & (sessions.c.sid > after[1]))
            )
        if agent_ids is not None:
            chosen = chosen.where(sessions.c.agent_id.in_(agent_ids))
        async with self._database.read() as connection:
            return await _counts(connection, chosen)

    async def versions(
        self, key: SessionKey, version: int | None = None
    ) -> tuple[int | None, Sequence[StoredSummary]]:
        """Return the version in force, and all versions (or one), oldest first."""
        async with self._session(key) as (connection, sid):
            in_force = (
                await connection.execute(select(sessions.c.version).where(sessions.c.sid == sid))
            ).scalar()
            chosen = (
                select(*SUMMARY_COLUMNS).where(summaries.c.sid == sid).order_by(summaries.c.version)
            )
            if version is not None:
                chosen = chosen.where(summaries.c.version == version)
            return in_force, [summary_of(row) for row in await connection.execute(chosen)]

    async def audit(self, key: SessionKey, *, after: int, limit: int) -> Sequence[AuditRow]:
        """Return audit rows after an ordinal. They are kept when the session is erased."""
        is_chain = (
            (audit.c.agent_id == key.agent_id)
            & (audit.c.session_id == key.session_id)
            & (audit.c.ordinal > literal(after, BigInteger))
        )
        async with self._database.read() as connection:
            rows = await connection.execute(
                select(*_AUDIT).where(is_chain).order_by(audit.c.ordinal).limit(limit)
            )
            return [AuditRow(*row) for row in rows]

    async def dead_letters(self, *, after: int, limit: int) -> Sequence[DeadLetterRow]:
        """Return dead letters after an id, oldest first."""
        chosen = (
            select(*DEAD)
            .where(dead_letters.c.dead_letter_id > after)
            .order_by(dead_letters.c.dead_letter_id)
            .limit(limit)
        )
        async with self._database.read() as connection:
            return [DeadLetterRow(*row) for row in await connection.execute(chosen)]

    async def dead_letter_counts(self) -> Mapping[str, int]:
        """Return the number of dead letters by reason."""
        by_reason = select(dead_letters.c.reason, func.count()).group_by(dead_letters.c.reason)
        async with self._database.read() as connection:
            return {row[0]: row[1] for row in await connection.execute(by_reason)}

    @asynccontextmanager
    async def _session(self, key: SessionKey) -> AsyncGenerator[tuple[AsyncConnection, int]]:
        async with self._database.read() as connection:
            is_session = (sessions.c.agent_id == key.agent_id) & (
                sessions.c.session_id == key.session_id
            )
            sid = (await connection.execute(select(sessions.c.sid).where(is_session))).scalar()
            if sid is None:
                raise UnknownSession("nothing was published in this session yet")
            yield connection, sid


async def _originals(
    connection: AsyncConnection, chosen: Select[*tuple[Any, ...]]
) -> list[OriginalMessage]:
    return [original_of(row) for row in await connection.execute(chosen)]


def original_of(row: Sequence[Any]) -> OriginalMessage:
    """Build a message from a row of `ORIGINALS`."""
    position, event_id, compaction_id, is_covered, body, original, is_meta = row
    state = state_of(is_evicted=compaction_id is not None, is_covered=bool(is_covered))
    return OriginalMessage(
        f"{event_id}#{position % MESSAGES_PER_EVENT}",
        position,
        state,
        body,
        original,
        bool(is_meta),
    )


async def _counts(
    connection: AsyncConnection, chosen: Select[*tuple[Any, ...]]
) -> list[SessionCounts]:
    return [SessionCounts(*row) for row in await connection.execute(chosen)]


_live = (
    select(func.count())
    .select_from(messages)
    .where(messages.c.sid == sessions.c.sid, is_live)
    .scalar_subquery()
)
_pending = (
    select(func.coalesce(func.sum(compactions.c.messages_evicted), 0))
    .where(
        compactions.c.sid == sessions.c.sid,
        is_pending,
    )
    .scalar_subquery()
)
_SESSIONS = select(
    sessions.c.agent_id,
    sessions.c.session_id,
    sessions.c.model,
    func.coalesce(sessions.c.preset, agents.c.preset),
    func.coalesce(sessions.c.mode, agents.c.mode),
    sessions.c.messages_total,
    _live,
    _pending,
    sessions.c.tokens_total,
    sessions.c.live_tokens,
    sessions.c.factor,
    sessions.c.version,
    sessions.c.versions,
    sessions.c.compactions,
    sessions.c.audit_rows,
    sessions.c.audit_hash,
    sessions.c.last_event_at_ms,
    sessions.c.reported_tokens,
    sessions.c.usage_evictions,
    sessions.c.failures,
    sessions.c.cooldown_until_ms,
    sessions.c.cooldown_reason,
    sessions.c.sid,
).outerjoin(agents, agents.c.agent_id == sessions.c.agent_id)
_AUDIT = [
    audit.c[name]
    for name in (
        "ordinal", "at_ms", "agent_id", "session_id", "compaction_id", "phase", "reason",
        "tokens_before", "tokens_after", "details", "prev_hash", "hash", "actor",
    )
]  # fmt: skip
DEAD = [
    dead_letters.c[name]
    for name in (
        "dead_letter_id",
        "at_ms",
        "subject",
        "stream_seq",
        "reason",
        "detail",
        "size_bytes",
        "replayed_at_ms",
    )
]
