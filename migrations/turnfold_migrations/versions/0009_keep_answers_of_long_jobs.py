"""Answers on the way to a version outlive a failed attempt, and what models took is counted by agent and day."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Begin to keep both."""
    op.create_table(
        "chunks",
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_chunks_sid")),
        sa.PrimaryKeyConstraint("compaction_id", "digest", name=op.f("pk_chunks")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_chunks_session", "chunks", ["sid"])
    op.create_table(
        "spending",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "day", name=op.f("pk_spending")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Forget both."""
    op.drop_table("spending")
    op.drop_table("chunks")
