"""Reports of usage keep the answer that they name, which may be stored after them."""

import sqlalchemy as sa
from alembic import op

revision = "1022"
down_revision = "1021"


def upgrade() -> None:
    """Add the column. Reports that wait already keep the place of their event."""
    op.add_column("usage_reports", sa.Column("message_id", sa.Text()))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("usage_reports", "message_id")
