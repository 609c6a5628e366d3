"""Words of refusals and of transcripts of speech, which the index lacked."""

from alembic import op

revision = "1021"
down_revision = "1020"

EMPTY = {
    "sqlite": (
        "INSERT INTO word_index (word_index) VALUES ('delete-all')",
        "DELETE FROM index_removals",
        "PRAGMA user_version = 1",
    ),
    "postgresql": (
        # Workers lock a session before its words, too.
        "LOCK TABLE sessions IN EXCLUSIVE MODE",
        "TRUNCATE word_index, word_index_segments",
    ),
}


def upgrade() -> None:
    """Empty PostgreSQL's index, so that a worker indexes all messages again.

    SQLite's is emptied by the first worker of this schema, as after migration 1018.
    """
    if op.get_bind().dialect.name == "postgresql":
        _empty()
        # Workers of the schema before run on until they are replaced, and cannot add their terms.
        op.execute("ALTER SEQUENCE word_index_segment_ids_1 RENAME TO word_index_segment_ids_2")


def downgrade() -> None:
    """Empty the index. A worker indexes all messages again."""
    _empty()
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER SEQUENCE word_index_segment_ids_2 RENAME TO word_index_segment_ids_1")


def _empty() -> None:
    for statement in EMPTY[op.get_bind().dialect.name]:
        op.execute(statement)
    op.execute("DELETE FROM marked_lines")
    op.execute("UPDATE sessions SET unindexed_from = 0 WHERE messages_total > 0 AND agent_id <> ''")
