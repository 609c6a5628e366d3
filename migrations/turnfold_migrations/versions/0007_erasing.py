"""Sessions and agents can be erased: what must not come back, and what the stream has still to forget."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make room for what erasing leaves behind, and remember whose a dead letter is."""
    op.create_table(
        "copies",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_copies_sid")),
        sa.PrimaryKeyConstraint("sid", "stream_seq", name=op.f("pk_copies")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "erasures",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("audit_rows", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("audit_hash", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.PrimaryKeyConstraint("agent_id", "session_id", name=op.f("pk_erasures")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "erased_events",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_erased_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "purges",
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("stream_seq", name=op.f("pk_purges")),
    )
    for name in ("agent_id", "session_id"):
        op.add_column("dead_letters", sa.Column(name, sa.Text()))
    op.create_index("ix_events_sid", "events", ["sid"])


def downgrade() -> None:
    """Forget it; what was erased stays so as long as the stream does not deliver it again."""
    op.drop_index("ix_events_sid", table_name="events")
    for name in ("session_id", "agent_id"):
        op.drop_column("dead_letters", name)
    for name in ("purges", "erased_events", "erasures", "copies"):
        op.drop_table(name)
