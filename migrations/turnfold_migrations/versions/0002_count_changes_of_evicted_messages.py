"""Sessions count the changes to messages that were evicted already, so that whoever knows such messages need not read them again."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Begin to count."""
    op.add_column(
        "sessions", sa.Column("evicted_changes", BIG, nullable=False, server_default=sa.text("0"))
    )


def downgrade() -> None:
    """Stop counting."""
    op.drop_column("sessions", "evicted_changes")
