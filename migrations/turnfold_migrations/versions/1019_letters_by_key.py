"""An index by which an erasure finds the dead letters of a session, replayed ones too."""

from alembic import op

revision = "1019"
down_revision = "1018"

NAME = "ix_dead_letters_key"


def upgrade() -> None:
    """Create the index."""
    op.create_index(NAME, "dead_letters", ["agent_id", "session_id"])


def downgrade() -> None:
    """Remove it."""
    op.drop_index(NAME, "dead_letters")
