"""Words with vowel signs and other marks, which the index had in pieces."""

from alembic import op

from turnfold_migrations.first_schema.search import empty_index

revision = "1018"
down_revision = "1017"


def upgrade() -> None:
    """Empty PostgreSQL's index, so that a worker indexes all messages again, and marks their lines.

    SQLite's is emptied by the first worker of this schema: until then, an earlier one goes on to
    fill it, and could not remove terms that are not its own.
    """
    if op.get_bind().dialect.name == "postgresql":
        empty_index()
        # Workers of 1017 run on until they are replaced. From now on they cannot add their terms.
        op.execute("ALTER SEQUENCE word_index_segment_ids RENAME TO word_index_segment_ids_1")


def downgrade() -> None:
    """Empty the index. A worker indexes all messages again."""
    empty_index()
    if op.get_bind().dialect.name == "sqlite":
        op.execute("PRAGMA user_version = 0")
    else:
        op.execute("ALTER SEQUENCE word_index_segment_ids_1 RENAME TO word_index_segment_ids")
