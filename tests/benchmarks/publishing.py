"""Measure how fast the stream takes events that must be on its disk.

1,000 events of about 500 bytes one by one, 4,000 with 32 in flight, 20,000 in sequential batches.
Each floor is the same by the plain NATS client, with prepared bytes and no ids.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from secrets import token_hex

import nats
from nats.aio.client import Client as Bus

import turnfold
from tests.benchmarks.figures import RATIO, Figure, middle
from tests.benchmarks.floors import Passed
from tests.benchmarks.floors import event as body
from tests.nats_server import nats_server
from turnfold.bus.streams import EVENTS
from turnfold.client import Client, OutgoingEvent, session_key, turn_event

ROUNDS = 3
ONE_BY_ONE, SIDE_BY_SIDE, IN_BATCHES = 1_000, 4_000, 20_000
IN_FLIGHT = 32
BATCHES = (100, 1_000)
SUBJECT = "turn.completed.a.s"
MESSAGES = [{"role": role, "content": "x" * 175} for role in ("user", "assistant")]
WHO = "the bus's own client", "ours"
LEAST_RATE = 20_000
SYNCED = 'jetstream {{ store_dir: "{directory}", sync_interval: always }}'


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Each way with our client and without, in turns."""
    found: dict[tuple[str, str], list[Passed]] = {}
    with nats_server(
        directory, more=SYNCED.format(directory=directory / "store"), jetstream=False
    ) as server:
        async with (
            await nats.connect(server.url) as bus,
            turnfold.connect(server.url, environ={}) as client,
        ):
            await bus.jetstream().add_stream(EVENTS)
            for _ in range(ROUNDS):
                for who, each in zip(WHO, (floors(bus), ours(client)), strict=True):
                    for way, number, publish in each:
                        used, began = time.process_time(), time.perf_counter()
                        await publish()
                        used, seconds = time.process_time() - used, time.perf_counter() - began
                        found.setdefault((who, way), []).append(
                            Passed(number / seconds, used / number * 1e6)
                        )
    for way in dict.fromkeys(way for _, way in found):
        floor, own = (middle(one.events_per_second for one in found[who, way]) for who in WHO)
        goal = LEAST_RATE if way == batches_of(BATCHES[-1]) else None
        yield Figure(f"ours to the bus's own client, {way}", own / floor, RATIO)
        yield Figure(f"ours, {way}", own, "events/s", at_least=goal)
        yield Figure(f"the bus's own client, {way}", floor, "events/s")
        for who in WHO:
            used = middle(one.cpu_us_per_event for one in found[who, way])
            yield Figure(f"processor, {who}, {way}", used, "us/event")


Way = tuple[str, int, Callable[[], Awaitable[object]]]
"""Its name, how many events it publishes, and how; what they say is made before it is called."""


def batches_of(size: int) -> str:
    """What this way is called."""
    return f"in batches of {size:,}"


def ours(client: Client) -> Iterator[Way]:
    """The ways of our client."""
    for way, number, in_flight, at_once in ways():
        share = [[_event() for _ in range(number // in_flight)] for _ in range(in_flight)]
        yield (
            way,
            number,
            partial(client.publish_sessions, share, in_flight=in_flight, at_once=at_once),
        )


def floors(bus: Bus) -> Iterator[Way]:
    """The same without it."""
    stream = bus.jetstream(timeout=30)

    async def one_by_one(bodies: list[bytes]) -> None:
        for one in bodies:
            await stream.publish(SUBJECT, one)

    async def side_by_side(shares: list[list[bytes]]) -> None:
        await asyncio.gather(*map(one_by_one, shares))

    async def in_batches(bodies: list[bytes], size: int) -> None:
        for start in range(0, len(bodies), size):
            headers = {"Nats-Batch-Id": token_hex(16)}
            for number, one in enumerate(bodies[start : start + size - 1], 1):
                await bus.publish(
                    SUBJECT, one, headers=headers | {"Nats-Batch-Sequence": str(number)}
                )
            last = headers | {"Nats-Batch-Sequence": str(size), "Nats-Batch-Commit": "1"}
            reply = await bus.request(SUBJECT, bodies[start + size - 1], headers=last, timeout=30)
            assert b"error" not in reply.data, reply.data

    for way, number, in_flight, at_once in ways():
        share = [[body(at) for at in range(number // in_flight)] for _ in range(in_flight)]
        if at_once > 1:
            yield way, number, partial(in_batches, share[0], at_once)
        else:
            yield way, number, partial(side_by_side, share)


def ways() -> Iterator[tuple[str, int, int, int]]:
    """Each way, how many events go by it, how many publish at once, and how many events go in a batch."""
    yield "one by one", ONE_BY_ONE, 1, 1
    yield f"{IN_FLIGHT} in flight", SIDE_BY_SIDE, IN_FLIGHT, 1
    for size in BATCHES:
        yield batches_of(size), IN_BATCHES, 1, size


def _event() -> OutgoingEvent:
    return turn_event(session_key("a", "s"), MESSAGES)
