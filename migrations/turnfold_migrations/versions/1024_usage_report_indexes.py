"""Indexes that databases lack where an unreleased form of migration 1023 ran."""

from alembic import op

revision = "1024"
down_revision = "1023"

DEFINITION = {
    "sqlite": "SELECT sql FROM sqlite_schema WHERE name = 'ix_usage_reports_answer'",
    "postgresql": "SELECT pg_get_indexdef(to_regclass('ix_usage_reports_answer'))",
}


def upgrade() -> None:
    """Create them. An index that is right already is not built again."""
    connection = op.get_bind()
    found: str | None = connection.exec_driver_sql(DEFINITION[connection.dialect.name]).scalar()
    if "coalesce" not in (found or "").lower():
        op.execute("DROP INDEX IF EXISTS ix_usage_reports_answer")
        op.execute(
            "CREATE INDEX ix_usage_reports_answer"
            " ON usage_reports (sid, coalesce(answer_position, position))"
        )
    op.execute(
        "CREATE INDEX IF NOT EXISTS ix_retracted_messages_seq"
        " ON retracted_messages (sid, retracted_seq, position)"
    )


def downgrade() -> None:
    """Leave them. Migration 1023 creates and removes indexes of these names."""
