"""Triggers count the sessions of each agent, whichever code makes and erases them: older services run on during an upgrade."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

UP = {
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
DOWN = {
    "sqlite": ["DROP TRIGGER sessions_gone", "DROP TRIGGER sessions_made"],
    "postgresql": [
        "DROP TRIGGER sessions_gone ON sessions",
        "DROP TRIGGER sessions_made ON sessions",
        "DROP FUNCTION count_sessions_gone()",
        "DROP FUNCTION count_sessions_made()",
    ],
}


def upgrade() -> None:
    """Begin with those that there are. From the triggers on nobody makes or erases one unseen, so they come first."""
    op.add_column(
        "session_counts", sa.Column("total", BIG, nullable=False, server_default=sa.text("0"))
    )
    for statement in UP[op.get_bind().dialect.name]:
        op.execute(statement)
    op.execute(
        "INSERT INTO session_counts (agent_id) SELECT DISTINCT agent_id FROM sessions WHERE true ON CONFLICT DO NOTHING"
    )
    op.execute(
        "UPDATE session_counts SET total = (SELECT count(*) FROM sessions s WHERE s.agent_id = session_counts.agent_id)"
    )


def downgrade() -> None:
    """Let code count them again."""
    for statement in DOWN[op.get_bind().dialect.name]:
        op.execute(statement)
    op.execute("UPDATE session_counts SET sessions = total")
    op.drop_column("session_counts", "total")
