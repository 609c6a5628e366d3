"""The gist of each message: what the digest of a window tells of it."""

import sqlalchemy as sa
from alembic import op

revision = "1003"
down_revision = "1002"


def upgrade() -> None:
    """Add the column. Older messages have no gist, and a digest tells less of them."""
    op.add_column("messages", sa.Column("gist", sa.Text(), nullable=True))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("messages", "gist")
