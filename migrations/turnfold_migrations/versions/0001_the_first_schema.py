"""The first schema: sessions, their messages, compactions, summaries, and an audit that cannot be rewritten."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

VIEWS = {
    "sessions_view": """
        SELECT s.agent_id, s.session_id, s.model, coalesce(s.preset, a.preset) AS policy, coalesce(s.mode, a.mode) AS mode,
               s.messages_total,
               (SELECT count(*) FROM messages m WHERE m.sid = s.sid AND m.compaction_id IS NULL) AS messages_live,
               (SELECT coalesce(sum(c.messages_evicted), 0) FROM compactions c
                 WHERE c.sid = s.sid AND NOT c.is_covered AND c.status IN ('pending', 'running', 'committed')) AS messages_pending,
               (SELECT coalesce(sum(c.messages_evicted), 0) FROM compactions c WHERE c.sid = s.sid AND c.is_covered) AS messages_covered,
               s.tokens_total,
               (SELECT coalesce(sum(m.tokens), 0) FROM messages m WHERE m.sid = s.sid AND m.compaction_id IS NULL) AS tokens_live,
               s.version AS summary_version, s.last_event_at_ms AS last_event_at
          FROM sessions s LEFT JOIN agents a ON a.agent_id = s.agent_id""",
    "messages_view": """
        SELECT s.agent_id, s.session_id, m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id,
               m.position / 1024 AS stream_seq, m.position, m.role, m.tool_call_id, m.tokens,
               CASE m.priority WHEN 0 THEN 'low' WHEN 1 THEN 'normal' ELSE 'high' END AS priority,
               CASE WHEN m.compaction_id IS NULL THEN 'live' WHEN c.is_covered THEN 'covered' ELSE 'pending' END AS state,
               CAST(m.compaction_id AS TEXT) AS compaction_id, m.created_at_ms AS created_at
          FROM messages m JOIN sessions s ON s.sid = m.sid
               LEFT JOIN compactions c ON c.compaction_id = m.compaction_id""",
    "summaries_view": """
        SELECT s.agent_id, s.session_id, v.version, v.version = s.version AS in_force, v.kind, v.style, v.model, v.tokens,
               v.messages_covered, CAST(v.compaction_id AS TEXT) AS compaction_id, v.created_at_ms AS created_at, v.text
          FROM summaries v JOIN sessions s ON s.sid = v.sid""",
    "compactions_view": """
        SELECT CAST(c.compaction_id AS TEXT) AS compaction_id, s.agent_id, s.session_id, c.trigger, c.status, c.messages_evicted,
               c.tokens_before, c.tokens_after, c.attempts, c.reason, c.requested_at_ms AS requested_at, c.finished_at_ms AS finished_at
          FROM compactions c JOIN sessions s ON s.sid = c.sid""",
    "audit_view": """
        SELECT audit_id, at_ms AS at, agent_id, session_id, CAST(compaction_id AS TEXT) AS compaction_id, phase, reason,
               tokens_before, tokens_after, details, prev_hash, hash
          FROM audit""",
    "dead_letters_view": """
        SELECT dead_letter_id, at_ms AS at, subject, stream_seq, reason, size_bytes, replayed_at_ms AS replayed_at
          FROM dead_letters""",
}

AUDIT_IS_APPEND_ONLY = {
    "sqlite": [
        "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END",
        "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END",
    ],
    "postgresql": [
        """CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$""",
        """CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
           FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()""",
    ],
}


# Without figures SQLite reads a session's live messages by walking its whole history, and open jobs by walking all: nothing
# tells it that a partial index is short. Rows in all, then for one value of the first column, of the first two, and so on.
WHAT_THE_PLANNER_SHOULD_KNOW = [
    "ANALYZE sqlite_schema",
    """INSERT INTO sqlite_stat1 VALUES ('messages', 'messages', '1000000 10000 1'), ('messages', 'ix_messages_live', '4000 40 1'),
       ('messages', 'ix_messages_results', '400000 4000 2 1'), ('compactions', 'sqlite_autoindex_compactions_1', '100000 1000 1'),
       ('compactions', 'ix_compactions_pending', '2000 2'), ('compactions', 'ix_compactions_open', '1000 1')""",
]


def upgrade() -> None:
    """Bring the schema up to this revision."""
    op.create_table(
        "agents",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("preset", sa.Text(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=True),
        sa.Column("overrides", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_agents")),
    )
    op.create_table(
        "audit",
        sa.Column("audit_id", BIG, autoincrement=True, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("compaction_id", BIG, nullable=True),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("tokens_before", BIG, nullable=True),
        sa.Column("tokens_after", BIG, nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("prev_hash", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
        sa.UniqueConstraint(
            "agent_id", "session_id", "ordinal", name=op.f("uq_audit_agent_id_session_id_ordinal")
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "dead_letters",
        sa.Column("dead_letter_id", BIG, autoincrement=True, nullable=False),
        sa.Column("stream_seq", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("size_bytes", BIG, nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("replayed_at_ms", BIG, nullable=True),
        sa.PrimaryKeyConstraint("dead_letter_id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("stream_seq", name=op.f("uq_dead_letters_stream_seq")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ingested",
        sa.Column("first_seq", BIG, autoincrement=False, nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.CheckConstraint("first_seq <= last_seq", name=op.f("ck_ingested_rising")),
        sa.PrimaryKeyConstraint("first_seq", name=op.f("pk_ingested")),
    )
    op.create_table(
        "outbox",
        sa.Column("outbox_id", BIG, autoincrement=True, nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("pk_outbox")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "sessions",
        sa.Column("sid", BIG, autoincrement=True, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("preset", sa.Text(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=True),
        sa.Column("overrides", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("model_seq", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("revision", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("messages_total", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("tokens_total", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("live_messages", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("live_tokens", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("factor", sa.Float(), server_default=sa.text("(1.0)"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("versions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("compactions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_rows", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_hash", sa.Text(), server_default=sa.text("('')"), nullable=False),
        sa.Column("last_event_at_ms", BIG, nullable=True),
        sa.CheckConstraint(
            "live_messages >= 0 AND live_tokens >= 0", name=op.f("ck_sessions_live")
        ),
        sa.PrimaryKeyConstraint("sid", name=op.f("pk_sessions")),
        sa.UniqueConstraint("agent_id", "session_id", name=op.f("uq_sessions_agent_id_session_id")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "stream",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_stream")),
    )
    op.create_table(
        "compactions",
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("is_covered", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("first_position", BIG, nullable=True),
        sa.Column("last_position", BIG, nullable=True),
        sa.Column("messages_evicted", sa.Integer(), nullable=False),
        sa.Column("tokens_evicted", BIG, nullable=False),
        sa.Column("tokens_before", BIG, nullable=False),
        sa.Column("tokens_after", BIG, nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("digest_tokens", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("fence", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_until_ms", BIG, nullable=True),
        sa.Column("next_attempt_at_ms", BIG, nullable=False),
        sa.Column("requested_at_ms", BIG, nullable=False),
        sa.Column("finished_at_ms", BIG, nullable=True),
        sa.CheckConstraint(
            "(status = 'running') = (lease_until_ms IS NOT NULL)", name=op.f("ck_compactions_lease")
        ),
        sa.CheckConstraint(
            "NOT is_covered OR status = 'committed'", name=op.f("ck_compactions_covered")
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'committed', 'rejected', 'failed', 'stale', 'restored')",
            name=op.f("ck_compactions_status"),
        ),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_compactions_sid")),
        sa.PrimaryKeyConstraint("compaction_id", name=op.f("pk_compactions")),
        sa.UniqueConstraint("sid", "ordinal", name=op.f("uq_compactions_sid_ordinal")),
    )
    op.create_index(
        "ix_compactions_open",
        "compactions",
        ["next_attempt_at_ms"],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'running')"),
        postgresql_where=sa.text("status IN ('pending', 'running')"),
    )
    op.create_index(
        "ix_compactions_pending",
        "compactions",
        ["sid"],
        unique=False,
        sqlite_where=sa.text("NOT is_covered"),
        postgresql_where=sa.text("NOT is_covered"),
    )

    op.create_table(
        "events",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("stream_seq", BIG, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_events_sid")),
        sa.PrimaryKeyConstraint("agent_id", "event_id", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "messages",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("content_tokens", sa.Integer(), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=False),
        sa.Column("characters", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("is_meta", sa.Boolean(), nullable=False),
        sa.Column("is_irregular", sa.Boolean(), nullable=False),
        sa.Column("is_truncated", sa.Boolean(), nullable=False),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column("calls", sa.Text(), nullable=True),
        sa.Column("tool_call_id", sa.Text(), nullable=True),
        sa.Column("content_digest", sa.LargeBinary(), nullable=True),
        sa.Column("answers_position", BIG, nullable=True),
        sa.Column("answers_slot", sa.Integer(), nullable=True),
        sa.Column("is_copy", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at_ms", BIG, nullable=False),
        sa.Column("compaction_id", BIG, nullable=True),
        sa.Column("cuts", sa.Text(), nullable=True),
        sa.Column("original", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "role IN ('system', 'developer', 'user', 'assistant', 'tool')",
            name=op.f("ck_messages_role"),
        ),
        sa.CheckConstraint(
            "(answers_position IS NULL) = (answers_slot IS NULL)", name=op.f("ck_messages_answer")
        ),
        sa.CheckConstraint(
            "NOT (is_copy AND answers_position IS NOT NULL)",
            name=op.f("ck_messages_copy_answers_nothing"),
        ),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_messages_sid")),
        sa.PrimaryKeyConstraint("sid", "position", name=op.f("pk_messages")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_messages_live",
        "messages",
        ["sid", "position"],
        unique=False,
        sqlite_where=sa.text("compaction_id IS NULL"),
        postgresql_where=sa.text("compaction_id IS NULL"),
    )
    op.create_index(
        "ix_messages_results",
        "messages",
        ["sid", "tool_call_id", "position"],
        unique=False,
        sqlite_where=sa.text("tool_call_id IS NOT NULL"),
        postgresql_where=sa.text("tool_call_id IS NOT NULL"),
    )

    op.create_table(
        "summaries",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("base_version", sa.Integer(), nullable=True),
        sa.Column("compaction_id", BIG, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("style", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("prompt_version", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("sections", sa.Text(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("text_tokens", sa.Integer(), nullable=False),
        sa.Column("cuts", sa.Text(), nullable=True),
        sa.Column("first_position", BIG, nullable=False),
        sa.Column("last_position", BIG, nullable=False),
        sa.Column("covers_first", sa.Text(), nullable=False),
        sa.Column("covers_last", sa.Text(), nullable=False),
        sa.Column("messages_covered", BIG, nullable=False),
        sa.Column("created_at_ms", BIG, nullable=False),
        sa.CheckConstraint("kind IN ('llm', 'extractive')", name=op.f("ck_summaries_kind")),
        sa.CheckConstraint(
            "version > 0 AND (base_version IS NULL OR base_version < version)",
            name=op.f("ck_summaries_version"),
        ),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_summaries_sid")),
        sa.PrimaryKeyConstraint("sid", "version", name=op.f("pk_summaries")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tool_calls",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_tool_calls_sid")),
        sa.PrimaryKeyConstraint("sid", "call_id", "position", "slot", name=op.f("pk_tool_calls")),
        sqlite_with_rowid=False,
    )
    for name, select in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {select}")
    if op.get_bind().dialect.name == "sqlite":
        for statement in WHAT_THE_PLANNER_SHOULD_KNOW:
            op.execute(statement)
    for statement in AUDIT_IS_APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    """Remove everything."""
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    op.drop_table("tool_calls")
    op.drop_table("summaries")
    op.drop_index("ix_messages_results", "messages")
    op.drop_index("ix_messages_live", "messages")

    op.drop_table("messages")
    op.drop_table("events")
    op.drop_index("ix_compactions_pending", "compactions")
    op.drop_index("ix_compactions_open", "compactions")

    op.drop_table("compactions")
    op.drop_table("stream")
    op.drop_table("sessions")
    op.drop_table("outbox")
    op.drop_table("ingested")
    op.drop_table("dead_letters")
    op.drop_table("audit")
    op.drop_table("agents")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only")
