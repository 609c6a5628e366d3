"""Read what is stored of sessions: messages, versions, audit rows and counts."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Select,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
)

from turnfold.core.history.as_of import AsOf
from turnfold.core.history.audit_chain import ChainEnd
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.errors import TooLarge, UnknownSession
from turnfold.messages import AgentId, SessionKey, position_of
from turnfold.ports.query import (
    END_POSITION,
    AuditRow,
    DeadLetterRow,
    ListPlace,
    OriginalMessage,
    SessionCounts,
    StatesThen,
    StoredSummary,
)
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.message_rows import named_place
from turnfold.store.database.predicates import is_kept, is_live, is_pending
from turnfold.store.database.schema import (
    agents,
    audit,
    compactions,
    dead_letters,
    erasures,
    events,
    messages,
    sessions,
    summaries,
)
from turnfold.store.query.as_of import states_as_of, timeline_state
from turnfold.store.query.carried import with_carry
from turnfold.store.query.originals import (
    BY_ID_CHARACTERS,
    PageReading,
    fitting_places,
    length_of,
    original_of,
    originals_in,
)
from turnfold.store.query.session_head import SUMMARY_COLUMNS, is_of, session_row


class SqlHistoryStore(SqlStore):
    """Histories in SQL; see `turnfold.ports.query.HistoryStore`."""

    async def page(
        self,
        key: SessionKey,
        *,
        after_position: int = 0,
        before_position: int = END_POSITION,
        limit: int,
        newest_first: bool = False,
        with_retracted: bool = False,
    ) -> Sequence[OriginalMessage]:
        """Return messages between two positions; fewer than `limit` if they are very long.

        With `newest_first`, return the last of them, newest first.
        """
        reading = PageReading(
            after_position,
            before_position,
            limit,
            newest_first=newest_first,
            with_retracted=with_retracted,
        )
        try:
            # Tried first: the way to a thread and back costs more than a page of short messages.
            return self._database.read_inline(
                lambda connection: reading.read_small(connection, key)
            )
        except WouldBlock:
            return await self._database.snapshot(lambda connection: reading.read(connection, key))

    async def has_messages(
        self,
        key: SessionKey,
        *,
        after_position: int = 0,
        before_position: int = END_POSITION,
        with_retracted: bool = False,
    ) -> bool:
        """Return whether the session has a message between two positions."""
        reading = PageReading(after_position, before_position, 1, with_retracted=with_retracted)
        return await self._database.read_small(
            lambda connection: reading.finds_any(connection, key)
        )

    async def by_ids(
        self,
        key: SessionKey,
        message_ids: Sequence[str],
        *,
        with_retracted: bool = False,
        is_cut: bool = False,
    ) -> Sequence[OriginalMessage]:
        """Return the messages with these ids, in order; unknown ids are left out.

        If `is_cut`, only the first are returned where all are too large together.

        Raises:
            TooLarge: they are, and may not be cut.
        """
        source, originals = originals_in(with_retracted=with_retracted)
        named = [place for place in map(named_place, message_ids) if place is not None]

        def read(connection: Connection) -> Sequence[OriginalMessage]:
            (sid,) = session_row(connection, key, sessions.c.sid)
            event_ids = {event_id for event_id, _ in named}
            of_agent = (
                (events.c.agent_id == key.agent_id)
                & (events.c.sid == sid)
                & events.c.event_id.in_(event_ids)
            )
            placed = select(events.c.event_id, events.c.stream_seq).where(of_agent)
            seqs: dict[str, int] = {
                row.event_id: row.stream_seq for row in connection.execute(placed)
            }
            places = {
                position_of(seqs[event_id], index) for event_id, index in named if event_id in seqs
            }
            wanted = (source.c.sid == sid) & source.c.position.in_(places)
            sizes = select(source.c.position, length_of(source)).where(wanted)
            measured = connection.execute(sizes.order_by(source.c.position))
            in_order = [(position, size) for position, size in measured]
            fitting = fitting_places(in_order, BY_ID_CHARACTERS)
            if len(fitting) < len(in_order) and not is_cut:
                raise TooLarge(
                    f"these messages have more than {BY_ID_CHARACTERS} characters together;"
                    " ask for fewer messages at once"
                )
            chosen = originals.where(source.c.sid == sid, source.c.position.in_(fitting))
            rows = connection.execute(chosen.order_by(source.c.position))
            return with_carry(connection, sid, [original_of(row) for row in rows])

        return await self._database.snapshot(read)

    async def states_as_of(self, key: SessionKey, moment: AsOf) -> StatesThen:
        """Return the states of the messages at a moment.

        Raises:
            BadRequest: the session has no such version or message.
        """

        def read(connection: Connection) -> StatesThen:
            (sid,) = session_row(connection, key, sessions.c.sid)
            return states_as_of(connection, sid, timeline_state(connection, key, sid, moment))

        return await self._database.snapshot(read)

    async def counts(self, key: SessionKey) -> SessionCounts:
        """Return the counts of a session."""
        counts = await self._database.snapshot(
            lambda connection: _counts(connection, _SESSIONS.where(is_of(sessions, key)))
        )
        if not counts:
            raise UnknownSession
        return counts[0]

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

        def read(connection: Connection) -> tuple[PolicyOverrides, PolicyOverrides]:
            first = connection.execute(of_agent).one_or_none()
            second = connection.execute(of_session).one_or_none()
            return PolicyOverrides(*(first or ())), PolicyOverrides(*(second or ()))

        return await self._database.snapshot(read)

    async def sessions(
        self, *, agent_ids: Collection[str] | None, limit: int, after: ListPlace | None = None
    ) -> Sequence[SessionCounts]:
        """Return sessions after a place, of these agents or of all, newest event first."""
        # Sessions without events exist. Falling, null is first on PostgreSQL and last on SQLite.
        at_ms = func.coalesce(sessions.c.last_event_at_ms, literal_column("-1"))
        names = (sessions.c.agent_id, sessions.c.session_id)
        chosen = _SESSIONS.where(is_kept).order_by(at_ms.desc(), *names).limit(limit)
        if after is not None:
            is_after = tuple_(*names) > tuple_(*after[1:])
            chosen = chosen.where(or_(at_ms < after[0], (at_ms == after[0]) & is_after))
        if agent_ids is not None:
            chosen = chosen.where(sessions.c.agent_id.in_(agent_ids))
        return await self._database.snapshot(lambda connection: _counts(connection, chosen))

    async def versions(
        self, key: SessionKey, version: int | None = None
    ) -> tuple[int | None, Sequence[StoredSummary]]:
        """Return the version in force, and one version, or all without content, oldest first."""

        def read(connection: Connection) -> tuple[int | None, Sequence[StoredSummary]]:
            (sid,) = session_row(connection, key, sessions.c.sid)
            in_force = select(sessions.c.version).where(sessions.c.sid == sid)
            columns = _LISTED if version is None else SUMMARY_COLUMNS
            chosen = select(*columns).where(summaries.c.sid == sid).order_by(summaries.c.version)
            if version is not None:
                chosen = chosen.where(summaries.c.version == version)
            rows = connection.execute(chosen)
            return connection.execute(in_force).scalar(), [StoredSummary(*row) for row in rows]

        return await self._database.snapshot(read)

    async def audit(self, key: SessionKey, *, after: int, limit: int) -> Sequence[AuditRow]:
        """Return audit rows after an ordinal. They are kept when the session is erased."""
        is_chain = is_of(audit, key) & (audit.c.ordinal > literal(after, BigInteger))
        chosen = select(*_AUDIT).where(is_chain).order_by(audit.c.ordinal).limit(limit)
        return await self._database.snapshot(
            lambda connection: [AuditRow(*row) for row in connection.execute(chosen)]
        )

    async def chain_end(self, key: SessionKey) -> ChainEnd | None:
        """Return the end of a session's audit chain, even of an erased session; None if unknown."""

        def read(connection: Connection) -> ChainEnd | None:
            # A session that came back after its erasure continues the chain.
            for table in (sessions, erasures):
                end = select(table.c.audit_rows, table.c.audit_hash).where(is_of(table, key))
                for row in connection.execute(end):
                    return ChainEnd(*row)
            return None

        return await self._database.snapshot(read)

    async def dead_letters(
        self, *, after: int, before: int | None = None, limit: int
    ) -> Sequence[DeadLetterRow]:
        """Return dead letters after an id, oldest first; with `before`, the newest before that."""
        number = dead_letters.c.dead_letter_id
        chosen = select(*DEAD).where(number > after).order_by(number).limit(limit)
        if before is not None:
            chosen = chosen.where(number < before).order_by(None).order_by(number.desc())
        return await self._database.snapshot(
            lambda connection: [DeadLetterRow(*row) for row in connection.execute(chosen)]
        )

    async def dead_letter_counts(self) -> Mapping[str, int]:
        """Return the number of dead letters by reason."""
        by_reason = select(dead_letters.c.reason, func.count()).group_by(dead_letters.c.reason)
        return await self._database.snapshot(
            lambda connection: {row[0]: row[1] for row in connection.execute(by_reason)}
        )


def _counts(connection: Connection, chosen: Select[*tuple[Any, ...]]) -> list[SessionCounts]:
    return [SessionCounts(*row) for row in connection.execute(chosen)]


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
_NO_CONTENT = {"text": "''", "sections": "'{}'", "ledger": "'[]'"}
# A session has any number of versions, and the content of one takes milliseconds to prepare.
_LISTED = [
    literal_column(_NO_CONTENT[name])
    if isinstance(column, Column) and (name := column.name) in _NO_CONTENT
    else column
    for column in SUMMARY_COLUMNS
]
_AUDIT = [audit.c[name] for name in AuditRow._fields]
DEAD = [dead_letters.c[name] for name in DeadLetterRow._fields]
