"""Sessions count their rounds and know when they fall idle, compactions keep their limit, versions how far the originals are behind."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Begin to count, and to look for idle sessions."""
    op.add_column("sessions", sa.Column("rounds", BIG, nullable=False, server_default=sa.text("0")))
    op.add_column("sessions", sa.Column("idle_at_ms", BIG))
    op.create_index(
        "ix_sessions_idle",
        "sessions",
        ["idle_at_ms"],
        sqlite_where=sa.text("idle_at_ms IS NOT NULL"),
        postgresql_where=sa.text("idle_at_ms IS NOT NULL"),
    )
    op.add_column(
        "compactions", sa.Column("budget_tokens", BIG, nullable=False, server_default=sa.text("0"))
    )
    op.add_column(
        "summaries", sa.Column("depth", sa.Integer(), nullable=False, server_default=sa.text("1"))
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_column("summaries", "depth")
    op.drop_column("compactions", "budget_tokens")
    op.drop_index("ix_sessions_idle", "sessions")
    op.drop_column("sessions", "idle_at_ms")
    op.drop_column("sessions", "rounds")
