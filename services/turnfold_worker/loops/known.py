"""The time up to which all events are stored, for loops that act if there are none."""

from turnfold.bus.asking import find_event, time_ms
from turnfold.store.database.sequence_ranges import whole_to
from turnfold_worker.context import WorkerContext


async def known_to_ms(context: WorkerContext, *, now_ms: int) -> int:
    """Return `now_ms`, or the time of the first event that waits in the stream.

    Events that were published while no worker ran may be of any session, and no row knows them.

    Raises:
        Unavailable: the stream or the database does not reply.
    """
    first = await context.database.snapshot(whole_to) + 1
    held = await find_event(context.client, seq=first, next_by_subj=">")
    return now_ms if held is None else min(now_ms, time_ms(held["message"]["time"]))
