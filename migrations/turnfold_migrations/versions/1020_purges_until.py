"""Purges say until when what they concern was published."""

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.types import BIG

revision = "1020"
down_revision = "1019"


def upgrade() -> None:
    """Add the column. The time of purges that already wait is unknown."""
    op.add_column("stream_purges", sa.Column("until_ms", BIG))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("stream_purges", "until_ms")
