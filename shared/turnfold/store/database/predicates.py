"""SQL conditions that several statements share.

Values are literals and never parameters: a planner uses a partial index only if the statement shows
what the index excludes. For the same reason `is_uncovered` is text: SQLite's planner does not
recognize `is_covered = 0`.
"""

from sqlalchemy import String, literal_column, text

from turnfold.store.database.schema import compactions, messages

_PENDING = literal_column("'pending'", String)
_RUNNING = literal_column("'running'", String)
_COMMITTED = literal_column("'committed'", String)

is_open = compactions.c.status.in_([_PENDING, _RUNNING])
"""The compaction waits for its summary."""

is_running = is_open & (compactions.c.status == _RUNNING)
"""A worker holds the compaction. The first half lets the index of open compactions answer."""

is_covered = text("is_covered")
is_uncovered = text("NOT is_covered")

is_pending = is_uncovered & compactions.c.status.in_([_PENDING, _RUNNING, _COMMITTED])
"""No summary in force covers the messages of the compaction."""

is_planned = (
    is_uncovered & is_open & compactions.c.first_position.is_(None) & compactions.c.wanted.is_(None)
)
"""The messages of the compaction leave when their summary is committed (`commit = on_summary`)."""

is_live = messages.c.compaction_id.is_(None)
"""The message was not evicted."""
