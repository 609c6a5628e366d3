"""Retracted messages in the view of periods outside the window."""

from turnfold_migrations.first_schema.views import VIEWS, create_view

revision = "1015"
down_revision = "1014"

MOVES = VIEWS["moves_view"].replace("JOIN sessions s ON", "JOIN sessions s ON s.agent_id <> '' AND")
# A retraction ends the period of an eviction, so that no two periods of a message overlap. It has
# the time of its event, which can be before that of an eviction by a worker that lagged behind.
RETRACTED = """
         UNION ALL
        SELECT s.agent_id, s.session_id,
               m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id, m.position,
               CAST(c.compaction_id AS TEXT) AS compaction_id, c.evicted_at_ms AS left_at,
               CASE WHEN c.restored_at_ms < m.retracted_at_ms THEN c.restored_at_ms
                    ELSE m.retracted_at_ms END AS back_at
          FROM compactions c JOIN sessions s ON s.agent_id <> '' AND s.sid = c.sid
               JOIN retracted_messages m
                 ON m.sid = c.sid AND m.position BETWEEN c.first_position AND c.last_position
         WHERE c.evicted_at_ms < m.retracted_at_ms
           AND (m.compaction_id = c.compaction_id
                OR EXISTS (SELECT 1 FROM restorations r
                            WHERE r.sid = c.sid AND r.compaction_id = c.compaction_id
                              AND m.position BETWEEN r.first_position AND r.last_position))
         UNION ALL
        SELECT s.agent_id, s.session_id,
               m.event_id || '#' || CAST(m.position % 1024 AS TEXT) AS message_id, m.position,
               NULL AS compaction_id, m.retracted_at_ms AS left_at, NULL AS back_at
          FROM retracted_messages m JOIN sessions s ON s.agent_id <> '' AND s.sid = m.sid"""


def upgrade() -> None:
    """Add their evictions, and the period from the retraction on, which has no compaction."""
    create_view("moves_view", MOVES + RETRACTED)


def downgrade() -> None:
    """Leave them out."""
    create_view("moves_view", MOVES)
