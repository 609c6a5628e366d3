"""Tables of the whole installation: policies, campaigns, the audit and the state of the streams."""

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.types import BIG


def create() -> None:
    """Create the tables that do not refer to a session."""
    _create_policies_and_secrets()
    _create_audit()
    _create_campaigns_and_token_usage()
    _create_dead_letters_and_outbox()
    _create_erasures()
    _create_stream_state()


def _create_policies_and_secrets() -> None:
    op.create_table(
        "agents",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("preset", sa.Text(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=True),
        sa.Column("overrides", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_agents")),
    )
    op.create_table(
        "installation_secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation_secrets")),
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("audit_id", BIG, autoincrement=True, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("compaction_id", BIG, nullable=True),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("tokens_before", BIG, nullable=True),
        sa.Column("tokens_after", BIG, nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("prev_hash", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
        sa.UniqueConstraint(
            "agent_id", "session_id", "ordinal", name=op.f("uq_audit_agent_id_session_id_ordinal")
        ),
        sqlite_autoincrement=True,
    )


def _create_campaigns_and_token_usage() -> None:
    op.create_table(
        "campaigns",
        sa.Column("campaign_id", BIG, autoincrement=False, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("at_once", sa.Integer(), nullable=False),
        sa.Column("last_sid", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("until_sid", BIG, nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("requested_at_ms", BIG, nullable=False),
        sa.Column("finished_at_ms", BIG, nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_campaigns")),
    )
    op.create_index(
        "ix_campaigns_unfinished",
        "campaigns",
        ["requested_at_ms"],
        unique=False,
        sqlite_where=sa.text("finished_at_ms IS NULL"),
        postgresql_where=sa.text("finished_at_ms IS NULL"),
    )
    op.create_table(
        "summary_token_usage",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "day", name=op.f("pk_summary_token_usage")),
        sqlite_with_rowid=False,
    )


def _create_dead_letters_and_outbox() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("dead_letter_id", BIG, autoincrement=True, nullable=False),
        sa.Column("stream_seq", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("size_bytes", BIG, nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("replayed_at_ms", BIG, nullable=True),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("dead_letter_id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("stream_seq", name=op.f("uq_dead_letters_stream_seq")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "outbox",
        sa.Column("outbox_id", BIG, autoincrement=True, nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("pk_outbox")),
        sqlite_autoincrement=True,
    )


def _create_erasures() -> None:
    op.create_table(
        "erased_events",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_erased_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "erasures",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("audit_rows", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_hash", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "session_id", name=op.f("pk_erasures")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "index_removals",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_index_removals")),
    )
    op.create_table(
        "stream_purges",
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("stream_seq", name=op.f("pk_stream_purges")),
    )


def _create_stream_state() -> None:
    op.create_table(
        "stream",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_stream")),
    )
    op.create_table(
        "ingested_ranges",
        sa.Column("first_seq", BIG, autoincrement=False, nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.CheckConstraint("first_seq <= last_seq", name=op.f("ck_ingested_ranges_rising")),
        sa.PrimaryKeyConstraint("first_seq", name=op.f("pk_ingested_ranges")),
    )
    op.create_table(
        "session_counts",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("total", BIG, server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_session_counts")),
        sqlite_with_rowid=False,
    )
