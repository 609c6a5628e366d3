"""Elements that are not chat messages, beside their chat view."""

import sqlalchemy as sa
from alembic import op

revision = "1007"
down_revision = "1004"


def upgrade() -> None:
    """Add the column. Older messages are chat messages, and have none."""
    op.add_column("messages", sa.Column("element", sa.SmallInteger(), nullable=True))


def downgrade() -> None:
    """Remove the column; the chat views stay."""
    op.drop_column("messages", "element")
