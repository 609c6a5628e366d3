"""Segments of the word index of PostgreSQL, which take a sixth of the rows of `word_index`."""

from alembic import op

revision = "1011"
down_revision = "1010"

SEGMENTS = (
    # Rows are deleted with their session: older workers erase sessions without knowing this table.
    # Piece 0 of a segment is its header and alone has `messages`, `last_position` and `removed`.
    """CREATE TABLE word_index_segments (
         sid BIGINT NOT NULL REFERENCES sessions (sid) ON DELETE CASCADE,
         segment BIGINT NOT NULL,
         last_position BIGINT,
         number INTEGER NOT NULL,
         messages INTEGER,
         removed BYTEA,
         data BYTEA NOT NULL,
         PRIMARY KEY (sid, number, segment)
       )""",
    "CREATE SEQUENCE word_index_segment_ids",
    # Every message is updated once, when it is evicted, and every segment is merged several times.
    "ALTER TABLE word_index_segments SET (autovacuum_vacuum_scale_factor = 0.05)",
    "ALTER TABLE messages SET (autovacuum_vacuum_scale_factor = 0.05)",
)


def upgrade() -> None:
    """Add the table. What `word_index` has of older messages stays there and is still read."""
    if op.get_bind().dialect.name == "postgresql":
        for statement in SEGMENTS:
            op.execute(statement)


def downgrade() -> None:
    """Remove it. Workers of the older schema index the messages of all sessions again."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE messages RESET (autovacuum_vacuum_scale_factor)")
        op.execute("DROP TABLE word_index_segments")
        op.execute("DROP SEQUENCE word_index_segment_ids")
        op.execute("UPDATE sessions SET unindexed_from = 0 WHERE messages_total > 0")
