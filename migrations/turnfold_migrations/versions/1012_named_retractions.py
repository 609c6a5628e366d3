"""The first retraction that names each retracted message, which pairing needs."""

import sqlalchemy as sa
from alembic import op

revision = "1012"
down_revision = "1011"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column. Null in older rows: `is_named` and `retracted_seq` tell as much of them."""
    op.add_column("retracted_messages", sa.Column("named_seq", BIG))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("retracted_messages", "named_seq")
