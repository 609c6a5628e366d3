"""Retention of the event stream: purge events that are stored, acknowledged and old."""

from datetime import datetime, timedelta

import structlog
from nats.aio.client import Client

from turnfold.bus.asking import ask_jetstream, asking, find_event
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM

log = structlog.get_logger()


async def prune_stream(client: Client, *, ingested_to: int, hours: int) -> int:
    """Purge events older than `hours` by the clock of the server, and return their number.

    Events above `ingested_to`, up to which the database is complete, stay in the stream. So do
    events that the consumer would still deliver. Several workers may call this at once.

    Raises:
        Unavailable: the server does not reply.
    """
    with asking():
        purged, keep_from = await _purged(client, ingested_to, hours)
    if purged:
        log.info("stream.purged", events=purged, first_seq=keep_from)
    return purged


async def _purged(client: Client, ingested_to: int, hours: int) -> tuple[int, int]:
    consumer = await ask_jetstream(client, f"CONSUMER.INFO.{EVENTS_STREAM}.{EVENTS_CONSUMER}")
    stream = await ask_jetstream(client, f"STREAM.INFO.{EVENTS_STREAM}")
    # Both: what is stored but not acknowledged would be delivered again, and not be there.
    done_to = min(ingested_to, int(consumer["ack_floor"]["stream_seq"]))
    first = int(stream["state"]["first_seq"])
    before = datetime.fromisoformat(stream["ts"]) - timedelta(hours=hours)
    keep_from = await _first_since(client, before, first=first, beyond=done_to + 1)
    if keep_from <= first:
        return 0, keep_from
    # The server keeps the event of this sequence.
    purged = await ask_jetstream(client, f"STREAM.PURGE.{EVENTS_STREAM}", seq=keep_from)
    return int(purged["purged"]), keep_from


async def _first_since(client: Client, before: datetime, *, first: int, beyond: int) -> int:
    """Return the first sequence that is not older, or `beyond`, by binary search."""
    while first < beyond:
        # Sequences rise with time, and reading one costs a request.
        middle = (first + beyond) // 2
        held = await find_event(client, seq=middle, next_by_subj=">")
        if (
            held is None
            or int(held["message"]["seq"]) >= beyond
            or datetime.fromisoformat(held["message"]["time"]) >= before
        ):
            beyond = middle
        else:
            first = int(held["message"]["seq"]) + 1
    return beyond
