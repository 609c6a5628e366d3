"""The receiver process may exit, hang or lose its worker: each event is still stored once."""

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import nats
import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.js.api import ConsumerInfo

from tests.nats_server import subscriptions_known
from tests.postgres import Postgres
from tests.process_table import parts_of, state_of
from tests.running_system import Parts, eventually, rows, running_parts, wait_until
from tests.worker_scenario import KEY, day, turn
from turnfold.bus.streams import INGEST
from turnfold.client import turn_event
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM
from turnfold.operations.ingest.decode import DecodedBatch, Delivery, decode_batch
from turnfold.process.child_process import (
    HEARTBEAT_SECONDS,
    MAX_MISSED_HEARTBEATS,
    command_of,
    decode_message,
    encode_frame,
    encode_message,
    open_stream,
    read_frame,
)
from turnfold.process.tasks import RETRY_SECONDS
from turnfold.settings import read_settings
from turnfold_worker.receiver import wire
from turnfold_worker.receiver.child import DECODE_BYTES, ReceiverChild

MANY = 6_000


def receiver_of(worker: int) -> int | None:
    """The process that receives for a worker; None while there is none."""
    return parts_of(worker).get("receiver")


async def another(worker: int, than: int | None, parts: Parts) -> int:
    """The next process that receives for a worker."""
    await wait_until(lambda: receiver_of(worker) not in (None, than), told=parts.words)
    pid = receiver_of(worker)
    assert pid is not None
    return pid


async def free_at_once(url: str, many: int) -> set[str]:
    """The events, at most so many, that a worker would be given before the bus takes any of them for forgotten."""
    assert INGEST.ack_wait
    found: list[Msg] = []
    async with await nats.connect(url) as bus:
        events = await bus.jetstream().pull_subscribe_bind(EVENTS_CONSUMER, EVENTS_STREAM)
        with contextlib.suppress(nats.errors.TimeoutError):
            while len(found) < many:
                found += await events.fetch(
                    min(500, many - len(found)), timeout=INGEST.ack_wait / 2
                )
        for message in found:
            await message.nak()
        await subscriptions_known(bus)
    return {json.loads(message.data)["event_id"] for message in found}


@contextlib.contextmanager
def write_lock(database: Path) -> Generator[None]:
    """Nobody else can write while the body runs."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def consumer(url: str) -> ConsumerInfo:
    """How the consumer is that all workers share."""
    async with await nats.connect(url) as bus:
        info: ConsumerInfo = await bus.jetstream().consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
        return info


@pytest.mark.proves("L1", "L2", "L3", "O2")
async def test_a_receiver_that_dies_is_followed_by_another_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    async with day(tmp_path) as today:
        pid = None
        async with today.publishing():
            for _ in range(3):
                await today.goes_on()
                pid = await another(today.worker.pid, pid, today.parts)
                os.kill(pid, SIGKILL)
            await today.goes_on()
        await today.ends_well()


@pytest.mark.timeout(120)
@pytest.mark.proves("L1", "L3", "O2")
async def test_a_receiver_that_hangs_is_ended_and_followed_by_another(tmp_path: Path) -> None:
    async with day(tmp_path) as today:
        async with today.publishing(every=0.1):
            await today.goes_on()
            hanging = await another(today.worker.pid, None, today.parts)
            os.kill(hanging, SIGSTOP)
            await another(today.worker.pid, hanging, today.parts)
            await today.goes_on()
        assert not state_of(hanging)
        await today.ends_well()


@pytest.mark.proves("O2")
async def test_a_receiver_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    async with day(tmp_path) as today:
        pid = await another(today.worker.pid, None, today.parts)
        today.worker.signal(SIGKILL)
        await wait_until(lambda: not state_of(pid), told=today.parts.words)


@pytest.mark.timeout(60)
@pytest.mark.proves("O2")
async def test_a_receiver_waits_for_the_first_word_of_its_worker_and_then_for_a_while_for_each_other() -> (
    None
):
    """A worker that stands by, or waits for its database, has nothing to say yet."""
    silence = MAX_MISSED_HEARTBEATS * HEARTBEAT_SECONDS
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            *command_of("receiver"),
            stdin=theirs.fileno(),
            stderr=asyncio.subprocess.PIPE,
        )
        reader, writer = await asyncio.open_connection(sock=ours)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(silence + 1):
                await read_frame(reader)
        writer.write(encode_frame(encode_message(wire.Heartbeat())))
        assert isinstance(decode_message(await read_frame(reader) or b""), wire.Heartbeat)
        _, told = await process.communicate()
        writer.close()
    assert (process.returncode, b"receiver.worker_lost" in told) == (0, True)


@pytest.mark.timeout(120)
@pytest.mark.proves("L1", "O2", "C52")
async def test_what_the_receiver_of_a_stopped_worker_holds_goes_to_another_worker(
    tmp_path: Path, postgres: Postgres
) -> None:
    """The receiver itself is not stopped: it could report for ever that its worker is at work.

    What it has sent does not fit into the socket, from which nobody reads.
    """
    async with (
        running_parts(tmp_path, postgres=postgres) as parts,
        parts.client() as client,
    ):

        async def is_stored() -> bool:
            return bool(await parts.rows("SELECT 1 FROM events WHERE event_id = 'e00001'"))

        async with parts.running("worker") as stopped:
            receiver = await another(stopped.pid, None, parts)
            await client.publish(turn(0))
            await parts.caught_up()
            stopped.signal(SIGSTOP)
            try:
                await client.publish(turn(1, size=200_000))

                async def is_delivered() -> bool:
                    return (await consumer(parts.server.url)).num_ack_pending == 1

                await eventually(is_delivered, told=parts.words)
                async with parts.running("worker"):
                    await eventually(is_stored, told=parts.words)
                    # Left alone for longer, it leaves as well; its worker goes on with another one.
                    await wait_until(
                        lambda: not state_of(receiver) or state_of(receiver)[0] == "Z",
                        told=parts.words,
                    )
            finally:
                stopped.signal(SIGCONT)
            await another(stopped.pid, receiver, parts)
            await client.publish(turn(2))
            seen = await parts.settled()

    (session,) = seen.sessions.values()
    assert len(session.messages) == 6


@pytest.mark.proves("I5", "X6")
async def test_a_receiver_is_heard_while_it_decodes_an_event_for_long(tmp_path: Path) -> None:
    """If it were not, the worker would end it, and its successor would be given the same event."""
    beats = 6

    def decode(deliveries: Sequence[Delivery]) -> DecodedBatch:
        time.sleep(beats * HEARTBEAT_SECONDS)
        return decode_batch(deliveries, count=len)

    ours, theirs = socket.socketpair()
    async with running_parts(tmp_path) as parts, parts.client() as client:
        await client.publish(turn(1, size=DECODE_BYTES))
        reader, writer = await asyncio.open_connection(sock=ours)
        settings = read_settings({"TURNFOLD_NATS_URL": parts.server.url})
        its_reader, its_writer = await open_stream(theirs)
        receiver = ReceiverChild(its_reader, its_writer, decode, settings)
        running = asyncio.create_task(receiver.run())
        writer.write(encode_frame(wire.encode(wire.StartReceiving())))

        told: list[wire.ReceiverMessage] = []
        while not told or not isinstance(told[-1], wire.BatchReady):
            told.append(wire.decode(await read_frame(reader) or b""))
        writer.close()
        await running
        its_writer.close()
        await asyncio.gather(writer.wait_closed(), its_writer.wait_closed())

    held = [message for message in told if isinstance(message, wire.Heartbeat) and message.held]
    assert len(held) >= beats // 2


@pytest.mark.proves("L1", "L3", "O2")
async def test_a_worker_that_is_told_to_stop_leaves_nothing_half_done(tmp_path: Path) -> None:
    """In the midst of a backlog: what was stored is acknowledged, and all else is free for others at once."""
    async with running_parts(tmp_path) as parts:
        async with parts.client() as client:
            for start in range(0, MANY, 500):
                await asyncio.gather(
                    *(client.publish(turn(number, size=5)) for number in range(start, start + 500))
                )
        async with parts.running("worker") as worker:
            await wait_until(
                lambda: rows(parts.database, "SELECT 1 FROM events LIMIT 1"), told=parts.words
            )
            assert await worker.stop() == 0
        stored = {event_id for (event_id,) in rows(parts.database, "SELECT event_id FROM events")}
        free = await free_at_once(parts.server.url, MANY - len(stored))
        assert (len(free), free & stored) == (MANY - len(stored), set())
        async with parts.running("worker"):
            await parts.caught_up()
        assert (
            len({event_id for (event_id,) in rows(parts.database, "SELECT event_id FROM events")})
            == MANY
        )


@pytest.mark.proves("L1", "O2")
async def test_a_commit_that_takes_long_is_not_given_up_by_a_worker_that_is_told_to_stop(
    tmp_path: Path,
) -> None:
    """Its events are stored once it is through: redelivered, they would cost another worker the same work."""
    async with running_parts(tmp_path) as parts:
        async with parts.running("worker") as worker:
            async with parts.client() as client:
                await client.publish(turn(0))
                await parts.caught_up()
                with write_lock(parts.database):
                    await client.publish(turn(1))

                    async def is_delivered() -> bool:
                        state = await consumer(parts.server.url)
                        floor = state.ack_floor.consumer_seq if state.ack_floor else 0
                        return (state.num_ack_pending, floor) == (1, 1)

                    await eventually(is_delivered, told=parts.words)
                    await asyncio.sleep(RETRY_SECONDS)
                    worker.signal(SIGTERM)
                    await asyncio.sleep(3 * RETRY_SECONDS)
            assert await worker.ended() == 0
        # On a busy machine the worker may be stopped before it has begun to store the event.
        is_stored = bool(rows(parts.database, "SELECT 1 FROM events WHERE event_id = 'e00001'"))
        assert (await consumer(parts.server.url)).num_ack_pending == (0 if is_stored else 1)


@pytest.mark.proves("T2")
async def test_an_image_costs_what_the_installation_says(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}
    tokens = {}
    for preset in ("balanced", "adaptive"):
        async with day(tmp_path / preset, TURNFOLD_PRESET=preset) as today:
            await today.publish(
                turn_event(KEY, [{"role": "user", "content": [image]}], event_id="e1")
            )
            await today.settled()
            tokens[preset] = rows(today.parts.database, "SELECT content_tokens FROM messages")[0][0]

    assert tokens == {"balanced": 1_200, "adaptive": 300}


@pytest.mark.proves("I3")
async def test_a_parcel_arrives_as_it_was_sent() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "read_file", "arguments": '{"path": "/etc/hosts"}'},
    }
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    turns = [
        {
            "messages": [{"role": "user", "content": "hm \ud83d" * 900}, asks],
            "model": "m",
            "usage": {"prompt_tokens": 90},
        },
        {},
    ]
    events = [
        {"event_id": f"e{number}", "agent_id": "a", "session_id": "s", **turn}
        for number, turn in enumerate(turns)
    ]
    deliveries = [
        Delivery("turn.completed", json.dumps(event).encode(), seq, seq)
        for seq, event in enumerate(events, start=1)
    ]
    traced = [delivery._replace(trace="00-1-1-01") for delivery in deliveries]
    sent = wire.BatchReady(7, decode_batch([*deliveries, *traced], count=len), 12)
    frames = [encode_frame(wire.encode(message)) for message in (sent, wire.Ack(7))]
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(frames) + b"\0\0")
    reader.feed_eof()
    bodies = [await read_frame(reader) for _ in range(3)]

    assert [body and wire.decode(body) for body in bodies] == [sent, wire.Ack(7), None]
    assert (len(sent.batch.events), len(sent.batch.dead)) == (2, 2)
    assert all(
        arrival.report and arrival.messages[1].calls and arrival.messages[0].cuts
        for arrival in sent.batch.events
    )
