"""Find the newest system message of a session that begins its event."""

import sqlalchemy as sa
from alembic import op

revision = "1016"
down_revision = "1015"

PINNABLE = sa.text("role IN ('system', 'developer') AND position % 1024 = 0")


def upgrade() -> None:
    """Index them."""
    op.create_index(
        "ix_messages_pinnable",
        "messages",
        ["sid", "position"],
        sqlite_where=PINNABLE,
        postgresql_where=PINNABLE,
    )


def downgrade() -> None:
    """Remove the index."""
    op.drop_index("ix_messages_pinnable", "messages")
