"""The tables as they are now; a test compares them with the result of the migrations.

Rows of a session refer to `sessions.sid`, so that equal session ids of two agents never share a
row. Positions are those of `turnfold.messages.position_of`. Times are milliseconds since 1970, UTC,
taken from the stream. The package imports all of its modules, so that `metadata` is complete
wherever a table is imported.
"""

from turnfold.store.database.schema.compactions import (
    campaigns,
    chunk_summaries,
    compactions,
    coverage,
    restorations,
    summaries,
    summary_activations,
    summary_token_usage,
)
from turnfold.store.database.schema.definitions import metadata
from turnfold.store.database.schema.installation import (
    audit,
    dead_letters,
    erased_events,
    erasures,
    index_removals,
    ingested_ranges,
    installation_secrets,
    outbox,
    stream,
    stream_purges,
    word_index,
    word_index_segments,
)
from turnfold.store.database.schema.sessions import (
    PINNABLE,
    agents,
    duplicate_events,
    events,
    marked_lines,
    messages,
    reported_limits,
    retracted_messages,
    retractions,
    session_counts,
    sessions,
    tool_calls,
    usage_reports,
)

__all__ = [
    "FIRST_REVISION",
    "PINNABLE",
    "REVISION",
    "agents",
    "audit",
    "campaigns",
    "chunk_summaries",
    "compactions",
    "coverage",
    "dead_letters",
    "duplicate_events",
    "erased_events",
    "erasures",
    "events",
    "index_removals",
    "ingested_ranges",
    "installation_secrets",
    "marked_lines",
    "messages",
    "metadata",
    "outbox",
    "reported_limits",
    "restorations",
    "retracted_messages",
    "retractions",
    "session_counts",
    "sessions",
    "stream",
    "stream_purges",
    "summaries",
    "summary_activations",
    "summary_token_usage",
    "tool_calls",
    "usage_reports",
    "word_index",
    "word_index_segments",
]

REVISION = "1024"
"""The newest migration of this schema. Services wait for it without loading Alembic."""
FIRST_REVISION = "1001"
"""The oldest migration. Early releases had others, 0001 to 0014, with other tables."""
