"""The state of the event stream and its consumer, for operators and health checks."""

import asyncio
import json
from dataclasses import dataclass
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

from nats.aio.client import Client

from turnfold.bus.asking import ask_jetstream, asking, find_event, time_ms
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM
from turnfold.nats_client.responses import UNREADABLE

MONITORING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class BusHealth:
    """The event stream and its consumer: sizes in bytes, times in ms since 1970.

    `clock_ms` is the clock of the server. `oldest_ms` is the time of the oldest event that is not
    stored yet, or None.
    """

    clock_ms: int
    bytes: int
    max_bytes: int
    messages: int
    max_messages: int
    waiting: int
    in_hand: int
    asking: int
    oldest_ms: int | None

    @property
    def lag_events(self) -> int:
        """The number of events that are not stored yet."""
        return self.waiting + self.in_hand

    @property
    def lag_ms(self) -> int:
        """The time for which the oldest of them has waited."""
        # None of them is left if all were erased.
        return 0 if self.oldest_ms is None else max(0, self.clock_ms - self.oldest_ms)


async def read_bus_health(client: Client) -> BusHealth:
    """Read the state once.

    Raises:
        Unavailable: the stream or its consumer does not exist, or the server does not reply.
    """
    with asking():
        stream = await ask_jetstream(client, f"STREAM.INFO.{EVENTS_STREAM}")
        consumer = await ask_jetstream(client, f"CONSUMER.INFO.{EVENTS_STREAM}.{EVENTS_CONSUMER}")
        floor = int(consumer["ack_floor"].get("stream_seq", 0))
        oldest_ms = None
        # Otherwise everything is stored, and the next sequence may never exist.
        if consumer.get("num_pending", 0) or consumer.get("num_ack_pending", 0):
            held = await find_event(client, seq=floor + 1, next_by_subj=">")
            oldest_ms = time_ms(held["message"]["time"]) if held else None
        config, state = stream["config"], stream["state"]
        return BusHealth(
            time_ms(stream["ts"]),
            state["bytes"],
            config.get("max_bytes", -1),
            state["messages"],
            config.get("max_msgs", -1),
            consumer.get("num_pending", 0),
            consumer.get("num_ack_pending", 0),
            consumer.get("num_waiting", 0),
            oldest_ms,
        )  # fmt: skip


async def syncs_always(monitoring_url: str) -> bool | None:
    """Return whether the server syncs messages to disk before it acknowledges them.

    The monitoring port reports this; None means that it did not reply, or something else did.
    """

    def read() -> bool | None:
        try:
            url = f"{monitoring_url.rstrip('/')}/jsz?config=1"
            # As to the bus itself: without the proxies of the environment.
            opener = build_opener(ProxyHandler({}))
            with opener.open(url, timeout=MONITORING_SECONDS) as answer:
                return bool(json.load(answer)["config"].get("sync_always", False))
        except (OSError, HTTPException, *UNREADABLE):
            return None

    return await asyncio.to_thread(read)
