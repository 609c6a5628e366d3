"""Words of refusals and of transcripts of speech, which the index lacked."""

from alembic import op

from turnfold_migrations.first_schema.search import empty_index

revision = "1021"
down_revision = "1020"


def upgrade() -> None:
    """Empty PostgreSQL's index, so that a worker indexes all messages again.

    SQLite's is emptied by the first worker of this schema, as after migration 1018.
    """
    if op.get_bind().dialect.name == "postgresql":
        empty_index()
        # Workers of the schema before run on until they are replaced, and cannot add their terms.
        op.execute("ALTER SEQUENCE word_index_segment_ids_1 RENAME TO word_index_segment_ids_2")


def downgrade() -> None:
    """Empty the index. A worker indexes all messages again."""
    empty_index()
    if op.get_bind().dialect.name == "sqlite":
        op.execute("PRAGMA user_version = 1")
    else:
        op.execute("ALTER SEQUENCE word_index_segment_ids_2 RENAME TO word_index_segment_ids_1")
