"""What providers report is kept: it teaches a factor for each model, and says when a window has become too full."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COUNTS = (
    ("reported_seq", BIG),
    ("reported_at_ms", BIG),
    ("reported_tokens", BIG),
    ("usage_evictions", sa.Integer()),
)


def upgrade() -> None:
    """Begin to keep reports."""
    for name, kind in COUNTS:
        op.add_column(
            "sessions", sa.Column(name, kind, nullable=False, server_default=sa.text("0"))
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
    op.create_index("ix_usage_reports_model", "usage_reports", ["agent_id", "model", "position"])


def downgrade() -> None:
    """Forget them."""
    op.drop_index("ix_usage_reports_model", table_name="usage_reports")
    op.drop_table("usage_reports")
    for name, _ in COUNTS:
        op.drop_column("sessions", name)
