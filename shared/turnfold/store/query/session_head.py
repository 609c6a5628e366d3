"""Read a session's row with its policies, and the sequence that ingest has reached."""

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    true,
)

from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.errors import UnknownSession
from turnfold.messages import SessionKey
from turnfold.ports.query import (
    SessionSnapshot,
    StoredSummary,
    WindowSnapshot,
)
from turnfold.store.database.message_rows import FACTS
from turnfold.store.database.predicates import is_kept, is_live, is_version, unseen
from turnfold.store.database.schema import (
    agents,
    dead_letters,
    messages,
    sessions,
    summaries,
)
from turnfold.store.database.sequence_ranges import INGESTED_TO
from turnfold.store.database.session_rows import OVERRIDES
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.query.message_cache import FEW

_ONE = select(literal_column("1").label("one")).subquery("one")
# In the order of `SessionSnapshot`, after its overrides: a row fills the fields by position.
_SESSION_COLUMNS = [sessions.c[of_row.name] for of_row in fields(SessionSnapshot)[3:]]
SUMMARY_COLUMNS = [
    *(
        summaries.c[name]
        for name in (
            "version",
            "base_version",
            "kind",
            "style",
            "model",
            "text",
            "sections",
            "ledger",
            "tokens",
        )
    ),
    summaries.c.text_tokens,
    func.coalesce(summaries.c.cuts, literal_column("''")),
    *(summaries.c[name] for name in ("covers_first", "covers_last", "messages_covered")),
    cast(summaries.c.compaction_id, Text),
    summaries.c.created_at_ms,
    summaries.c.last_position,
]
_SUMMARY = Prepared(select(*SUMMARY_COLUMNS).where(is_version), ("of_sid", "number"))
LOOKED_UP_AT_ONCE = 500
"""The most sessions of one statement that looks whether they are stored."""
MOST_REFUSED = 10_000
"""Refused events of a session are counted up to this number."""
_REFUSED = (
    select(func.count())
    .select_from(
        select(literal_column("1"))
        .where(
            dead_letters.c.agent_id == bindparam("agent_id"),
            dead_letters.c.session_id == bindparam("session_id"),
            dead_letters.c.stream_seq <= bindparam("refused_to"),
            dead_letters.c.replayed_at_ms.is_(None),
        )
        .limit(literal_column(str(MOST_REFUSED)))
        .subquery()
    )
    .scalar_subquery()
)
_head_columns = [INGESTED_TO, _REFUSED, sessions.c.sid, *OVERRIDES, *_SESSION_COLUMNS]
# From a row that always exists: what is ingested and the policy of the agent are also read for a
# session without a row.
_of_head = _ONE.outerjoin(
    sessions,
    (sessions.c.agent_id == bindparam("agent_id"))
    & (sessions.c.session_id == bindparam("session_id")),
).outerjoin(agents, agents.c.agent_id == bindparam("agent_id"))
_HEAD = Prepared(
    select(*_head_columns).select_from(_of_head), ("agent_id", "session_id", "refused_to")
)
_newest = (
    select(*FACTS, messages.c.body)
    .where(
        messages.c.sid == sessions.c.sid,
        is_live,
        messages.c.position > unseen(bindparam("after", type_=BigInteger)),
    )
    .order_by(messages.c.position)
    .limit(literal_column(str(FEW)))
    .lateral("newest")
)
_HEAD_AND_NEWEST = Prepared(
    select(*_head_columns, _newest).select_from(_of_head.outerjoin(_newest, true())),
    ("agent_id", "session_id", "refused_to", "after"),
)


def is_of(table: Table, key: SessionKey) -> ColumnElement[bool]:
    """Return the condition that a row names this session."""
    return (table.c.agent_id == key.agent_id) & (table.c.session_id == key.session_id)


def session_row(
    connection: Connection, key: SessionKey, *columns: ColumnElement[Any]
) -> Row[*tuple[Any, ...]]:
    """Return these columns of a session; fail with `UnknownSession` if there is none."""
    row = connection.execute(select(*columns).where(is_of(sessions, key))).one_or_none()
    if row is None:
        raise UnknownSession
    return row


def read_head(connection: SupportsStatements, key: SessionKey, refused_to: int) -> WindowSnapshot:
    """Read the session row, without its summary and messages."""
    (row,) = _HEAD.rows(connection, key.agent_id, key.session_id, refused_to)
    return _head_of(row)


def read_head_and_newest(
    connection: SupportsStatements, key: SessionKey, refused_to: int, after: int
) -> tuple[WindowSnapshot, Sequence[Sequence[Any]]]:
    """Read the same and the live messages after a position, in one statement of PostgreSQL.

    They are rows of `FACTS` and the text, `FEW` at most.
    """
    rows = _HEAD_AND_NEWEST.rows(connection, key.agent_id, key.session_id, refused_to, after)
    width = len(_head_columns)
    newest = [row[width:] for row in rows]
    return _head_of(rows[0][:width]), newest if newest[0][0] is not None else ()


def _head_of(row: Sequence[Any]) -> WindowSnapshot:
    ingested_to, refused, sid = row[:3]
    wishes, agent_wishes = PolicyOverrides(*row[3:6]), PolicyOverrides(*row[6:9])
    if sid is None:
        return WindowSnapshot(ingested_to, None, refused=refused, agent_wishes=agent_wishes)
    session = SessionSnapshot(sid, wishes, agent_wishes, *row[9:])
    return WindowSnapshot(ingested_to, session, refused=refused)


def read_summary(
    connection: SupportsStatements, sid: int, version: int | None
) -> StoredSummary | None:
    """Read a version of a session; None if it has no such version."""
    rows = () if version is None else _SUMMARY.rows(connection, sid, version)
    return StoredSummary(*rows[0]) if rows else None


def missing_sessions(connection: Connection, numbers: Collection[int]) -> set[int]:
    """Return those of these session numbers that are not stored."""
    left, stored = sorted(numbers), set[int]()
    for start in range(0, len(left), LOOKED_UP_AT_ONCE):
        portion = left[start : start + LOOKED_UP_AT_ONCE]
        # The row of an erased session stays until the rest of its rows are deleted.
        found = select(sessions.c.sid).where(sessions.c.sid.in_(portion), is_kept)
        stored.update(connection.execute(found).scalars())
    return set(numbers) - stored
