"""One read, one snapshot: a session's row, its summary, what is pending, what is live, and the texts of what is shown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, literal_column, select, text

from turnfold.core.precedence import Wishes
from turnfold.messages import CompactionId, Message, SessionKey
from turnfold.ports import Chosen, PendingEviction, SessionFacts, StoredSummary, WindowFacts
from turnfold.store.bulk import Prepared
from turnfold.store.engine import Database
from turnfold.store.rows import FACTS, message_of
from turnfold.store.schema import agents, compactions, ingested, messages, sessions, summaries

_INGESTED_TO = select(ingested.c.last_seq).where(ingested.c.first_seq == literal_column("1")).scalar_subquery()
_ONE = select(literal_column("1").label("one")).subquery("one")
_SESSION_COLUMNS = [
    sessions.c[name]
    for name in (
        "model", "revision", "messages_total", "tokens_total", "live_messages", "live_tokens", "factor", "version", "versions",
        "compactions", "audit_rows", "audit_hash", "last_event_at_ms",
    )
]  # fmt: skip
SUMMARY_COLUMNS = [
    summaries.c[name]
    for name in (
        "version", "base_version", "kind", "style", "model", "text", "sections", "ledger", "tokens", "text_tokens", "cuts",
        "covers_first", "covers_last", "messages_covered", "compaction_id", "created_at_ms",
    )
]  # fmt: skip
_HEAD = Prepared(
    select(
        func.coalesce(_INGESTED_TO, literal_column("0")),
        sessions.c.sid,
        sessions.c.preset,
        sessions.c.mode,
        sessions.c.overrides,
        agents.c.preset,
        agents.c.mode,
        agents.c.overrides,
        *_SESSION_COLUMNS,
        *SUMMARY_COLUMNS,
    ).select_from(
        _ONE.outerjoin(sessions, (sessions.c.agent_id == bindparam("agent_id")) & (sessions.c.session_id == bindparam("session_id")))
        .outerjoin(agents, agents.c.agent_id == sessions.c.agent_id)
        .outerjoin(summaries, (summaries.c.sid == sessions.c.sid) & (summaries.c.version == sessions.c.version))
    ),
    ("agent_id", "session_id"),
)
_PENDING = Prepared(
    select(
        compactions.c.compaction_id,
        compactions.c.messages_evicted,
        compactions.c.tokens_evicted,
        compactions.c.digest,
        compactions.c.digest_tokens,
        compactions.c.requested_at_ms,
        compactions.c.first_position,
        compactions.c.last_position,
    )
    .where(
        compactions.c.sid == bindparam("of_sid"),
        text("NOT is_covered AND status IN ('pending', 'running', 'committed') AND messages_evicted > 0"),
    )
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_live = (
    select(*FACTS, messages.c.body)
    .where(messages.c.sid == bindparam("of_sid"), messages.c.compaction_id.is_(None))
    .order_by(messages.c.position)
)
_LIVE = Prepared(_live, ("of_sid",))
_LIVE_FACTS = Prepared(_live.with_only_columns(*FACTS), ("of_sid",))
_EVICTED = (
    select(*FACTS, messages.c.body)
    .where(
        messages.c.sid == bindparam("of_sid"),
        messages.c.position.between(bindparam("first"), bindparam("last")),
        messages.c.compaction_id.in_(bindparam("by", expanding=True)),
    )
    .order_by(messages.c.position)
)
_BODIES = select(messages.c.position, messages.c.body).where(
    messages.c.sid == bindparam("of_sid"), messages.c.position.in_(bindparam("positions", expanding=True))
)
TEXTS_AT_ONCE = 256
"""Up to so many live messages their texts are read together with their numbers; beyond, only those that are shown."""


class SqlWindows:
    """Windows in a database; see `turnfold.ports.WindowStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def window(
        self,
        key: SessionKey,
        *,
        glance: Callable[[WindowFacts], Chosen | None],
        choose: Callable[[WindowFacts], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session in one snapshot."""

        def read(connection: Connection) -> tuple[Chosen, Mapping[int, str]]:
            facts = _head(connection, key)
            seen = glance(facts)
            if seen is not None:
                return seen, {}
            if facts.session is None:
                return choose(facts)[0], {}
            found, bodies = _messages(connection, facts, facts.session)
            chosen, positions = choose(found)
            missing = [position for position in positions if position not in bodies]
            for start in range(0, len(missing), TEXTS_AT_ONCE):
                some = {"of_sid": facts.session.sid, "positions": missing[start : start + TEXTS_AT_ONCE]}
                bodies.update((position, body) for position, body in connection.execute(_BODIES, some))
            return chosen, bodies

        return await self._database.snapshot(read)


def _head(connection: Connection, key: SessionKey) -> WindowFacts:
    (row,) = _HEAD.rows(connection, key.agent_id, key.session_id)
    if row[1] is None:
        return WindowFacts(row[0], None)
    wishes, agent_wishes = Wishes(*row[2:5]), Wishes(*row[5:8])
    end = 8 + len(_SESSION_COLUMNS)
    session = SessionFacts(row[1], wishes, agent_wishes, *row[8:end])
    return WindowFacts(row[0], session, None if row[end] is None else summary_of(row[end:]))


def summary_of(row: Sequence[Any]) -> StoredSummary:
    """A version from the columns that `_HEAD` reads of it."""
    told: dict[str, Any] = dict(zip((column.name for column in SUMMARY_COLUMNS), row, strict=True))
    told["cuts"] = told["cuts"] or ""
    told["compaction_id"] = CompactionId(str(told["compaction_id"]))
    return StoredSummary(**told)


def _messages(connection: Connection, facts: WindowFacts, session: SessionFacts) -> tuple[WindowFacts, dict[int, str]]:
    pending = _PENDING.rows(connection, session.sid)
    evicted: Sequence[Sequence[Any]] = ()
    if pending:
        span = {"first": min(row[6] for row in pending), "last": max(row[7] for row in pending), "by": [row[0] for row in pending]}
        evicted = [tuple[Any, ...](row) for row in connection.execute(_EVICTED, {"of_sid": session.sid} | span)]
    has_texts = session.live_messages <= TEXTS_AT_ONCE
    live = (_LIVE if has_texts else _LIVE_FACTS).rows(connection, session.sid)
    found = [message_of(row) for row in live]
    if evicted:
        found += [message_of(row) for row in evicted]
        found.sort(key=_position)
    bodies: dict[int, str] = {row[1]: row[-1] for row in evicted}
    if has_texts:
        bodies.update((row[1], row[-1]) for row in live)
    evictions = tuple(PendingEviction(CompactionId(str(row[0])), *row[1:6]) for row in pending)
    return WindowFacts(facts.ingested_to, session, facts.summary, evictions, tuple(found)), bodies


def _position(message: Message) -> int:
    return message.position
