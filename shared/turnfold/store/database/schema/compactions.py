"""Compactions, and what they write: summaries, their coverage and their activations."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from turnfold.store.database.schema.definitions import Big, metadata, session_key

campaigns = Table(
    "campaigns",
    metadata,
    Column("campaign_id", Big, primary_key=True, autoincrement=False),
    # Null: of every agent.
    Column("agent_id", Text),
    Column("wanted", Text, nullable=False),
    Column("at_once", Integer, nullable=False),
    # Campaigns walk sessions by number: the last one opened, and the last one at the start.
    Column("last_sid", Big, nullable=False, server_default=text("0")),
    Column("until_sid", Big, nullable=False),
    Column("sessions", Integer, nullable=False),
    Column("opened", Integer, nullable=False, server_default=text("0")),
    Column("requested_at_ms", Big, nullable=False),
    Column("finished_at_ms", Big),
    Column("actor", Text, nullable=False),
    Index(
        "ix_campaigns_unfinished",
        "requested_at_ms",
        sqlite_where=text("finished_at_ms IS NULL"),
        postgresql_where=text("finished_at_ms IS NULL"),
    ),
)
"""Regenerations of many sessions, a few at a time."""

compactions = Table(
    "compactions",
    metadata,
    # Drawn at random: a counter would tell one agent of another's work.
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    session_key(),
    Column("ordinal", Integer, nullable=False),
    Column("trigger", Text, nullable=False),
    # The trigger `budget`: workers before revision 1004 know no such name, and read `tokens`.
    Column("is_by_budget", Boolean),
    Column("status", Text, nullable=False),
    # Whether the summary in force speaks for its messages.
    Column("is_covered", Boolean, nullable=False, server_default=false()),
    # The limit of the trigger that fired, in tokens.
    Column("budget_tokens", Big, nullable=False, server_default=text("0")),
    # Null while nothing has left: the messages of such a row leave when its summary stands.
    Column("first_position", Big),
    Column("last_position", Big),
    Column("messages_evicted", Integer, nullable=False),
    Column("tokens_evicted", Big, nullable=False),
    Column("tokens_before", Big, nullable=False),
    Column("tokens_after", Big),
    Column("digest", Text, nullable=False),
    Column("digest_tokens", Integer, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("reason", Text),
    Column("version", Integer),
    # Rises with each claim: writes of a worker that lost its lease carry a lower one.
    Column("fence", Integer, nullable=False, server_default=text("0")),
    Column("lease_until_ms", Big),
    Column("next_attempt_at_ms", Big, nullable=False),
    Column("requested_at_ms", Big, nullable=False),
    Column("finished_at_ms", Big),
    # When its messages left the window, and when they came back.
    Column("evicted_at_ms", Big),
    Column("restored_at_ms", Big),
    # The options of a regeneration, as JSON, and the campaign that requested it.
    Column("wanted", Text),
    Column("campaign_id", Big),
    # The trace of the event that set it off, where there is one.
    Column("trace", Text),
    # The actor who requested it; null if nobody did.
    Column("actor", Text),
    UniqueConstraint("sid", "ordinal"),
    CheckConstraint(
        "status IN ('pending', 'running', 'committed', 'rejected', 'failed', 'stale', 'restored')",
        name="status",
    ),
    CheckConstraint("(status = 'running') = (lease_until_ms IS NOT NULL)", name="lease"),
    CheckConstraint("NOT is_covered OR status = 'committed'", name="covered"),
    # Work to do: the open jobs, the one that waited longest first.
    Index(
        "ix_compactions_open",
        "next_attempt_at_ms",
        sqlite_where=text("status IN ('pending', 'running')"),
        postgresql_where=text("status IN ('pending', 'running')"),
    ),
    # Campaigns: their rows, to count those still open.
    Index(
        "ix_compactions_campaign",
        "campaign_id",
        sqlite_where=text("campaign_id IS NOT NULL"),
        postgresql_where=text("campaign_id IS NOT NULL"),
    ),
    # The window: evictions that the summary in force does not cover yet.
    Index(
        "ix_compactions_pending",
        "sid",
        sqlite_where=text("NOT is_covered"),
        postgresql_where=text("NOT is_covered"),
    ),
)

chunk_summaries = Table(
    "chunk_summaries",
    metadata,
    # The oldest compaction of the job; what is evicted while it is tried again joins it.
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    Column("digest", Text, primary_key=True),
    session_key(),
    # Empty where what was asked was too large for the model.
    Column("answer", Text, nullable=False),
    Column("at_ms", Big, nullable=False),
    # Erasing: what a session has left here.
    Index("ix_chunk_summaries_session", "sid"),
    sqlite_with_rowid=False,
)
"""Answers for parts of a long input, by digest of the prompt; deleted when the job ends."""

summaries = Table(
    "summaries",
    metadata,
    session_key(primary=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("base_version", Integer),
    Column("compaction_id", Big, nullable=False),
    Column("kind", Text, nullable=False),
    Column("style", Text, nullable=False),
    Column("model", Text),
    Column("prompt_version", Text),
    Column("text", Text, nullable=False),
    Column("sections", Text, nullable=False),
    Column("ledger", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("text_tokens", Integer, nullable=False),
    Column("cuts", Text),
    Column("first_position", Big, nullable=False),
    Column("last_position", Big, nullable=False),
    Column("covers_first", Text, nullable=False),
    Column("covers_last", Text, nullable=False),
    Column("messages_covered", Big, nullable=False),
    # How many versions ago one was written from the originals; that one is 1.
    Column("depth", Integer, nullable=False, server_default=text("1")),
    # The counts of the provider, and the cost in US dollars; null if nobody reported them.
    Column("prompt_tokens", Big),
    Column("completion_tokens", Big),
    Column("cost", Float),
    Column("created_at_ms", Big, nullable=False),
    CheckConstraint("kind IN ('llm', 'extractive')", name="kind"),
    CheckConstraint(
        "version > 0 AND (base_version IS NULL OR base_version < version)", name="version"
    ),
    sqlite_with_rowid=False,
)

coverage = Table(
    "coverage",
    metadata,
    session_key(primary=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""The evictions that each version covers in addition to those of its base."""

summary_activations = Table(
    "summary_activations",
    metadata,
    session_key(primary=True),
    # The audit row that tells of it.
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("at_ms", Big, nullable=False),
    Column("version", Integer),
    sqlite_with_rowid=False,
)
"""When each version came into force; null if the first compaction was undone."""

restorations = Table(
    "restorations",
    metadata,
    session_key(primary=True),
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    Column("first_position", Big, primary_key=True, autoincrement=False),
    Column("last_position", Big, nullable=False),
    sqlite_with_rowid=False,
)
"""Ranges of messages that a restored compaction had evicted; `as_of` needs them."""

summary_token_usage = Table(
    "summary_token_usage",
    metadata,
    Column("agent_id", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("tokens", Big, nullable=False),
    sqlite_with_rowid=False,
)
"""Tokens that summaries took per agent and day (since 1970, UTC), failed attempts included."""
