"""The lines of messages that a recall block may quote."""

import sqlalchemy as sa
from alembic import op

revision = "1010"
down_revision = "1009"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table. Lines of messages that were stored before are not quoted."""
    op.create_table(
        "marked_lines",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("lines", sa.LargeBinary(), nullable=False),
        # Workers of revision 1009 erase sessions without knowing this table.
        sa.ForeignKeyConstraint(
            ["sid"], ["sessions.sid"], name=op.f("fk_marked_lines_sid"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sid", "position", name=op.f("pk_marked_lines")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("marked_lines")
