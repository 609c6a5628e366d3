"""Messages are found by an index of their words, and sessions say from where on they are not in it yet."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

WORD_INDEX = {
    "sqlite": [
        """CREATE VIRTUAL TABLE word_index USING fts5(
            terms, content='', detail='none', columnsize=1, tokenize="ascii")""",
    ],
    "postgresql": [
        "CREATE TABLE word_index (position BIGINT PRIMARY KEY, sid BIGINT NOT NULL, terms TSVECTOR NOT NULL)",
        # What waits in a list beside the index would be read by everybody's search.
        "CREATE INDEX ix_word_index_terms ON word_index USING gin (terms) WITH (fastupdate = off)",
        # Erasing a session.
        "CREATE INDEX ix_word_index_sid ON word_index (sid)",
    ],
}


def upgrade() -> None:
    """Make the index; what is stored already waits to be indexed."""
    op.add_column("sessions", sa.Column("unindexed_from", BIG))
    op.execute("UPDATE sessions SET unindexed_from = 0 WHERE messages_total > 0")
    op.create_index(
        "ix_sessions_unindexed",
        "sessions",
        ["unindexed_from"],
        sqlite_where=sa.text("unindexed_from IS NOT NULL"),
        postgresql_where=sa.text("unindexed_from IS NOT NULL"),
    )
    op.create_table(
        "leftovers",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_leftovers")),
    )
    for statement in WORD_INDEX[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    """Drop it."""
    op.execute("DROP TABLE word_index")
    op.drop_table("leftovers")
    op.drop_index("ix_sessions_unindexed", "sessions")
    op.drop_column("sessions", "unindexed_from")
