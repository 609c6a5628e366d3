"""The tables as they are now; a test compares them with the result of the migrations.

Rows of a session refer to `sessions.sid`, so that equal session ids of two agents never share a row.
Positions are those of `turnfold.messages.position_of`. Times are milliseconds since 1970, UTC, taken
from the stream. All tables are in one file, so that the order of their foreign keys is the order of
reading, and `metadata` is complete wherever a table is imported.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    column,
    false,
    table,
    text,
)

REVISION = "1003"
"""The newest migration of this schema. Services wait for it without loading Alembic."""
FIRST_REVISION = "1001"
"""The oldest migration. Early releases had others, 0001 to 0014, with other tables."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Big = BigInteger().with_variant(Integer, "sqlite")
"""A 64-bit integer; on SQLite the plain INTEGER, which alone can be a row id."""


def _session_key(*, primary: bool = False) -> Column[int]:
    return Column("sid", Big, ForeignKey("sessions.sid"), primary_key=primary, nullable=False)


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

agents = Table(
    "agents",
    metadata,
    Column("agent_id", Text, primary_key=True),
    Column("preset", Text),
    Column("mode", Text),
    Column("overrides", Text),
)
"""Policy overrides of an agent; null means that the next level decides."""

sessions = Table(
    "sessions",
    metadata,
    Column("sid", Big, primary_key=True, autoincrement=True),
    Column("agent_id", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("preset", Text),
    Column("mode", Text),
    Column("overrides", Text),
    # The model of the newest event that names one, and its sequence: late events change nothing.
    Column("model", Text),
    Column("model_seq", Big, nullable=False, server_default=text("0")),
    # Counts the changes a window can show; an answer's etag holds it.
    Column("revision", Big, nullable=False, server_default=text("0")),
    Column("messages_total", Big, nullable=False, server_default=text("0")),
    Column("tokens_total", Big, nullable=False, server_default=text("0")),
    # Live messages but system ones: what the triggers look at.
    Column("live_messages", Big, nullable=False, server_default=text("0")),
    Column("live_tokens", Big, nullable=False, server_default=text("0")),
    Column("factor", Float, nullable=False, server_default=text("1.0")),
    Column("version", Integer),
    Column("versions", Integer, nullable=False, server_default=text("0")),
    Column("compactions", Integer, nullable=False, server_default=text("0")),
    Column("audit_rows", Integer, nullable=False, server_default=text("0")),
    Column("audit_hash", Text, nullable=False, server_default=text("''")),
    Column("last_event_at_ms", Big),
    # Counts changes to evicted messages. Cached messages stay valid while it is unchanged.
    Column("evicted_changes", Big, nullable=False, server_default=text("0")),
    # Rounds that began since the last eviction.
    Column("rounds", Big, nullable=False, server_default=text("0")),
    # When the session becomes idle by its policy; null if the policy has no such trigger, or if
    # the trigger fired already.
    Column("idle_at_ms", Big),
    # The newest usage report in stream order, and the consecutive evictions that reports caused.
    Column("reported_seq", Big, nullable=False, server_default=text("0")),
    Column("reported_at_ms", Big, nullable=False, server_default=text("0")),
    Column("reported_tokens", Big, nullable=False, server_default=text("0")),
    Column("usage_evictions", Integer, nullable=False, server_default=text("0")),
    # Consecutive compactions without a model's answer, the end of the cooldown, and its reason.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("cooldown_until_ms", Big, nullable=False, server_default=text("0")),
    Column("cooldown_reason", Text),
    # What was restored stays until the session has grown to so many tokens, or somebody asks.
    Column("held_to_tokens", Big, nullable=False, server_default=text("0")),
    # The first message that the search index may not have; null when it has all.
    Column("unindexed_from", Big),
    # The windows of models as providers reported them: tokens by model, as JSON; null without any.
    Column("window_limits", Text),
    UniqueConstraint("agent_id", "session_id"),
    CheckConstraint("live_messages >= 0 AND live_tokens >= 0", name="live"),
    # The sessions that fall idle next.
    Index(
        "ix_sessions_idle",
        "idle_at_ms",
        sqlite_where=text("idle_at_ms IS NOT NULL"),
        postgresql_where=text("idle_at_ms IS NOT NULL"),
    ),
    # The sessions with messages to index, the one that waited longest first.
    Index(
        "ix_sessions_unindexed",
        "unindexed_from",
        sqlite_where=text("unindexed_from IS NOT NULL"),
        postgresql_where=text("unindexed_from IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
)

session_counts = Table(
    "session_counts",
    metadata,
    Column("agent_id", Text, primary_key=True),
    Column("total", Big, nullable=False, server_default=text("0")),
    sqlite_with_rowid=False,
)
"""The number of sessions per agent, kept by triggers; locked by a transaction that adds one."""

events = Table(
    "events",
    metadata,
    Column("agent_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    _session_key(),
    Column("stream_seq", Big, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    # What the event said besides its messages, as JSON; null where it said nothing.
    Column("envelope", Text),
    # Erasing a session.
    Index("ix_events_sid", "sid"),
    sqlite_with_rowid=False,
)
"""One row per event, however often it was published."""

messages = Table(
    "messages",
    metadata,
    _session_key(primary=True),
    Column("position", Big, primary_key=True, autoincrement=False),
    Column("event_id", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("content_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("characters", Integer, nullable=False),
    Column("lines", Integer, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("is_meta", Boolean, nullable=False),
    Column("is_irregular", Boolean, nullable=False),
    Column("is_truncated", Boolean, nullable=False),
    Column("is_error", Boolean, nullable=False),
    Column("calls", Text),
    Column("tool_call_id", Text),
    Column("content_digest", LargeBinary),
    Column("answers_position", Big),
    Column("answers_slot", Integer),
    Column("is_copy", Boolean, nullable=False, server_default=false()),
    Column("created_at_ms", Big, nullable=False),
    Column("compaction_id", Big),
    Column("cuts", Text),
    # The message as a window shows it. `original` is what was published, if that differs.
    Column("original", Text),
    Column("body", Text, nullable=False),
    # What a digest may tell of it without reading its body; null if there is nothing.
    Column("gist", Text),
    CheckConstraint("role IN ('system', 'developer', 'user', 'assistant', 'tool')", name="role"),
    CheckConstraint("(answers_position IS NULL) = (answers_slot IS NULL)", name="answer"),
    CheckConstraint("NOT (is_copy AND answers_position IS NOT NULL)", name="copy_answers_nothing"),
    # The window: the live messages of a session in order.
    Index(
        "ix_messages_live",
        "sid",
        "position",
        sqlite_where=text("compaction_id IS NULL"),
        postgresql_where=text("compaction_id IS NULL"),
    ),
    # Pairing: the results that carry one call id, in order.
    Index(
        "ix_messages_results",
        "sid",
        "tool_call_id",
        "position",
        sqlite_where=text("tool_call_id IS NOT NULL"),
        postgresql_where=text("tool_call_id IS NOT NULL"),
    ),
    sqlite_with_rowid=False,
)

usage_reports = Table(
    "usage_reports",
    metadata,
    _session_key(primary=True),
    # Where the answer stands that the report speaks of: everything before it was counted.
    Column("position", Big, primary_key=True, autoincrement=False),
    Column("agent_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("prompt_tokens", Big, nullable=False),
    Column("at_ms", Big, nullable=False),
    # Learning: the newest reports of one model that one agent uses.
    Index("ix_usage_reports_model", "agent_id", "model", "position"),
    sqlite_with_rowid=False,
)
"""Reported token usage; calibration factors are computed from these rows and messages."""

reported_limits = Table(
    "reported_limits",
    metadata,
    # Cascades, because workers of revision 1001 erase sessions without knowing this table.
    Column("sid", Big, ForeignKey("sessions.sid", ondelete="CASCADE"), primary_key=True),
    Column("stream_seq", Big, primary_key=True, autoincrement=False),
    Column("model", Text, nullable=False),
    Column("limit_tokens", Big, nullable=False),
    Column("at_ms", Big, nullable=False),
    sqlite_with_rowid=False,
)
"""The sizes that providers named for the windows of models; see `turnfold.store.ingest.limits`."""

tool_calls = Table(
    "tool_calls",
    metadata,
    _session_key(primary=True),
    Column("call_id", Text, primary_key=True),
    Column("position", Big, primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""The calls of all messages by id, so that pairing reads no texts."""

compactions = Table(
    "compactions",
    metadata,
    # Drawn at random: a counter would tell one agent of another's work.
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    _session_key(),
    Column("ordinal", Integer, nullable=False),
    Column("trigger", Text, nullable=False),
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
    Column("fence", Integer, nullable=False, server_default=text("0")),
    Column("lease_until_ms", Big),
    Column("next_attempt_at_ms", Big, nullable=False),
    Column("requested_at_ms", Big, nullable=False),
    Column("finished_at_ms", Big),
    # When its messages left the window, and when they came back.
    Column("evicted_at_ms", Big),
    Column("restored_at_ms", Big),
    # What a regeneration was asked for, as JSON, and the campaign that asked.
    Column("wanted", Text),
    Column("campaign_id", Big),
    # The trace of the event that set it off, where there is one.
    Column("trace", Text),
    # Who asked for it; null where nobody did.
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
    # The window: evictions that no summary speaks for yet.
    Index(
        "ix_compactions_campaign",
        "campaign_id",
        sqlite_where=text("campaign_id IS NOT NULL"),
        postgresql_where=text("campaign_id IS NOT NULL"),
    ),
    Index(
        "ix_compactions_pending",
        "sid",
        sqlite_where=text("NOT is_covered"),
        postgresql_where=text("NOT is_covered"),
    ),
)

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

summaries = Table(
    "summaries",
    metadata,
    _session_key(primary=True),
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
    # What the provider counted, and what it costs in US dollars; null where nobody said.
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
    _session_key(primary=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""The evictions that each version covers in addition to those of its base."""

summary_activations = Table(
    "summary_activations",
    metadata,
    _session_key(primary=True),
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
    _session_key(primary=True),
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    Column("first_position", Big, primary_key=True, autoincrement=False),
    Column("last_position", Big, nullable=False),
    sqlite_with_rowid=False,
)
"""Ranges of messages that a restored compaction had evicted; `as_of` needs them."""

duplicate_events = Table(
    "duplicate_events",
    metadata,
    _session_key(primary=True),
    Column("stream_seq", Big, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""Further sequences of duplicate events, so that an erasure deletes them from the stream."""

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
)
"""Sequences that must still be deleted from the stream."""

chunk_summaries = Table(
    "chunk_summaries",
    metadata,
    # The oldest compaction of the job; what is evicted while it is tried again joins it.
    Column("compaction_id", Big, primary_key=True, autoincrement=False),
    Column("digest", Text, primary_key=True),
    _session_key(),
    # Empty where what was asked was too large for the model.
    Column("answer", Text, nullable=False),
    Column("at_ms", Big, nullable=False),
    # Erasing: what a session has left here.
    Index("ix_chunk_summaries_session", "sid"),
    sqlite_with_rowid=False,
)
"""Answers for parts of a long input, by digest of the prompt; deleted when the job ends."""

summary_token_usage = Table(
    "summary_token_usage",
    metadata,
    Column("agent_id", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("tokens", Big, nullable=False),
    sqlite_with_rowid=False,
)
"""Tokens that summaries took per agent and day (since 1970, UTC), failed attempts included."""

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
    sqlite_autoincrement=True,
)

index_removals = Table(
    "index_removals",
    metadata,
    Column("position", Big, primary_key=True, autoincrement=False),
    # No key of a session: that is gone.
    Column("sid", Big, nullable=False),
    Column("body", Text, nullable=False),
)
"""Erased messages whose words SQLite's index still has.

The index stores no texts, so removing a message needs its text. Rows are deleted within seconds.
"""

word_index = table(
    "word_index",
    column("rowid", Big),
    column("position", Big),
    column("sid", Big),
    column("terms", Text),
)
"""The search index, one row per message. The migrations create one kind per database."""
