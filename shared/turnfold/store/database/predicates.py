"""SQL conditions that several statements share.

Constants are literals and no parameters: a planner uses a partial index only if the statement
shows what the index excludes. For the same reason `is_uncovered` is text: SQLite's
planner does not recognize `is_covered = 0`.
"""

from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    ScalarSelect,
    String,
    bindparam,
    func,
    literal_column,
    select,
    text,
)

from turnfold.ports.compact import JobStatus
from turnfold.store.database.schema import PINNABLE, compactions, messages, sessions, summaries


def has_status(*statuses: JobStatus) -> ColumnElement[bool]:
    """Return the condition for compactions with one of these statuses."""
    names = [literal_column(f"'{status}'", String) for status in statuses]
    return compactions.c.status == names[0] if len(names) == 1 else compactions.c.status.in_(names)


is_open = has_status(JobStatus.PENDING, JobStatus.RUNNING)
"""The compaction waits for its summary."""

is_running = is_open & has_status(JobStatus.RUNNING)
"""A worker holds the compaction. The first half lets the index of open compactions answer."""

is_covered = text("is_covered")
is_uncovered = text("NOT is_covered")

is_pending = is_uncovered & has_status(JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMMITTED)
"""No summary in force covers the messages of the compaction."""

is_planned = (
    is_uncovered & is_open & compactions.c.first_position.is_(None) & compactions.c.wanted.is_(None)
)
"""The messages of the compaction leave when their summary is committed (`commit = on_summary`)."""

is_live = messages.c.compaction_id.is_(None)
"""The message was not evicted."""

is_pinnable = text(PINNABLE)
"""The message is a system message that begins its event."""

of_compactions = compactions.c.sid == bindparam("of_sid")
of_messages = messages.c.sid == bindparam("of_sid")
is_version = (summaries.c.sid == bindparam("of_sid")) & (summaries.c.version == bindparam("number"))


def in_range(table: FromClause) -> ColumnElement[bool]:
    """Return the condition for the rows of a session from one position to another."""
    is_between = table.c.position.between(bindparam("first"), bindparam("last"))
    return (table.c.sid == bindparam("of_sid")) & is_between


ERASED_AGENT = ""
"""The agent id of erased sessions whose rows are not all deleted yet; real ids are never empty."""
_ERASED_AGENT = literal_column("''", String)

is_erased = sessions.c.agent_id == _ERASED_AGENT
is_kept = sessions.c.agent_id != _ERASED_AGENT
"""The session is not erased. Only for statements that find sessions by other columns than ids."""


def is_of_kept(sid: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a row belongs to no erased session.

    Few sessions are erased at a time, so the database reads their numbers once per statement.
    """
    return sid.not_in(select(sessions.c.sid).where(is_erased))


def unseen(parameter: BindParameter[Any]) -> ScalarSelect[Any]:
    """Return a parameter whose value PostgreSQL's planner does not see.

    It would plan a statement with a range anew for each value, which takes longer than to run it.
    """
    return select(parameter).scalar_subquery()


def answer_place(reports: FromClause) -> ColumnElement[int]:
    """Return where the answers of reports stand, as their index has it; see `answer_position`."""
    return func.coalesce(reports.c.answer_position, reports.c.position)
