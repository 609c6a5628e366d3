"""The views, whose columns the contract names."""

from alembic import op

# The databases cannot hold NUL or a lone surrogate in a text: such a text is shown as in the body.
# SQLite ends a text at NUL. A lone surrogate has the bytes ED A. or ED B., which can also be parts
# of other characters, so GLOB is asked as well: it reads a lone surrogate as U+FFFD.
TEXT = {
    "sqlite": """(
        SELECT CASE WHEN instr(replace(m.body, '\\\\', ''), '\\u0000') > 0
                      OR (m.body LIKE '%\\ud%' AND t.said GLOB '*[' || char(65533) || ']*'
                          AND hex(t.said) GLOB '*ED[AB]*')
                    THEN m.body ELSE t.said END
          FROM (SELECT CASE c.type WHEN 'array' THEN (
                           SELECT group_concat(p.said, char(10))
                             FROM (SELECT CASE e.type WHEN 'text' THEN e.value WHEN 'object' THEN (
                                            SELECT f.value FROM json_each(e.value) f
                                             WHERE f.key = 'text' AND f.type = 'text'
                                          ) END AS said
                                     FROM json_each(c.value) e ORDER BY e.key) p)
                       ELSE c.value END AS said
                  FROM json_each(m.body) c WHERE c.key = 'content'
                 ORDER BY c.id DESC LIMIT 1) t)""",
    "postgresql": "message_text(m.body)",
}
# A tool result that is neither a text nor parts is stored as a text beside its original JSON.
BODY = {
    "sqlite": """CASE WHEN m.original IS NULL THEN m.body
                    ELSE substr(m.body, 1, instr(m.body, ', "content": ') + 12)
                         || m.original || '}' END""",
    "postgresql": """CASE WHEN m.original IS NULL THEN m.body
                    ELSE substr(m.body, 1, strpos(m.body, ', "content": ') + 12)
                         || m.original || '}' END""",
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
                                WHEN 'object' THEN
                                  CASE json_typeof(part -> 'text')
                                    WHEN 'string' THEN part ->> 'text'
                                  END
                              END, chr(10) ORDER BY place)
              FROM json_array_elements(content) WITH ORDINALITY AS parts (part, place))
          WHEN 'null' THEN NULL
          ELSE content::text
        END;
      EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
        RETURN body;
      END $$"""

VIEWS = {
    "sessions_view": """
        SELECT s.agent_id, s.session_id, s.model, coalesce(s.preset, a.preset) AS policy,
               coalesce(s.mode, a.mode) AS mode, s.messages_total,
               (SELECT count(*) FROM messages m
                 WHERE m.sid = s.sid AND m.compaction_id IS NULL) AS messages_live,
               (SELECT coalesce(sum(c.messages_evicted), 0) FROM compactions c
                 WHERE c.sid = s.sid AND NOT c.is_covered
                   AND c.status IN ('pending', 'running', 'committed')) AS messages_pending,
               (SELECT coalesce(sum(c.messages_evicted), 0) FROM compactions c
                 WHERE c.sid = s.sid AND c.is_covered) AS messages_covered,
               s.tokens_total,
               (SELECT coalesce(sum(m.tokens), 0) FROM messages m
                 WHERE m.sid = s.sid AND m.compaction_id IS NULL) AS tokens_live,
               s.version AS summary_version, s.last_event_at_ms AS last_event_at
          FROM sessions s LEFT JOIN agents a ON a.agent_id = s.agent_id""",
    "messages_view": """
        SELECT s.agent_id, s.session_id,
               m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id,
               m.position / 1024 AS stream_seq, m.position, m.role, m.tool_call_id, m.tokens,
               CASE m.priority WHEN 0 THEN 'low' WHEN 1 THEN 'normal' ELSE 'high' END AS priority,
               CASE WHEN m.compaction_id IS NULL THEN 'live'
                    WHEN c.is_covered THEN 'covered' ELSE 'pending' END AS state,
               CAST(m.compaction_id AS TEXT) AS compaction_id, m.created_at_ms AS created_at,
               {text} AS text, {body} AS body
          FROM messages m JOIN sessions s ON s.sid = m.sid
               LEFT JOIN compactions c ON c.compaction_id = m.compaction_id""",
    "summaries_view": """
        SELECT s.agent_id, s.session_id, v.version, v.version = s.version AS in_force,
               v.kind, v.style, v.model, v.tokens, v.messages_covered,
               CAST(v.compaction_id AS TEXT) AS compaction_id, v.created_at_ms AS created_at, v.text
          FROM summaries v JOIN sessions s ON s.sid = v.sid""",
    "compactions_view": """
        SELECT CAST(c.compaction_id AS TEXT) AS compaction_id, s.agent_id, s.session_id,
               c.trigger, c.status, c.messages_evicted, c.tokens_before, c.tokens_after,
               c.attempts, c.reason, c.requested_at_ms AS requested_at,
               coalesce(c.restored_at_ms, c.finished_at_ms) AS finished_at
          FROM compactions c JOIN sessions s ON s.sid = c.sid""",
    "reigns_view": """
        SELECT s.agent_id, s.session_id, r.version, r.at_ms AS from_at,
               (SELECT min(n.at_ms) FROM summary_activations n
                 WHERE n.sid = r.sid AND n.ordinal > r.ordinal) AS until_at
          FROM summary_activations r JOIN sessions s ON s.sid = r.sid""",
    "coverage_view": """
        SELECT s.agent_id, s.session_id, v.version, v.base_version,
               CAST(c.compaction_id AS TEXT) AS compaction_id
          FROM summaries v JOIN sessions s ON s.sid = v.sid
               LEFT JOIN coverage c ON c.sid = v.sid AND c.version = v.version""",
    "moves_view": """
        SELECT s.agent_id, s.session_id,
               m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id, m.position,
               CAST(c.compaction_id AS TEXT) AS compaction_id,
               c.evicted_at_ms AS left_at, c.restored_at_ms AS back_at
          FROM compactions c JOIN sessions s ON s.sid = c.sid
               JOIN messages m
                 ON m.sid = c.sid AND m.position BETWEEN c.first_position AND c.last_position
         WHERE m.compaction_id = c.compaction_id
            OR EXISTS (SELECT 1 FROM restorations r
                        WHERE r.sid = c.sid AND r.compaction_id = c.compaction_id
                          AND m.position BETWEEN r.first_position AND r.last_position)""",
    "costs_view": """
        SELECT s.agent_id, s.session_id, v.created_at_ms AS at, v.version,
               CAST(v.compaction_id AS TEXT) AS compaction_id, v.model,
               v.prompt_tokens, v.completion_tokens, v.cost
          FROM summaries v JOIN sessions s ON s.sid = v.sid
         WHERE v.kind = 'llm'""",
    "audit_view": """
        SELECT audit_id, at_ms AS at, agent_id, session_id,
               CAST(compaction_id AS TEXT) AS compaction_id, phase, reason,
               tokens_before, tokens_after, details, prev_hash, hash, actor
          FROM audit""",
    "dead_letters_view": """
        SELECT dead_letter_id, at_ms AS at, subject, stream_seq, reason, size_bytes,
               replayed_at_ms AS replayed_at
          FROM dead_letters""",
}


def create_view(name: str, select: str) -> None:
    """Create or replace a view, whose `{text}` and `{body}` are those of messages.

    PostgreSQL keeps the rights on it, and others' views that read it.
    """
    connection = op.get_bind()
    dialect = connection.dialect.name
    columns = select.replace("{text}", TEXT[dialect]).replace("{body}", BODY[dialect])
    if dialect == "sqlite":
        op.execute(f"DROP VIEW IF EXISTS {name}")
    create = "CREATE" if dialect == "sqlite" else "CREATE OR REPLACE"
    # Not `op.execute`, which would read colons and backslashes as parameters and escapes.
    connection.exec_driver_sql(f"{create} VIEW {name} AS {columns}")
