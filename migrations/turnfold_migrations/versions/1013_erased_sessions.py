"""Views without erased sessions, whose rows are deleted after they have lost their agent id."""

from importlib import import_module

import sqlalchemy as sa
from alembic import op

from turnfold_migrations.first_schema.views import VIEWS, create_view

revision = "1013"
down_revision = "1012"

NAMES = [name for name, view in VIEWS.items() if "sessions s" in view]
TRIGGER = "CASE WHEN c.is_by_budget THEN 'budget' ELSE c.trigger END AS trigger"
RETRACTED: str = import_module("turnfold_migrations.versions.1009_retracted_messages").RETRACTED


def upgrade() -> None:
    """Leave erased sessions out of all views."""
    for name, view in _views().items():
        joined = view.replace("JOIN sessions s ON", "JOIN sessions s ON s.agent_id <> '' AND")
        create_view(name, joined if joined != view else f"{view} WHERE s.agent_id <> ''")


def downgrade() -> None:
    """Show all sessions again. Older workers would never delete the rows of erased ones.

    Raises:
        RuntimeError: some are left; the text says what to do.
    """
    left = sa.text("SELECT 1 FROM sessions WHERE agent_id = '' LIMIT 1")
    if op.get_bind().execute(left).first():
        raise RuntimeError("rows of erased sessions are left: run a worker until it deleted them")
    for name, view in _views().items():
        create_view(name, view)


def _views() -> dict[str, str]:
    views = {name: VIEWS[name] for name in NAMES}
    views["messages_view"] += RETRACTED
    views["compactions_view"] = views["compactions_view"].replace("c.trigger", TRIGGER)
    return views
