"""The budgets that windows were asked with, and compactions that are due because of them."""

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.views import create_view

revision = "1004"
down_revision = "1003"

NAME = "compactions_view"
VIEW = """
    SELECT CAST(c.compaction_id AS TEXT) AS compaction_id, s.agent_id, s.session_id,
           {trigger} AS trigger, c.status, c.messages_evicted, c.tokens_before, c.tokens_after,
           c.attempts, c.reason, c.requested_at_ms AS requested_at,
           coalesce(c.restored_at_ms, c.finished_at_ms) AS finished_at
      FROM compactions c JOIN sessions s ON s.sid = c.sid"""


def upgrade() -> None:
    """Add the columns. Workers of revision 1003 read the trigger `tokens` where it is `budget`."""
    op.add_column("sessions", sa.Column("asked_budgets", sa.Text(), nullable=True))
    op.add_column("compactions", sa.Column("is_by_budget", sa.Boolean(), nullable=True))
    by_budget = "CASE WHEN c.is_by_budget THEN 'budget' ELSE c.trigger END"
    create_view(NAME, VIEW.format(trigger=by_budget))


def downgrade() -> None:
    """Remove them."""
    create_view(NAME, VIEW.format(trigger="c.trigger"))
    op.drop_column("compactions", "is_by_budget")
    op.drop_column("sessions", "asked_budgets")
