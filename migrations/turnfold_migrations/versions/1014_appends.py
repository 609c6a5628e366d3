"""Count the changes of a session that only appended messages."""

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.types import BIG

revision = "1014"
down_revision = "1013"


def upgrade() -> None:
    """Add the column. Every earlier change counts as one that may have changed messages."""
    op.add_column("sessions", sa.Column("appends", BIG, server_default="0", nullable=False))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("sessions", "appends")
