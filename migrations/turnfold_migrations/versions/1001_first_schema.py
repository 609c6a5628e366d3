"""The first schema: sessions, their messages, compactions, summaries and an append-only audit."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "1001"
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
               CAST(m.compaction_id AS TEXT) AS compaction_id, m.created_at_ms AS created_at,
               {text} AS text, {body} AS body
          FROM messages m JOIN sessions s ON s.sid = m.sid
               LEFT JOIN compactions c ON c.compaction_id = m.compaction_id""",
    "summaries_view": """
        SELECT s.agent_id, s.session_id, v.version, v.version = s.version AS in_force, v.kind, v.style, v.model, v.tokens,
               v.messages_covered, CAST(v.compaction_id AS TEXT) AS compaction_id, v.created_at_ms AS created_at, v.text
          FROM summaries v JOIN sessions s ON s.sid = v.sid""",
    "compactions_view": """
        SELECT CAST(c.compaction_id AS TEXT) AS compaction_id, s.agent_id, s.session_id, c.trigger, c.status, c.messages_evicted,
               c.tokens_before, c.tokens_after, c.attempts, c.reason, c.requested_at_ms AS requested_at,
               coalesce(c.restored_at_ms, c.finished_at_ms) AS finished_at
          FROM compactions c JOIN sessions s ON s.sid = c.sid""",
    "reigns_view": """
        SELECT s.agent_id, s.session_id, r.version, r.at_ms AS from_at,
               (SELECT min(n.at_ms) FROM summary_activations n WHERE n.sid = r.sid AND n.ordinal > r.ordinal) AS until_at
          FROM summary_activations r JOIN sessions s ON s.sid = r.sid""",
    "coverage_view": """
        SELECT s.agent_id, s.session_id, v.version, v.base_version, CAST(c.compaction_id AS TEXT) AS compaction_id
          FROM summaries v JOIN sessions s ON s.sid = v.sid
               LEFT JOIN coverage c ON c.sid = v.sid AND c.version = v.version""",
    "moves_view": """
        SELECT s.agent_id, s.session_id, m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id, m.position,
               CAST(c.compaction_id AS TEXT) AS compaction_id, c.evicted_at_ms AS left_at, c.restored_at_ms AS back_at
          FROM compactions c JOIN sessions s ON s.sid = c.sid
               JOIN messages m ON m.sid = c.sid AND m.position BETWEEN c.first_position AND c.last_position
         WHERE m.compaction_id = c.compaction_id
            OR EXISTS (SELECT 1 FROM restorations r WHERE r.sid = c.sid AND r.compaction_id = c.compaction_id
                                                      AND m.position BETWEEN r.first_position AND r.last_position)""",
    "costs_view": """
        SELECT s.agent_id, s.session_id, v.created_at_ms AS at, v.version, CAST(v.compaction_id AS TEXT) AS compaction_id, v.model,
               v.prompt_tokens, v.completion_tokens, v.cost
          FROM summaries v JOIN sessions s ON s.sid = v.sid
         WHERE v.kind = 'llm'""",
    "audit_view": """
        SELECT audit_id, at_ms AS at, agent_id, session_id, CAST(compaction_id AS TEXT) AS compaction_id, phase, reason,
               tokens_before, tokens_after, details, prev_hash, hash, actor
          FROM audit""",
    "dead_letters_view": """
        SELECT dead_letter_id, at_ms AS at, subject, stream_seq, reason, size_bytes, replayed_at_ms AS replayed_at
          FROM dead_letters""",
}

# The databases cannot hold NUL or a lone surrogate in a text: such a text is shown as in the body.
# SQLite ends a text at NUL. A lone surrogate has the bytes ED A. or ED B., which can also be parts of
# other characters, so GLOB is asked as well: it reads a lone surrogate as U+FFFD.
TEXT = {
    "sqlite": """(
        SELECT CASE WHEN instr(replace(m.body, '\\\\', ''), '\\u0000') > 0
                      OR (m.body LIKE '%\\ud%' AND t.said GLOB '*[' || char(65533) || ']*' AND hex(t.said) GLOB '*ED[AB]*')
                    THEN m.body ELSE t.said END
          FROM (SELECT CASE c.type WHEN 'array' THEN (
                           SELECT group_concat(p.said, char(10))
                             FROM (SELECT CASE e.type WHEN 'text' THEN e.value WHEN 'object' THEN (
                                              SELECT f.value FROM json_each(e.value) f WHERE f.key = 'text' AND f.type = 'text'
                                          ) END AS said
                                     FROM json_each(c.value) e ORDER BY e.key) p)
                       ELSE c.value END AS said
                  FROM json_each(m.body) c WHERE c.key = 'content' ORDER BY c.id DESC LIMIT 1) t)""",
    "postgresql": "message_text(m.body)",
}
# A tool result that is neither a text nor parts is stored as a text beside its original JSON.
BODY = {
    "sqlite": """CASE WHEN m.original IS NULL THEN m.body
                    ELSE substr(m.body, 1, instr(m.body, ', "content": ') + 12) || m.original || '}' END""",
    "postgresql": """CASE WHEN m.original IS NULL THEN m.body
                    ELSE substr(m.body, 1, strpos(m.body, ', "content": ') + 12) || m.original || '}' END""",
}
MESSAGE_TEXT = """
    CREATE FUNCTION message_text(body text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
      DECLARE
        content json;
      BEGIN
        content := body::json -> 'content';
        RETURN CASE json_typeof(content)
          WHEN 'string' THEN content #>> '{}'
          WHEN 'array' THEN (
            SELECT string_agg(CASE json_typeof(part)
                                WHEN 'string' THEN part #>> '{}'
                                WHEN 'object' THEN CASE json_typeof(part -> 'text') WHEN 'string' THEN part ->> 'text' END
                              END, chr(10) ORDER BY place)
              FROM json_array_elements(content) WITH ORDINALITY AS parts (part, place))
          WHEN 'null' THEN NULL
          ELSE content::text
        END;
      EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
        RETURN body;
      END $$"""

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

COUNT_SESSIONS = {
    "sqlite": [
        """CREATE TRIGGER sessions_made AFTER INSERT ON sessions BEGIN
             INSERT INTO session_counts (agent_id, total) VALUES (NEW.agent_id, 1)
               ON CONFLICT (agent_id) DO UPDATE SET total = total + 1;
           END""",
        """CREATE TRIGGER sessions_gone AFTER DELETE ON sessions BEGIN
             UPDATE session_counts SET total = total - 1 WHERE agent_id = OLD.agent_id;
           END""",
    ],
    "postgresql": [
        """CREATE FUNCTION count_sessions_made() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO session_counts AS counted (agent_id, total) SELECT agent_id, count(*) FROM made GROUP BY agent_id ORDER BY agent_id
               ON CONFLICT (agent_id) DO UPDATE SET total = counted.total + excluded.total;
             RETURN NULL;
           END $$""",
        """CREATE FUNCTION count_sessions_gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             UPDATE session_counts AS counted SET total = counted.total - less.sessions
               FROM (SELECT agent_id, count(*) AS sessions FROM gone GROUP BY agent_id) AS less WHERE less.agent_id = counted.agent_id;
             RETURN NULL;
           END $$""",
        """CREATE TRIGGER sessions_made AFTER INSERT ON sessions REFERENCING NEW TABLE AS made
             FOR EACH STATEMENT EXECUTE FUNCTION count_sessions_made()""",
        """CREATE TRIGGER sessions_gone AFTER DELETE ON sessions REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION count_sessions_gone()""",
    ],
}

BATCHED = ("events", "messages", "tool_calls")
"""The tables that ingest fills, many rows at once, in its order."""

SESSION_CHECKS = [
    # Checked for all rows of a statement: foreign keys, row by row, were a seventh of ingest's time.
    # Like a foreign key, the check keeps the sessions from being deleted until the transaction ends.
    """CREATE FUNCTION rows_need_sessions() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE
           wanted bigint[] := (SELECT array_agg(DISTINCT sid) FROM added);
           there bigint;
         BEGIN
           PERFORM FROM sessions WHERE sid = ANY (wanted) FOR KEY SHARE;
           GET DIAGNOSTICS there = ROW_COUNT;
           IF there < cardinality(wanted) THEN
             RAISE foreign_key_violation USING MESSAGE = format('rows of %I have no session', TG_TABLE_NAME);
           END IF;
           RETURN NULL;
         END $$""",
    """CREATE FUNCTION rows_stay_in_sessions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         RAISE foreign_key_violation USING MESSAGE = format('rows of %I stay in their sessions', TG_TABLE_NAME);
       END $$""",
    f"""CREATE FUNCTION sessions_have_no_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF {" OR ".join(f"EXISTS (SELECT FROM gone JOIN {table} USING (sid))" for table in BATCHED)} THEN
           RAISE foreign_key_violation USING MESSAGE = 'a session has rows';
         END IF;
         RETURN NULL;
       END $$""",
    *(
        f"CREATE TRIGGER {table}_need_sessions AFTER INSERT ON {table} REFERENCING NEW TABLE AS added"
        " FOR EACH STATEMENT EXECUTE FUNCTION rows_need_sessions()"
        for table in BATCHED
    ),
    *(
        f"CREATE TRIGGER {table}_stay_in_sessions AFTER UPDATE OF sid ON {table} FOR EACH ROW"
        " WHEN (OLD.sid IS DISTINCT FROM NEW.sid) EXECUTE FUNCTION rows_stay_in_sessions()"
        for table in BATCHED
    ),
    """CREATE TRIGGER sessions_have_no_rows AFTER DELETE ON sessions REFERENCING OLD TABLE AS gone
         FOR EACH STATEMENT EXECUTE FUNCTION sessions_have_no_rows()""",
    *(f"ALTER TABLE {table} DROP CONSTRAINT fk_{table}_sid" for table in BATCHED),
    MESSAGE_TEXT,
]

WORD_INDEX = {
    "sqlite": [
        """CREATE VIRTUAL TABLE word_index USING fts5(
            terms, content='', detail='none', columnsize=1, tokenize="ascii")""",
    ],
    "postgresql": [
        "CREATE TABLE word_index (position BIGINT PRIMARY KEY, sid BIGINT NOT NULL, terms TSVECTOR NOT NULL)",
        # With fastupdate, every search would also read the list of rows that are not merged yet.
        "CREATE INDEX ix_word_index_terms ON word_index USING gin (terms) WITH (fastupdate = off)",
        # For erasing a session.
        "CREATE INDEX ix_word_index_sid ON word_index (sid)",
    ],
}

# Without statistics SQLite scans a session's whole history for its live messages, and all compactions
# for open ones: it cannot know that a partial index is short. Each string has the number of rows, then
# the rows per value of the first column, of the first two columns, and so on.
PLANNER_STATISTICS = [
    "ANALYZE sqlite_schema",
    """INSERT INTO sqlite_stat1 VALUES ('messages', 'messages', '1000000 10000 1'), ('messages', 'ix_messages_live', '4000 40 1'),
       ('messages', 'ix_messages_results', '400000 4000 2 1'), ('compactions', 'sqlite_autoindex_compactions_1', '100000 1000 1'),
       ('compactions', 'ix_compactions_pending', '2000 2'), ('compactions', 'ix_compactions_open', '1000 1')""",
]

TABLES = (
    "agents",
    "audit",
    "campaigns",
    "dead_letters",
    "erased_events",
    "erasures",
    "index_removals",
    "ingested_ranges",
    "installation_secrets",
    "outbox",
    "session_counts",
    "sessions",
    "stream",
    "stream_purges",
    "summary_token_usage",
    "chunk_summaries",
    "compactions",
    "coverage",
    "duplicate_events",
    "events",
    "messages",
    "restorations",
    "summaries",
    "summary_activations",
    "tool_calls",
    "usage_reports",
)
FUNCTIONS = (
    "message_text",
    "sessions_have_no_rows",
    "rows_stay_in_sessions",
    "rows_need_sessions",
    "count_sessions_gone",
    "count_sessions_made",
    "audit_is_append_only",
)


def upgrade() -> None:
    """Create everything in an empty database."""
    connection = op.get_bind()
    dialect = connection.dialect.name
    _create_tables()
    for statement in (
        *AUDIT_IS_APPEND_ONLY[dialect],
        *COUNT_SESSIONS[dialect],
        *WORD_INDEX[dialect],
        *(PLANNER_STATISTICS if dialect == "sqlite" else SESSION_CHECKS),
    ):
        op.execute(statement)
    for name, select in VIEWS.items():
        columns = select.replace("{text}", TEXT[dialect]).replace("{body}", BODY[dialect])
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {columns}")
    connection.execute(
        sa.text("INSERT INTO installation_secrets (name, value) VALUES ('actor', :value)"),
        {"value": secrets.token_hex(32)},
    )


def downgrade() -> None:
    """Remove everything."""
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    op.execute("DROP TABLE word_index")
    for table in reversed(TABLES):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        for function in FUNCTIONS:
            op.execute(f"DROP FUNCTION {function}")


def _create_tables() -> None:
    # In the order of their foreign keys.
    _create_agents_audit_and_campaigns()
    _create_dead_letters_and_erasures()
    _create_ranges_secrets_and_outbox()
    _create_sessions()
    _create_stream_token_usage_and_chunks()
    _create_compactions()
    _create_compaction_indexes()
    _create_coverage_and_events()
    _create_messages()
    _create_restorations_and_summaries()
    _create_calls_and_usage_reports()


def _create_agents_audit_and_campaigns() -> None:
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
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
        sa.UniqueConstraint(
            "agent_id", "session_id", "ordinal", name=op.f("uq_audit_agent_id_session_id_ordinal")
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "campaigns",
        sa.Column("campaign_id", BIG, autoincrement=False, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("at_once", sa.Integer(), nullable=False),
        sa.Column("last_sid", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("until_sid", BIG, nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("requested_at_ms", BIG, nullable=False),
        sa.Column("finished_at_ms", BIG, nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_campaigns")),
    )
    op.create_index(
        "ix_campaigns_unfinished",
        "campaigns",
        ["requested_at_ms"],
        unique=False,
        sqlite_where=sa.text("finished_at_ms IS NULL"),
        postgresql_where=sa.text("finished_at_ms IS NULL"),
    )


def _create_dead_letters_and_erasures() -> None:
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
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("dead_letter_id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("stream_seq", name=op.f("uq_dead_letters_stream_seq")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "erased_events",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_erased_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "erasures",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("audit_rows", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_hash", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "session_id", name=op.f("pk_erasures")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "index_removals",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_index_removals")),
    )


def _create_ranges_secrets_and_outbox() -> None:
    op.create_table(
        "ingested_ranges",
        sa.Column("first_seq", BIG, autoincrement=False, nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.CheckConstraint("first_seq <= last_seq", name=op.f("ck_ingested_ranges_rising")),
        sa.PrimaryKeyConstraint("first_seq", name=op.f("pk_ingested_ranges")),
    )
    op.create_table(
        "installation_secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation_secrets")),
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
        "session_counts",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("total", BIG, server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_session_counts")),
        sqlite_with_rowid=False,
    )


def _create_sessions() -> None:
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
        sa.Column("factor", sa.Float(), server_default=sa.text("1.0"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("versions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("compactions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_rows", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audit_hash", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("last_event_at_ms", BIG, nullable=True),
        sa.Column("evicted_changes", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("rounds", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("idle_at_ms", BIG, nullable=True),
        sa.Column("reported_seq", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("reported_at_ms", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("reported_tokens", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("usage_evictions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cooldown_until_ms", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("cooldown_reason", sa.Text(), nullable=True),
        sa.Column("held_to_tokens", BIG, server_default=sa.text("0"), nullable=False),
        sa.Column("unindexed_from", BIG, nullable=True),
        sa.CheckConstraint(
            "live_messages >= 0 AND live_tokens >= 0", name=op.f("ck_sessions_live")
        ),
        sa.PrimaryKeyConstraint("sid", name=op.f("pk_sessions")),
        sa.UniqueConstraint("agent_id", "session_id", name=op.f("uq_sessions_agent_id_session_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_sessions_idle",
        "sessions",
        ["idle_at_ms"],
        unique=False,
        sqlite_where=sa.text("idle_at_ms IS NOT NULL"),
        postgresql_where=sa.text("idle_at_ms IS NOT NULL"),
    )
    op.create_index(
        "ix_sessions_unindexed",
        "sessions",
        ["unindexed_from"],
        unique=False,
        sqlite_where=sa.text("unindexed_from IS NOT NULL"),
        postgresql_where=sa.text("unindexed_from IS NOT NULL"),
    )


def _create_stream_token_usage_and_chunks() -> None:
    op.create_table(
        "stream",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_stream")),
    )
    op.create_table(
        "stream_purges",
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("stream_seq", name=op.f("pk_stream_purges")),
    )
    op.create_table(
        "summary_token_usage",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "day", name=op.f("pk_summary_token_usage")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "chunk_summaries",
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_chunk_summaries_sid")),
        sa.PrimaryKeyConstraint("compaction_id", "digest", name=op.f("pk_chunk_summaries")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_chunk_summaries_session", "chunk_summaries", ["sid"], unique=False)


def _create_compactions() -> None:
    op.create_table(
        "compactions",
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("sid", BIG, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("is_covered", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("budget_tokens", BIG, server_default=sa.text("0"), nullable=False),
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
        sa.Column("evicted_at_ms", BIG, nullable=True),
        sa.Column("restored_at_ms", BIG, nullable=True),
        sa.Column("wanted", sa.Text(), nullable=True),
        sa.Column("campaign_id", BIG, nullable=True),
        sa.Column("trace", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=True),
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


def _create_compaction_indexes() -> None:
    op.create_index(
        "ix_compactions_campaign",
        "compactions",
        ["campaign_id"],
        unique=False,
        sqlite_where=sa.text("campaign_id IS NOT NULL"),
        postgresql_where=sa.text("campaign_id IS NOT NULL"),
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


def _create_coverage_and_events() -> None:
    op.create_table(
        "coverage",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_coverage_sid")),
        sa.PrimaryKeyConstraint("sid", "version", "compaction_id", name=op.f("pk_coverage")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "duplicate_events",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_duplicate_events_sid")),
        sa.PrimaryKeyConstraint("sid", "stream_seq", name=op.f("pk_duplicate_events")),
        sqlite_with_rowid=False,
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
    op.create_index("ix_events_sid", "events", ["sid"], unique=False)


def _create_messages() -> None:
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


def _create_restorations_and_summaries() -> None:
    op.create_table(
        "restorations",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("compaction_id", BIG, autoincrement=False, nullable=False),
        sa.Column("first_position", BIG, autoincrement=False, nullable=False),
        sa.Column("last_position", BIG, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_restorations_sid")),
        sa.PrimaryKeyConstraint(
            "sid", "compaction_id", "first_position", name=op.f("pk_restorations")
        ),
        sqlite_with_rowid=False,
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
        sa.Column("depth", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("prompt_tokens", BIG, nullable=True),
        sa.Column("completion_tokens", BIG, nullable=True),
        sa.Column("cost", sa.Float(), nullable=True),
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
        "summary_activations",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_summary_activations_sid")),
        sa.PrimaryKeyConstraint("sid", "ordinal", name=op.f("pk_summary_activations")),
        sqlite_with_rowid=False,
    )


def _create_calls_and_usage_reports() -> None:
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
    op.create_table(
        "usage_reports",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_usage_reports_sid")),
        sa.PrimaryKeyConstraint("sid", "position", name=op.f("pk_usage_reports")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_usage_reports_model", "usage_reports", ["agent_id", "model", "position"], unique=False
    )

    # ### end Alembic commands ###
