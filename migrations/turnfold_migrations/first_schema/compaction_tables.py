"""Compactions, and what they write: summaries, their coverage and their activations."""

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.types import BIG


def create() -> None:
    """Create the compactions and what they write; the sessions must exist."""
    _create_compactions()
    _create_compaction_indexes()
    _create_chunk_summaries()
    _create_summaries()
    _create_restorations()


def _create_compactions() -> None:
    op.create_table(
        "compactions",
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("is_covered", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("budget_tokens", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("first_position", BIG, nullable=True),
        sa.Column("last_position", BIG, nullable=True),
        sa.Column("messages_evicted", sa.Integer(), nullable=False),
        sa.Column("tokens_evicted", BIG, nullable=False),
        sa.Column("tokens_before", BIG, nullable=False),
        sa.Column("tokens_after", BIG, nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("digest_tokens", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("fence", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_until_ms", BIG, nullable=True),
        sa.Column("next_attempt_at_ms", BIG, nullable=False),
        sa.Column("requested_at_ms", BIG, nullable=False),
        sa.Column("finished_at_ms", BIG, nullable=True),
        sa.Column("evicted_at_ms", BIG, nullable=True),
        sa.Column("restored_at_ms", BIG, nullable=True),
        sa.Column("wanted", sa.Text(), nullable=True),
        sa.Column("campaign_id", BIG, nullable=True),
        sa.Column("trace", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(status = 'running') = (lease_until_ms IS NOT NULL)", name=op.f("ck_compactions_lease")
        ),
        sa.CheckConstraint(
            "NOT is_covered OR status = 'committed'", name=op.f("ck_compactions_covered")
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'committed', 'rejected', 'failed', 'stale',"
            " 'restored')",
            name=op.f("ck_compactions_status"),
        ),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_compactions_sid")),
        sa.PrimaryKeyConstraint("compaction_id", name=op.f("pk_compactions")),
        sa.UniqueConstraint("sid", "ordinal", name=op.f("uq_compactions_sid_ordinal")),
    )


def _create_compaction_indexes() -> None:
    op.create_index(
        "ix_compactions_campaign",
        "compactions",
        ["campaign_id"],
        unique=False,
        sqlite_where=sa.text("campaign_id IS NOT NULL"),
        postgresql_where=sa.text("campaign_id IS NOT NULL"),
    )
    op.create_index(
        "ix_compactions_open",
        "compactions",
        ["next_attempt_at_ms"],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'running')"),
        postgresql_where=sa.text("status IN ('pending', 'running')"),
    )
    op.create_index(
        "ix_compactions_pending",
        "compactions",
        ["sid"],
        unique=False,
        sqlite_where=sa.text("NOT is_covered"),
        postgresql_where=sa.text("NOT is_covered"),
    )


def _create_chunk_summaries() -> None:
    op.create_table(
        "chunk_summaries",
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_chunk_summaries_sid")),
        sa.PrimaryKeyConstraint("compaction_id", "digest", name=op.f("pk_chunk_summaries")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_chunk_summaries_session", "chunk_summaries", ["sid"], unique=False)


def _create_summaries() -> None:
    op.create_table(
        "summaries",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("base_version", sa.Integer(), nullable=True),
        sa.Column("compaction_id", BIG, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("style", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("prompt_version", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("sections", sa.Text(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("text_tokens", sa.Integer(), nullable=False),
        sa.Column("cuts", sa.Text(), nullable=True),
        sa.Column("first_position", BIG, nullable=False),
        sa.Column("last_position", BIG, nullable=False),
        sa.Column("covers_first", sa.Text(), nullable=False),
        sa.Column("covers_last", sa.Text(), nullable=False),
        sa.Column("messages_covered", BIG, nullable=False),
        sa.Column("depth", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("prompt_tokens", BIG, nullable=True),
        sa.Column("completion_tokens", BIG, nullable=True),
        sa.Column("cost", sa.Float(), nullable=True),
        sa.Column("created_at_ms", BIG, nullable=False),
        sa.CheckConstraint("kind IN ('llm', 'extractive')", name=op.f("ck_summaries_kind")),
        sa.CheckConstraint(
            "version > 0 AND (base_version IS NULL OR base_version < version)",
            name=op.f("ck_summaries_version"),
        ),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_summaries_sid")),
        sa.PrimaryKeyConstraint("sid", "version", name=op.f("pk_summaries")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "coverage",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_coverage_sid")),
        sa.PrimaryKeyConstraint("sid", "version", "compaction_id", name=op.f("pk_coverage")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "summary_activations",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_summary_activations_sid")),
        sa.PrimaryKeyConstraint("sid", "ordinal", name=op.f("pk_summary_activations")),
        sqlite_with_rowid=False,
    )


def _create_restorations() -> None:
    op.create_table(
        "restorations",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("first_position", BIG, autoincrement=False, nullable=False),
        sa.Column("last_position", BIG, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_restorations_sid")),
        sa.PrimaryKeyConstraint(
            "sid", "compaction_id", "first_position", name=op.f("pk_restorations")
        ),
        sqlite_with_rowid=False,
    )
