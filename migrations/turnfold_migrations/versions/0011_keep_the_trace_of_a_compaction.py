"""A compaction keeps the trace of the event that set it off, so that whoever writes its summary goes on with it."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Begin to keep it."""
    op.add_column("compactions", sa.Column("trace", sa.Text()))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("compactions", "trace")
