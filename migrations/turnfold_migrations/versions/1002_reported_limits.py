"""The windows of models as providers reported them, per session and model."""

import sqlalchemy as sa
from alembic import op

revision = "1002"
down_revision = "1001"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the reports, and to each session what was learned from its own."""
    op.add_column("sessions", sa.Column("window_limits", sa.Text(), nullable=True))
    op.create_table(
        "reported_limits",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("limit_tokens", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        # Workers of revision 1001 erase sessions without knowing this table.
        sa.ForeignKeyConstraint(
            ["sid"], ["sessions.sid"], name=op.f("fk_reported_limits_sid"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sid", "stream_seq", name=op.f("pk_reported_limits")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Remove both."""
    op.drop_table("reported_limits")
    op.drop_column("sessions", "window_limits")
