"""Words with vowel signs and other marks, which the index had in pieces."""

from alembic import op

revision = "1018"
down_revision = "1017"

EMPTY = {
    "sqlite": (
        "INSERT INTO word_index (word_index) VALUES ('delete-all')",
        "DELETE FROM index_removals",
        "PRAGMA user_version = 0",
    ),
    "postgresql": (
        # Workers lock a session before its words, too.
        "LOCK TABLE sessions IN EXCLUSIVE MODE",
        "TRUNCATE word_index, word_index_segments",
    ),
}


def upgrade() -> None:
    """Empty PostgreSQL's index, so that a worker indexes all messages again, and marks their lines.

    SQLite's is emptied by the first worker of this schema: until then, an earlier one goes on to
    fill it, and could not remove terms that are not its own.
    """
    if op.get_bind().dialect.name == "postgresql":
        _empty()
        # Workers of 1017 run on until they are replaced. From now on they cannot add their terms.
        op.execute("ALTER SEQUENCE word_index_segment_ids RENAME TO word_index_segment_ids_1")


def downgrade() -> None:
    """Empty the index. A worker indexes all messages again."""
    _empty()
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER SEQUENCE word_index_segment_ids_1 RENAME TO word_index_segment_ids")


def _empty() -> None:
    for statement in EMPTY[op.get_bind().dialect.name]:
        op.execute(statement)
    op.execute("DELETE FROM marked_lines")
    op.execute("UPDATE sessions SET unindexed_from = 0 WHERE messages_total > 0 AND agent_id <> ''")
