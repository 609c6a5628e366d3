"""The rows of a claimed job, and the check that a worker still holds them."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select, update

from turnfold.errors import LostLease
from turnfold.messages import MOST_INT64
from turnfold.ports.compact import Job, JobStatus
from turnfold.store.database.predicates import is_running
from turnfold.store.database.schema import compactions
from turnfold.store.database.statements import PreparedIn

MOST_MESSAGES = 4_000
MOST_TOKENS = 500_000
"""The most that one job summarizes, except for a single eviction.

A worker and its summarizer hold several copies of this text, and the worker does nothing else while
it encodes it. Backlogs of this size are rare: a model was unavailable for long, a history was
imported or is regenerated, or an early message was retracted.
"""

_HELD = PreparedIn(
    select(compactions.c.compaction_id, compactions.c.fence)
    .where(is_running)
    # One order for all workers that lock several rows, or PostgreSQL could find a deadlock.
    .order_by(compactions.c.compaction_id)
    .with_for_update(),
    compactions.c.compaction_id,
)


def compaction_ids(job: Job) -> list[int]:
    """Return the ids of the rows of a job, oldest first."""
    return [int(compaction_id) for compaction_id in job.compaction_ids]


def within_limits(sizes: Iterable[tuple[int, int]], *, messages: int = 0, tokens: int = 0) -> int:
    """Return how many evictions one job may summarize, by their messages and tokens.

    It is at least one. `messages` and `tokens` are those that the job summarizes in any case.
    """
    number = 0
    for number, (more_messages, more_tokens) in enumerate(sizes, 1):
        messages, tokens = messages + more_messages, tokens + more_tokens
        if number > 1 and exceeds_limits(messages, tokens):
            return number - 1
    return number


def exceeds_limits(messages: int, tokens: int) -> bool:
    """Return whether this is more than one job summarizes."""
    return messages > MOST_MESSAGES or tokens > MOST_TOKENS


def number_of(text: str) -> int:
    """Return the number of a compaction or campaign by its id, which is a text outside.

    Numbers are below 2^63, and a larger one would fail in the driver: it stands for none, as -1.
    """
    number = int(text) if text.isdecimal() and len(text) < 20 else -1
    return number if number <= MOST_INT64 else -1


def is_held(job: Job) -> Any:
    """Return the SQL condition for the rows of a job that its worker still holds."""
    return (
        compactions.c.compaction_id.in_(compaction_ids(job))
        & (compactions.c.status == JobStatus.RUNNING)
        & (compactions.c.fence == job.fence)
    )


def lock_held(connection: Connection, job: Job) -> list[int]:
    """Lock the rows of a job, and return their ids.

    Raises:
        LostLease: another worker holds one of them.
    """
    rows = _HELD.rows(connection, compaction_ids(job))
    held = [compaction_id for compaction_id, fence in rows if fence == job.fence]
    if len(held) != len(job.compaction_ids):
        raise LostLease(job.compaction_ids[-1])
    return held


def update_held(connection: Connection, job: Job, **values: Any) -> None:
    """Change the rows of a job.

    Raises:
        LostLease: another worker holds one of them.
    """
    changed = connection.execute(update(compactions).where(is_held(job)).values(**values))
    # The exception rolls back the rows that were changed: a job ends as a whole or not at all.
    if changed.rowcount != len(job.compaction_ids):
        raise LostLease(job.compaction_ids[-1])
