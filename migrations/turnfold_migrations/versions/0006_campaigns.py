"""Campaigns: regenerations of many sessions, a few at a time."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make room for them."""
    op.create_table(
        "campaigns",
        sa.Column("campaign_id", BIG, autoincrement=False, nullable=False),
        sa.Column("agent_id", sa.Text()),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("at_once", sa.Integer(), nullable=False),
        sa.Column("last_sid", BIG, nullable=False, server_default=sa.text("0")),
        sa.Column("until_sid", BIG, nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("requested_at_ms", BIG, nullable=False),
        sa.Column("finished_at_ms", BIG),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_campaigns")),
    )
    op.create_index(
        "ix_campaigns_unfinished",
        "campaigns",
        ["requested_at_ms"],
        sqlite_where=sa.text("finished_at_ms IS NULL"),
        postgresql_where=sa.text("finished_at_ms IS NULL"),
    )
    op.add_column("compactions", sa.Column("campaign_id", BIG))
    op.create_index(
        "ix_compactions_campaign",
        "compactions",
        ["campaign_id"],
        sqlite_where=sa.text("campaign_id IS NOT NULL"),
        postgresql_where=sa.text("campaign_id IS NOT NULL"),
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_index("ix_compactions_campaign", table_name="compactions")
    op.drop_column("compactions", "campaign_id")
    op.drop_table("campaigns")
