"""Sessions, and what ingest writes of them: events, messages, tool calls and usage reports."""

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.types import BIG


def create() -> None:
    """Create the sessions and what ingest writes."""
    _create_sessions()
    _create_events()
    _create_messages()
    _create_calls_and_usage_reports()


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("sid", BIG, autoincrement=True, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("preset", sa.Text(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=True),
        sa.Column("overrides", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("model_seq", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("revision", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("messages_total", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("tokens_total", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("live_messages", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("live_tokens", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("factor", sa.Float(), server_default=sa.text("1.0"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("versions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("compactions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_rows", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_hash", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("last_event_at_ms", BIG, nullable=True),
        sa.Column("evicted_changes", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("rounds", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("idle_at_ms", BIG, nullable=True),
        sa.Column("reported_seq", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("reported_at_ms", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("reported_tokens", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("usage_evictions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cooldown_until_ms", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("cooldown_reason", sa.Text(), nullable=True),
        sa.Column("held_to_tokens", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("unindexed_from", BIG, nullable=True),
        sa.CheckConstraint(
            "live_messages >= 0 AND live_tokens >= 0", name=op.f("ck_sessions_live")
        ),
        sa.PrimaryKeyConstraint("sid", name=op.f("pk_sessions")),
        sa.UniqueConstraint("agent_id", "session_id", name=op.f("uq_sessions_agent_id_session_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_sessions_idle",
        "sessions",
        ["idle_at_ms"],
        unique=False,
        sqlite_where=sa.text("idle_at_ms IS NOT NULL"),
        postgresql_where=sa.text("idle_at_ms IS NOT NULL"),
    )
    op.create_index(
        "ix_sessions_unindexed",
        "sessions",
        ["unindexed_from"],
        unique=False,
        sqlite_where=sa.text("unindexed_from IS NOT NULL"),
        postgresql_where=sa.text("unindexed_from IS NOT NULL"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("stream_seq", BIG, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_events_sid")),
        sa.PrimaryKeyConstraint("agent_id", "event_id", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_events_sid", "events", ["sid"], unique=False)
    op.create_table(
        "duplicate_events",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_duplicate_events_sid")),
        sa.PrimaryKeyConstraint("sid", "stream_seq", name=op.f("pk_duplicate_events")),
        sqlite_with_rowid=False,
    )


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("content_tokens", sa.Integer(), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=False),
        sa.Column("characters", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("is_meta", sa.Boolean(), nullable=False),
        sa.Column("is_irregular", sa.Boolean(), nullable=False),
        sa.Column("is_truncated", sa.Boolean(), nullable=False),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column("calls", sa.Text(), nullable=True),
        sa.Column("tool_call_id", sa.Text(), nullable=True),
        sa.Column("content_digest", sa.LargeBinary(), nullable=True),
        sa.Column("answers_position", BIG, nullable=True),
        sa.Column("answers_slot", sa.Integer(), nullable=True),
        sa.Column("is_copy", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at_ms", BIG, nullable=False),
        sa.Column("compaction_id", BIG, nullable=True),
        sa.Column("cuts", sa.Text(), nullable=True),
        sa.Column("original", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "role IN ('system', 'developer', 'user', 'assistant', 'tool')",
            name=op.f("ck_messages_role"),
        ),
        sa.CheckConstraint(
            "(answers_position IS NULL) = (answers_slot IS NULL)", name=op.f("ck_messages_answer")
        ),
        sa.CheckConstraint(
            "NOT (is_copy AND answers_position IS NOT NULL)",
            name=op.f("ck_messages_copy_answers_nothing"),
        ),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_messages_sid")),
        sa.PrimaryKeyConstraint("sid", "position", name=op.f("pk_messages")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_messages_live",
        "messages",
        ["sid", "position"],
        unique=False,
        sqlite_where=sa.text("compaction_id IS NULL"),
        postgresql_where=sa.text("compaction_id IS NULL"),
    )
    op.create_index(
        "ix_messages_results",
        "messages",
        ["sid", "tool_call_id", "position"],
        unique=False,
        sqlite_where=sa.text("tool_call_id IS NOT NULL"),
        postgresql_where=sa.text("tool_call_id IS NOT NULL"),
    )


def _create_calls_and_usage_reports() -> None:
    op.create_table(
        "tool_calls",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_tool_calls_sid")),
        sa.PrimaryKeyConstraint("sid", "call_id", "position", "slot", name=op.f("pk_tool_calls")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage_reports",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_usage_reports_sid")),
        sa.PrimaryKeyConstraint("sid", "position", name=op.f("pk_usage_reports")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_usage_reports_model", "usage_reports", ["agent_id", "model", "position"], unique=False
    )
