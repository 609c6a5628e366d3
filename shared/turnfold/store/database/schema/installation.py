"""Tables of the whole installation: the stream, erasures, the audit, notices and dead letters."""

from sqlalchemy import (
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    column,
    table,
    text,
)

from turnfold.store.database.schema.definitions import Big, metadata

stream = Table(
    "stream",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created", Text, nullable=False),
)
"""The stream that this database belongs to, by its creation time."""

ingested_ranges = Table(
    "ingested_ranges",
    metadata,
    Column("first_seq", Big, primary_key=True, autoincrement=False),
    Column("last_seq", Big, nullable=False),
    CheckConstraint("first_seq <= last_seq", name="rising"),
)
"""Stream sequences that are stored or dead-lettered, as separate ranges that do not touch."""

erasures = Table(
    "erasures",
    metadata,
    Column("agent_id", Text, primary_key=True),
    # Empty where all of an agent was erased; no session is called so.
    Column("session_id", Text, primary_key=True),
    # Nothing at or below this sequence comes back.
    Column("last_seq", Big, nullable=False),
    Column("at_ms", Big, nullable=False),
    # Where the audit of the session goes on.
    Column("audit_rows", Integer, nullable=False, server_default=text("0")),
    Column("audit_hash", Text, nullable=False, server_default=text("''")),
    sqlite_with_rowid=False,
)
"""Tombstones; see `turnfold.store.ingest.erase`."""

erased_events = Table(
    "erased_events",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    sqlite_with_rowid=False,
)
"""Erased events, as digests of agent and event id."""

stream_purges = Table(
    "stream_purges",
    metadata,
    Column("stream_seq", Big, primary_key=True, autoincrement=False),
    # What is newer is another event, in a stream that was restored from an older backup.
    Column("until_ms", Big),
)
"""Sequences that must still be deleted from the stream."""

index_removals = Table(
    "index_removals",
    metadata,
    Column("position", Big, primary_key=True, autoincrement=False),
    # No key of a session: that may be gone.
    Column("sid", Big, nullable=False),
    Column("body", Text, nullable=False),
)
"""Erased and retracted messages whose words SQLite's index still has.

The index stores no texts, so removing a message needs its text. Rows of erased messages are deleted
within seconds, those of retracted ones when the worker looks for them.
"""

word_index = table(
    "word_index",
    column("rowid", Big),
    column("position", Big),
    column("sid", Big),
    column("terms", Text),
)
"""SQLite's search index, one row per message.

PostgreSQL's has `position` and `sid`. Only workers before revision 1011 add rows; none is read.
"""

word_index_segments = table(
    "word_index_segments",
    column("sid", Big),
    column("segment", Big),
    # Zero: the header of the segment, which alone has values in the next three columns.
    column("number", Integer),
    column("messages", Integer),
    column("last_position", Big),
    # The ordinals of messages that are not in the index any more, as two bytes each.
    column("removed", LargeBinary),
    column("data", LargeBinary),
)
"""The search index of PostgreSQL, one row per piece of a segment; see `core.text.word_segments`.

A segment never changes, except that messages are removed from it. Its number is never reused.
"""

audit = Table(
    "audit",
    metadata,
    Column("audit_id", Big, primary_key=True, autoincrement=True),
    Column("agent_id", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("at_ms", Big, nullable=False),
    Column("compaction_id", Big),
    Column("phase", Text, nullable=False),
    Column("reason", Text),
    Column("tokens_before", Big),
    Column("tokens_after", Big),
    Column("details", Text, nullable=False),
    Column("prev_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("actor", Text, nullable=False),
    UniqueConstraint("agent_id", "session_id", "ordinal"),
    sqlite_autoincrement=True,
)
"""Audit rows, each sealed with the hash of the one before; triggers refuse UPDATE and DELETE."""

installation_secrets = Table(
    "installation_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""Random secrets that the services of an installation share; migrations create them."""

outbox = Table(
    "outbox",
    metadata,
    Column("outbox_id", Big, primary_key=True, autoincrement=True),
    Column("subject", Text, nullable=False),
    Column("payload", Text, nullable=False),
    sqlite_autoincrement=True,
)
"""Notices of committed transactions, deleted when the stream has them."""

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("dead_letter_id", Big, primary_key=True, autoincrement=True),
    Column("stream_seq", Big, nullable=False, unique=True),
    Column("at_ms", Big, nullable=False),
    Column("subject", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("size_bytes", Big, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("replayed_at_ms", Big),
    # The session it speaks of, as far as that can be told.
    Column("agent_id", Text),
    Column("session_id", Text),
    # Windows count the refused events of their session.
    Index(
        "ix_dead_letters_session",
        "agent_id",
        "session_id",
        "stream_seq",
        sqlite_where=text("replayed_at_ms IS NULL"),
        postgresql_where=text("replayed_at_ms IS NULL"),
    ),
    # Erasures look for replayed ones as well.
    Index("ix_dead_letters_key", "agent_id", "session_id"),
    sqlite_autoincrement=True,
)
