"""The search index, and what SQLite's planner must know of the other indexes."""

from alembic import op

WORD_INDEX = {
    "sqlite": [
        """CREATE VIRTUAL TABLE word_index USING fts5(
            terms, content='', detail='none', columnsize=1, tokenize="ascii")""",
    ],
    "postgresql": [
        """CREATE TABLE word_index (
            position BIGINT PRIMARY KEY, sid BIGINT NOT NULL, terms TSVECTOR NOT NULL)""",
        # With fastupdate, every search would also read the list of rows that are not merged yet.
        "CREATE INDEX ix_word_index_terms ON word_index USING gin (terms) WITH (fastupdate = off)",
        # For erasing a session.
        "CREATE INDEX ix_word_index_sid ON word_index (sid)",
    ],
}

_REINDEX = "UPDATE sessions SET unindexed_from = 0 WHERE messages_total > 0 AND agent_id <> ''"
EMPTY_INDEX = {
    "sqlite": (
        "INSERT INTO word_index (word_index) VALUES ('delete-all')",
        "DELETE FROM index_removals",
        "DELETE FROM marked_lines",
        _REINDEX,
    ),
    "postgresql": (
        # Workers lock a session before its words, too.
        "LOCK TABLE sessions IN EXCLUSIVE MODE",
        _REINDEX,
        # Last, because searches and recall wait from here on.
        "TRUNCATE word_index, word_index_segments, marked_lines",
    ),
}


def empty_index() -> None:
    """Empty the index and the marked lines, so that a worker indexes all messages again."""
    for statement in EMPTY_INDEX[op.get_bind().dialect.name]:
        op.execute(statement)


# Without statistics SQLite scans a session's whole history for its live messages, and all
# compactions for open ones: it cannot know that a partial index is short. Each string has the
# number of rows, then the rows per value of the first column, of the first two columns, and so on.
PLANNER_STATISTICS = [
    "ANALYZE sqlite_schema",
    """INSERT INTO sqlite_stat1 VALUES
       ('messages', 'messages', '1000000 10000 1'),
       ('messages', 'ix_messages_live', '4000 40 1'),
       ('messages', 'ix_messages_results', '400000 4000 2 1'),
       ('compactions', 'sqlite_autoindex_compactions_1', '100000 1000 1'),
       ('compactions', 'ix_compactions_pending', '2000 2'),
       ('compactions', 'ix_compactions_open', '1000 1')""",
]
