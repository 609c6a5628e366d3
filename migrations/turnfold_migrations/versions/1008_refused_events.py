"""An index by which windows count the refused events of their session."""

import sqlalchemy as sa
from alembic import op

revision = "1008"
down_revision = "1007"

NAME = "ix_dead_letters_session"


def upgrade() -> None:
    """Create the index."""
    is_refused = sa.text("replayed_at_ms IS NULL")
    op.create_index(
        NAME,
        "dead_letters",
        ["agent_id", "session_id", "stream_seq"],
        sqlite_where=is_refused,
        postgresql_where=is_refused,
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_index(NAME, "dead_letters")
