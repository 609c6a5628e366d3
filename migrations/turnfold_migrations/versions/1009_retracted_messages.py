"""Retractions, and the originals of retracted messages in a table of their own."""

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.views import VIEWS, create_view

revision = "1009"
down_revision = "1008"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
RETRACTED = """
         UNION ALL
        SELECT s.agent_id, s.session_id,
               m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id,
               m.position / 1024 AS stream_seq, m.position, m.role, m.tool_call_id, m.tokens,
               CASE m.priority WHEN 0 THEN 'low' WHEN 1 THEN 'normal' ELSE 'high' END AS priority,
               'retracted' AS state, CAST(m.compaction_id AS TEXT) AS compaction_id,
               m.created_at_ms AS created_at,
               {text} AS text, {body} AS body
          FROM retracted_messages m JOIN sessions s ON s.sid = m.sid"""


def upgrade() -> None:
    """Add the tables, the newest retraction of each session, and the state to the view."""
    op.add_column("sessions", sa.Column("retracted_seq", BIG, server_default="0", nullable=False))
    op.create_table(
        "retractions",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("stream_seq", BIG, autoincrement=False, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("named", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        # Workers of revision 1008 erase sessions without knowing these tables.
        sa.ForeignKeyConstraint(
            ["sid"], ["sessions.sid"], name=op.f("fk_retractions_sid"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sid", "stream_seq", name=op.f("pk_retractions")),
        sqlite_with_rowid=False,
    )
    _create_retracted_messages()
    create_view("messages_view", VIEWS["messages_view"] + RETRACTED)


COLUMNS = """sid, position, event_id, role, tokens, content_tokens, reasoning_tokens, characters,
             lines, priority, is_meta, is_irregular, is_truncated, is_error, calls, tool_call_id,
             content_digest, answers_position, answers_slot, is_copy, created_at_ms, cuts, original,
             body, gist, element"""
COUNTED = "(SELECT {what} FROM retracted_messages m WHERE m.sid = sessions.sid{where})"
NO_SYSTEM = " AND NOT (m.role IN ('system', 'developer') AND m.position % 1024 = 0)"


def downgrade() -> None:
    """Remove them. The older schema knows no such state, so retracted messages are live again."""
    more, tokens = (
        COUNTED.format(what=w, where="") for w in ("count(*)", "coalesce(sum(m.tokens), 0)")
    )
    live, live_tokens = (
        COUNTED.format(what=w, where=NO_SYSTEM) for w in ("count(*)", "coalesce(sum(m.tokens), 0)")
    )
    op.execute(
        # Constants.
        f"""UPDATE sessions
               SET messages_total = messages_total + {more}, tokens_total = tokens_total + {tokens},
                   live_messages = live_messages + {live},
                   live_tokens = live_tokens + {live_tokens},
                   revision = revision + 1"""  # noqa: S608
    )
    op.execute(
        f"INSERT INTO messages ({COLUMNS}) SELECT {COLUMNS} FROM retracted_messages"  # noqa: S608
    )
    create_view("messages_view", VIEWS["messages_view"])
    op.drop_table("retracted_messages")
    op.drop_table("retractions")
    op.drop_column("sessions", "retracted_seq")


def _create_retracted_messages() -> None:
    op.create_table(
        "retracted_messages",
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
        sa.Column("is_copy", sa.Boolean(), nullable=False),
        sa.Column("created_at_ms", BIG, nullable=False),
        sa.Column("compaction_id", BIG, nullable=True),
        sa.Column("cuts", sa.Text(), nullable=True),
        sa.Column("original", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("gist", sa.Text(), nullable=True),
        sa.Column("element", sa.SmallInteger(), nullable=True),
        sa.Column("retracted_seq", BIG, nullable=False),
        sa.Column("retracted_at_ms", BIG, nullable=False),
        sa.Column("is_named", sa.Boolean(), nullable=False),
        sa.Column("is_paired", sa.Boolean(), nullable=False),
        sa.Column("versions", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sid"], ["sessions.sid"], name=op.f("fk_retracted_messages_sid"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sid", "position", name=op.f("pk_retracted_messages")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_retracted_messages_results",
        "retracted_messages",
        ["sid", "tool_call_id"],
        sqlite_where=sa.text("tool_call_id IS NOT NULL"),
        postgresql_where=sa.text("tool_call_id IS NOT NULL"),
    )
