"""Read the evictions that no summary covers yet."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from turnfold.messages import CompactionId
from turnfold.ports.query import (
    PendingEviction,
)
from turnfold.store.database.schema import compactions

PENDING_EVICTIONS = select(
    compactions.c.compaction_id,
    compactions.c.messages_evicted,
    compactions.c.tokens_evicted,
    compactions.c.digest,
    compactions.c.digest_tokens,
    compactions.c.requested_at_ms,
    compactions.c.first_position,
    compactions.c.last_position,
)
"""The columns of evictions; those of `PendingEviction` stand first."""


def pending_of(row: Sequence[Any]) -> PendingEviction:
    """Build an eviction from a row of `PENDING_EVICTIONS`."""
    return PendingEviction(CompactionId(str(row[0])), *row[1:6])
