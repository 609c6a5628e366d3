"""The audit says who asked, and evicted texts can be read through a view.

Columns are added without a value for older rows: older services append audit rows beside newer ones during an upgrade.
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

MESSAGES = """
        SELECT s.agent_id, s.session_id, m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id,
               m.position / 1024 AS stream_seq, m.position, m.role, m.tool_call_id, m.tokens,
               CASE m.priority WHEN 0 THEN 'low' WHEN 1 THEN 'normal' ELSE 'high' END AS priority,
               CASE WHEN m.compaction_id IS NULL THEN 'live' WHEN c.is_covered THEN 'covered' ELSE 'pending' END AS state,
               CAST(m.compaction_id AS TEXT) AS compaction_id, m.created_at_ms AS created_at,
               {text} AS text, {body} AS body
          FROM messages m JOIN sessions s ON s.sid = m.sid
               LEFT JOIN compactions c ON c.compaction_id = m.compaction_id"""
MESSAGES_BEFORE = """
        SELECT s.agent_id, s.session_id, m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id,
               m.position / 1024 AS stream_seq, m.position, m.role, m.tool_call_id, m.tokens,
               CASE m.priority WHEN 0 THEN 'low' WHEN 1 THEN 'normal' ELSE 'high' END AS priority,
               CASE WHEN m.compaction_id IS NULL THEN 'live' WHEN c.is_covered THEN 'covered' ELSE 'pending' END AS state,
               CAST(m.compaction_id AS TEXT) AS compaction_id, m.created_at_ms AS created_at
          FROM messages m JOIN sessions s ON s.sid = m.sid
               LEFT JOIN compactions c ON c.compaction_id = m.compaction_id"""
AUDIT = """
        SELECT audit_id, at_ms AS at, agent_id, session_id, CAST(compaction_id AS TEXT) AS compaction_id, phase, reason,
               tokens_before, tokens_after, details, prev_hash, hash, actor
          FROM audit"""
AUDIT_BEFORE = """
        SELECT audit_id, at_ms AS at, agent_id, session_id, CAST(compaction_id AS TEXT) AS compaction_id, phase, reason,
               tokens_before, tokens_after, details, prev_hash, hash
          FROM audit"""

# What neither database can hold as a text (NUL, a lone surrogate) stands as in the body. SQLite ends a text at NUL; a lone
# surrogate is found by its bytes, ED A. or ED B., and since these may be parts of others, by GLOB, which reads one as U+FFFD.
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


def upgrade() -> None:
    """Add what is new. The views come last, since they read it."""
    dialect = op.get_bind().dialect.name
    for table in ("audit", "compactions", "campaigns"):
        op.add_column(table, sa.Column("actor", sa.Text()))
    op.create_table(
        "installation_secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation_secrets")),
    )
    op.get_bind().execute(
        sa.text("INSERT INTO installation_secrets (name, value) VALUES ('actor', :value)"),
        {"value": secrets.token_hex(32)},
    )
    if dialect == "postgresql":
        op.execute(MESSAGE_TEXT)
    _replace(
        "messages_view", MESSAGES.replace("{text}", TEXT[dialect]).replace("{body}", BODY[dialect])
    )
    _replace("audit_view", AUDIT)


def downgrade() -> None:
    """Remove it. Audit rows that name an actor do not verify without it."""
    _replace("audit_view", AUDIT_BEFORE)
    _replace("messages_view", MESSAGES_BEFORE)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION message_text")
    op.drop_table("installation_secrets")
    for table in ("campaigns", "compactions", "audit"):
        op.drop_column(table, "actor")


def _replace(name: str, select: str) -> None:
    op.execute(f"DROP VIEW {name}")
    op.get_bind().exec_driver_sql(f"CREATE VIEW {name} AS {select}")
