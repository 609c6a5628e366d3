"""The exact JSON of elements in the view of messages, and versions that are not in force.

Rows have an element packed beside its chat view.
"""

from importlib import import_module

from alembic import op

from turnfold_migrations.first_schema.views import BODY, VIEWS, create_view

revision = "1017"
down_revision = "1016"

RETRACTED: str = import_module("turnfold_migrations.versions.1009_retracted_messages").RETRACTED
MESSAGES, SUMMARIES = (
    view.replace("JOIN sessions s ON", "JOIN sessions s ON s.agent_id <> '' AND")
    for view in (VIEWS["messages_view"] + RETRACTED, VIEWS["summaries_view"])
)
# Without a version in force, the comparison alone is null, and `NOT in_force` finds nothing.
IN_FORCE = ("v.version = s.version AS", "(s.version IS NOT NULL AND v.version = s.version) AS")
# The inverse of `turnfold.core.shapes.packing.pack`: "<start>,<length>", and the texts before and
# after what stands there in the chat view, with a character between them that no JSON contains.
ELEMENT = {
    "sqlite": """(
        SELECT substr(p.rest, 1, instr(p.rest, char(31)) - 1)
               || substr(m.body, CAST(m.original AS INTEGER) + 1,
                         CAST(substr(m.original, instr(m.original, ',') + 1) AS INTEGER))
               || substr(p.rest, instr(p.rest, char(31)) + 1)
          FROM (SELECT substr(m.original, instr(m.original, char(31)) + 1) AS rest) p)""",
    "postgresql": """
        split_part(m.original, chr(31), 2)
        || substr(m.body, CAST(split_part(m.original, ',', 1) AS INTEGER) + 1,
                  CAST(split_part(split_part(m.original, chr(31), 1), ',', 2) AS INTEGER))
        || split_part(m.original, chr(31), 3)""",
}
HAS_HOLE = {
    "sqlite": "instr(m.original, char(31)) > 0",
    "postgresql": "strpos(m.original, chr(31)) > 0",
}


def upgrade() -> None:
    """Show each element as it was published, and tell of each version whether it is in force."""
    dialect = op.get_bind().dialect.name
    create_view("summaries_view", SUMMARIES.replace(*IN_FORCE))
    body = f"""CASE WHEN m.element IS NULL OR m.original IS NULL THEN {BODY[dialect]}
                    WHEN {HAS_HOLE[dialect]} THEN {ELEMENT[dialect]}
                    ELSE m.original END"""
    create_view("messages_view", MESSAGES.replace("{body}", body))


def downgrade() -> None:
    """Show what was stored of elements, within their chat views."""
    create_view("messages_view", MESSAGES)
    create_view("summaries_view", SUMMARIES)
