"""Sessions, and what ingest writes of them: events, messages, tool calls and reports."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from turnfold.store.database.schema.definitions import Big, metadata, session_key

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
    # Those of its changes that only appended messages. While the difference is the same, a query
    # server reads new messages alone. Workers before revision 1014 count none.
    Column("appends", Big, nullable=False, server_default=text("0")),
    Column("messages_total", Big, nullable=False, server_default=text("0")),
    Column("tokens_total", Big, nullable=False, server_default=text("0")),
    # Live messages but system ones: what the triggers look at.
    Column("live_messages", Big, nullable=False, server_default=text("0")),
    Column("live_tokens", Big, nullable=False, server_default=text("0")),
    # The calibration factor; see `turnfold.store.ingest.usage`.
    Column("factor", Float, nullable=False, server_default=text("1.0")),
    # The version in force; null before the first one. `versions` counts all, so that numbers are
    # never reused.
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
    # Restored messages stay until the session has grown to so many tokens, or a request evicts.
    Column("held_to_tokens", Big, nullable=False, server_default=text("0")),
    # The first message that the search index may not have; null when it has all.
    Column("unindexed_from", Big),
    # The windows of models as providers reported them: tokens by model, as JSON; null without any.
    Column("window_limits", Text),
    # The budgets that windows were asked with: times and tokens, as JSON; null without any.
    Column("asked_budgets", Text),
    # The newest retraction in stream order, 0 without one; earlier messages are checked on arrival.
    Column("retracted_seq", Big, nullable=False, server_default=text("0")),
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
    session_key(),
    Column("stream_seq", Big, nullable=False),
    # Compared with that of a duplicate, before any text is.
    Column("digest", LargeBinary, nullable=False),
    # The fields of the event besides its messages, as JSON; null if it has none.
    Column("envelope", Text),
    # Erasing a session.
    Index("ix_events_sid", "sid"),
    sqlite_with_rowid=False,
)
"""One row per event, however often it was published."""

duplicate_events = Table(
    "duplicate_events",
    metadata,
    session_key(primary=True),
    Column("stream_seq", Big, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""Further sequences of duplicate events, so that an erasure deletes them from the stream."""

PINNABLE = "role IN ('system', 'developer') AND position % 1024 = 0"
"""The condition for system messages that begin their event, as its index has it."""

messages = Table(
    "messages",
    metadata,
    session_key(primary=True),
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
    # A digest of a result, which tells a copy from another answer without reading texts.
    Column("content_digest", LargeBinary),
    # The call that this result answers, decided again whenever an event touches its call id.
    Column("answers_position", Big),
    Column("answers_slot", Integer),
    # A result that was published again with the same content: windows show it once.
    Column("is_copy", Boolean, nullable=False, server_default=false()),
    Column("created_at_ms", Big, nullable=False),
    Column("compaction_id", Big),
    # Tokens at offsets of a long text, so that windows shorten it without a tokenizer.
    Column("cuts", Text),
    # The message as a window shows it. `original` is what was published, if that differs.
    Column("original", Text),
    Column("body", Text, nullable=False),
    # The texts that a digest may show of it without reading its body; null if there are none.
    Column("gist", Text),
    # A number of `messages.Element` if no chat message was published; otherwise null. `original`
    # is the element then, packed; see `core.shapes.packing`.
    Column("element", SmallInteger),
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
    # The system message that is pinned after newer ones were retracted.
    Index(
        "ix_messages_pinnable",
        "sid",
        "position",
        sqlite_where=text(PINNABLE),
        postgresql_where=text(PINNABLE),
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

tool_calls = Table(
    "tool_calls",
    metadata,
    session_key(primary=True),
    Column("call_id", Text, primary_key=True),
    Column("position", Big, primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""The calls of all messages by id, so that pairing reads no texts."""

marked_lines = Table(
    "marked_lines",
    metadata,
    # Older workers erase sessions without knowing this table.
    Column("sid", Big, ForeignKey("sessions.sid", ondelete="CASCADE"), primary_key=True),
    Column("position", Big, primary_key=True, autoincrement=False),
    # See `turnfold.core.recall.quotes.mark_lines`.
    Column("lines", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""The lines of messages that a recall block may quote; no row for a message without any."""

usage_reports = Table(
    "usage_reports",
    metadata,
    session_key(primary=True),
    # Its event's position; workers before revision 1023 write that of the answer it names.
    Column("position", Big, primary_key=True, autoincrement=False),
    # Empty for a report that teaches nothing; see `turnfold.store.ingest.usage.TEACHES_NONE`.
    Column("agent_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("prompt_tokens", Big, nullable=False),
    Column("at_ms", Big, nullable=False),
    # The answer that it names, if any.
    Column("message_id", Text),
    # Where its answer stands: everything before it was counted. Its own position if the answer that
    # it names is not stored before it; null means that, too, from workers before revision 1023.
    Column("answer_position", Big),
    # Learning: the newest reports of one model that one agent uses.
    Index("ix_usage_reports_model", "agent_id", "model", "position"),
    # Learning: the report before another one. A retraction concerns reports of later answers.
    Index("ix_usage_reports_answer", "sid", text("coalesce(answer_position, position)")),
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
"""The sizes that providers named for the windows of models.

See `turnfold.store.ingest.model_windows`.
"""

retractions = Table(
    "retractions",
    metadata,
    # Cascades, because workers of revision 1008 erase sessions without knowing these tables.
    Column("sid", Big, ForeignKey("sessions.sid", ondelete="CASCADE"), primary_key=True),
    Column("stream_seq", Big, primary_key=True, autoincrement=False),
    Column("at_ms", Big, nullable=False),
    # The messages that it names, as JSON: `message_ids`, `after` or `all`.
    Column("named", Text, nullable=False),
    Column("actor", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""Retractions, kept so that messages which arrive late are retracted as well."""

retracted_messages = Table(
    "retracted_messages",
    metadata,
    Column("sid", Big, ForeignKey("sessions.sid", ondelete="CASCADE"), primary_key=True),
    Column("position", Big, primary_key=True, autoincrement=False),
    *(
        Column(column.name, column.type, nullable=column.nullable)
        for column in messages.c
        if not column.primary_key
    ),
    # The first retraction that names the message or its call.
    Column("retracted_seq", Big, nullable=False),
    Column("retracted_at_ms", Big, nullable=False),
    # False: a result that only follows its call.
    Column("is_named", Boolean, nullable=False),
    # True: a result that was not named. Only workers before revision 1012 read it.
    Column("is_paired", Boolean, nullable=False),
    # The newest version when it was retracted. Only workers before revision 1012 read it.
    Column("versions", Integer, nullable=False),
    # The first retraction that names the message itself; older workers write null, and `is_named`.
    Column("named_seq", Big),
    # Pairing: the retracted results, by call id.
    Index(
        "ix_retracted_messages_results",
        "sid",
        "tool_call_id",
        sqlite_where=text("tool_call_id IS NOT NULL"),
        postgresql_where=text("tool_call_id IS NOT NULL"),
    ),
    # Learning: the first message of each later retraction.
    Index("ix_retracted_messages_seq", "sid", "retracted_seq", "position"),
    sqlite_with_rowid=False,
)
"""The originals of retracted messages, with the columns of `messages`.

They are in a table of their own, so that no other query has to exclude them.
"""
