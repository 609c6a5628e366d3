"""Versions can be promoted and compactions undone: what each version speaks for, which was in force when, and what was restored."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COSTS: dict[str, sa.types.TypeEngine[Any]] = {
    "prompt_tokens": BIG,
    "completion_tokens": BIG,
    "cost": sa.Float(),
}
COMPACTIONS = """
        SELECT CAST(c.compaction_id AS TEXT) AS compaction_id, s.agent_id, s.session_id, c.trigger, c.status, c.messages_evicted,
               c.tokens_before, c.tokens_after, c.attempts, c.reason, c.requested_at_ms AS requested_at,
               coalesce(c.restored_at_ms, c.finished_at_ms) AS finished_at
          FROM compactions c JOIN sessions s ON s.sid = c.sid"""
COMPACTIONS_BEFORE = """
        SELECT CAST(c.compaction_id AS TEXT) AS compaction_id, s.agent_id, s.session_id, c.trigger, c.status, c.messages_evicted,
               c.tokens_before, c.tokens_after, c.attempts, c.reason, c.requested_at_ms AS requested_at, c.finished_at_ms AS finished_at
          FROM compactions c JOIN sessions s ON s.sid = c.sid"""
NEW_VIEWS = {
    "reigns_view": """
        SELECT s.agent_id, s.session_id, r.version, r.at_ms AS from_at,
               (SELECT min(n.at_ms) FROM reigns n WHERE n.sid = r.sid AND n.ordinal > r.ordinal) AS until_at
          FROM reigns r JOIN sessions s ON s.sid = r.sid""",
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
}


def upgrade() -> None:
    """Write down what versions speak for, and when they came into force; so far each did when it was written."""
    for name, kind in (
        ("failures", sa.Integer()),
        ("cooldown_until_ms", BIG),
        ("held_to_tokens", BIG),
    ):
        op.add_column(
            "sessions", sa.Column(name, kind, nullable=False, server_default=sa.text("0"))
        )
    op.add_column("sessions", sa.Column("cooldown_reason", sa.Text()))
    op.add_column("compactions", sa.Column("evicted_at_ms", BIG))
    op.add_column("compactions", sa.Column("restored_at_ms", BIG))
    op.add_column("compactions", sa.Column("wanted", sa.Text()))
    for name, costs in COSTS.items():
        op.add_column("summaries", sa.Column(name, costs))
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
        "reigns",
        sa.Column("sid", BIG, nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("version", sa.Integer()),
        sa.ForeignKeyConstraint(["sid"], ["sessions.sid"], name=op.f("fk_reigns_sid")),
        sa.PrimaryKeyConstraint("sid", "ordinal", name=op.f("pk_reigns")),
        sqlite_with_rowid=False,
    )
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
    # What left with its summary and not before had no digest.
    op.execute(
        "UPDATE compactions SET evicted_at_ms = CASE WHEN digest = '' THEN coalesce(finished_at_ms, requested_at_ms) ELSE requested_at_ms END"
        " WHERE messages_evicted > 0"
    )
    op.execute(
        "INSERT INTO coverage (sid, version, compaction_id) SELECT sid, version, compaction_id FROM compactions WHERE version IS NOT NULL"
    )
    # A version has at least one audit row of its own, so its number is below that of any row to come.
    op.execute(
        "INSERT INTO reigns (sid, ordinal, at_ms, version) SELECT sid, version, created_at_ms, version FROM summaries"
    )
    _replace("compactions_view", COMPACTIONS)
    for name, select in NEW_VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {select}")


def downgrade() -> None:
    """Forget it."""
    for name in NEW_VIEWS:
        op.execute(f"DROP VIEW {name}")
    _replace("compactions_view", COMPACTIONS_BEFORE)
    for name in ("restorations", "reigns", "coverage"):
        op.drop_table(name)
    for name in COSTS:
        op.drop_column("summaries", name)
    for name in ("wanted", "restored_at_ms", "evicted_at_ms"):
        op.drop_column("compactions", name)
    for name in ("cooldown_reason", "held_to_tokens", "cooldown_until_ms", "failures"):
        op.drop_column("sessions", name)


def _replace(name: str, select: str) -> None:
    op.execute(f"DROP VIEW {name}")
    op.execute(f"CREATE VIEW {name} AS {select}")
