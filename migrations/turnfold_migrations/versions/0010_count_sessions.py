"""How many sessions each agent has is counted, so that there can be a limit."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Begin with those that there are."""
    op.create_table(
        "session_counts",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("sessions", BIG, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_session_counts")),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO session_counts (agent_id, sessions) SELECT agent_id, count(*) FROM sessions GROUP BY agent_id"
    )


def downgrade() -> None:
    """Count them no more."""
    op.drop_table("session_counts")
