"""The first schema: sessions, their messages, compactions, summaries and an append-only audit.

Its parts are in `turnfold_migrations.first_schema`, divided by topic.
"""

import secrets

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema import (
    compaction_tables,
    installation_tables,
    session_tables,
)
from turnfold_migrations.first_schema.search import PLANNER_STATISTICS, WORD_INDEX
from turnfold_migrations.first_schema.triggers import (
    AUDIT_IS_APPEND_ONLY,
    COUNT_SESSIONS,
    SESSION_CHECKS,
)
from turnfold_migrations.first_schema.views import MESSAGE_TEXT, VIEWS, create_view

revision = "1001"
down_revision = None

TABLES = (
    "agents",
    "audit",
    "campaigns",
    "dead_letters",
    "erased_events",
    "erasures",
    "index_removals",
    "ingested_ranges",
    "installation_secrets",
    "outbox",
    "session_counts",
    "sessions",
    "stream",
    "stream_purges",
    "summary_token_usage",
    "chunk_summaries",
    "compactions",
    "coverage",
    "duplicate_events",
    "events",
    "messages",
    "restorations",
    "summaries",
    "summary_activations",
    "tool_calls",
    "usage_reports",
)
FUNCTIONS = (
    "message_text",
    "sessions_have_no_rows",
    "rows_stay_in_sessions",
    "rows_need_sessions",
    "count_sessions_gone",
    "count_sessions_made",
    "audit_is_append_only",
)


def upgrade() -> None:
    """Create everything in an empty database."""
    connection = op.get_bind()
    dialect = connection.dialect.name
    installation_tables.create()
    session_tables.create()
    compaction_tables.create()
    for statement in (
        *AUDIT_IS_APPEND_ONLY[dialect],
        *COUNT_SESSIONS[dialect],
        *WORD_INDEX[dialect],
        *(PLANNER_STATISTICS if dialect == "sqlite" else [*SESSION_CHECKS, MESSAGE_TEXT]),
    ):
        op.execute(statement)
    for name, select in VIEWS.items():
        create_view(name, select)
    connection.execute(
        sa.text("INSERT INTO installation_secrets (name, value) VALUES ('actor', :value)"),
        {"value": secrets.token_hex(32)},
    )


def downgrade() -> None:
    """Remove everything."""
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    op.execute("DROP TABLE word_index")
    for table in reversed(TABLES):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        for function in FUNCTIONS:
            op.execute(f"DROP FUNCTION {function}")
