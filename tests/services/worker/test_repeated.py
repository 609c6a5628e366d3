"""An event that makes each transaction fail, or ends each worker, keeps no other from being stored."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.running_system import Parts, rows, wait_until
from tests.worker_scenario import SMALL, Day, day, turn
from turnfold.bus import repeated
from turnfold.bus.pull import AHEAD_BYTES, PullConsumer
from turnfold.bus.repeated import OFTEN, RepeatedMessages, is_repeated
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM
from turnfold.nats_client.connection import NatsClient

REFUSING = """
    CREATE TABLE taken (key INTEGER PRIMARY KEY);
    INSERT INTO taken VALUES (1);
    CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN NEW.body LIKE '%Question 7?%'
    BEGIN INSERT INTO taken VALUES (1); END"""
"""Each time an event is stored, a key is taken, as if another worker had stored it meanwhile."""


@pytest.mark.proves("I5")
async def test_an_event_that_fails_each_transaction_keeps_no_other_from_being_stored(
    tmp_path: Path,
) -> None:
    async with day(tmp_path) as today:
        with contextlib.closing(sqlite3.connect(today.parts.database)) as database:
            database.executescript(REFUSING)
        await today.client.publish_batch([turn(number) for number in range(40)])

        await wait_until(lambda: today.stored() == 39, seconds=40, told=today.parts.words)
        await today.client.publish(turn(40))
        await wait_until(lambda: today.stored() == 40, seconds=20, told=today.parts.words)
        stored = rows(today.parts.database, "SELECT event_id FROM events")
        assert ("e00007",) not in [tuple(row) for row in stored]
        with contextlib.closing(sqlite3.connect(today.parts.database)) as database:
            database.execute("DROP TRIGGER refuse")

        await wait_until(lambda: today.stored() == 41, told=today.parts.words)


@pytest.mark.proves("I5", "O6")
async def test_an_event_that_fails_each_transaction_keeps_no_missing_one_from_being_stored_again(
    tmp_path: Path,
) -> None:
    async with day(tmp_path / "first") as today:
        await today.client.publish_batch([turn(number) for number in range(40)])
        await wait_until(lambda: today.stored() == 40, told=today.parts.words)
        await today.worker.stop()
        (tmp_path / "second").mkdir()
        again = Parts(tmp_path / "second", today.parts.server, SMALL)
        await again.migrate()
        with contextlib.closing(sqlite3.connect(again.database)) as database:
            database.executescript(REFUSING)

        async with again.running("worker") as worker:
            second = Day(again, worker, today.client)
            await wait_until(lambda: second.stored() == 39, seconds=20, told=again.words)
            await today.client.publish(turn(40))
            await wait_until(lambda: second.stored() == 40, seconds=20, told=again.words)
            with contextlib.closing(sqlite3.connect(again.database)) as database:
                database.execute("DROP TRIGGER refuse")

            await wait_until(lambda: second.stored() == 41, told=again.words)


async def live(url: str, fatal: frozenset[bytes], stored: set[bytes], *, until: int) -> None:
    """Store events until so many are stored, or until a batch has one that ends the process."""
    client = NatsClient()
    await client.connect(url)
    pull = PullConsumer(client, stream=EVENTS_STREAM, consumer=EVENTS_CONSUMER)
    await pull.start()
    while len(stored) < until:
        batch = await pull.take(2_000)
        if fatal & {message.data for message in batch}:
            # As the bus does it, once it has waited for the dead in vain.
            await pull.nack(batch)
            break
        stored |= {message.data for message in batch}
        await pull.acknowledge(batch)
    await pull.stop()
    await client.close()


@pytest.mark.proves("I5")
async def test_events_that_end_each_worker_keep_no_other_from_being_stored(
    bus: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated, "PAUSE_SECONDS", 0.1)
    fatal = frozenset([b"0", b"40", b"99"])
    others = {f"{number}".encode() for number in range(100)} - fatal
    for number in range(100):
        await bus.jetstream().publish("turn.completed", f"{number}".encode())
    stored: set[bytes] = set()
    url = str(bus.connected_url.geturl()) if bus.connected_url else ""

    for life in range(60):
        if len(stored) == len(others) + life:
            break
        # Each worker also stores what is new.
        await bus.jetstream().publish("turn.completed", f"new {life}".encode())
        await live(url, fatal, stored, until=len(others) + life + 1)

    assert others < stored
    assert not stored & fatal


@pytest.mark.proves("I5")
async def test_a_session_of_which_no_event_can_be_stored_leaves_room_for_others(
    bus: Client,
) -> None:
    stored = 0
    consuming = NatsClient()
    await consuming.connect(str(bus.connected_url.geturl()) if bus.connected_url else "")
    pull = PullConsumer(consuming, stream=EVENTS_STREAM, consumer=EVENTS_CONSUMER)
    for _ in range(2 * AHEAD_BYTES // 1_000_000):
        await bus.jetstream().publish("turn.completed.a.faulty", bytes(1_000_000))
    await pull.start()

    async with asyncio.timeout(20):
        while stored < 40:
            await bus.jetstream().publish("turn.completed.a.s", b"")
            batch = await pull.take(2_000)
            if any(message.data for message in batch):
                await pull.nack(batch, delay_seconds=0.05)
            else:
                await pull.acknowledge(batch)
                stored += len(batch)

    await pull.stop()
    await consuming.close()


def repeated_message(deliveries: str, body: bytes = b"x", subject: str = "turn.completed") -> Msg:
    reply = f"$JS.ACK.{EVENTS_STREAM}.{EVENTS_CONSUMER}.{deliveries}.7.9.1760000000000000000.0"
    return Msg(Client(), subject=subject, reply=reply, data=body)


def test_a_message_that_came_often_is_told_in_either_form_of_its_reply_and_whoever_wrote_it() -> (
    None
):
    told = {
        often: is_repeated(repeated_message(often))
        for often in ("1", "3", "4", "", "x", "9" * 5_000)
    }
    newer = (
        f"$JS.ACK.hub.account.{EVENTS_STREAM}.{EVENTS_CONSUMER}.4.7.9.1760000000000000000.0.token"
    )

    assert OFTEN == 3
    assert [often for often, is_often in told.items() if is_often] == ["4"]
    assert is_repeated(Msg(Client(), reply=newer))
    assert not is_repeated(Msg(Client(), reply="$JS.ACK.S.C."))


def test_twice_as_many_are_taken_after_each_batch_that_was_stored_and_one_after_a_failure() -> None:
    waiting = RepeatedMessages()
    for number in range(40):
        waiting.add(repeated_message("4", bytes(number)), 0.0)
    sizes: list[int] = []

    for is_stored in (True, True, True, False, True, True):
        taken = waiting.take(2_000, 10_000)
        sizes.append(len(taken))
        assert waiting.due_in(100.0) is None
        waiting.settle(taken[0], 0.0, is_stored=is_stored)

    assert sizes == [1, 2, 4, 8, 1, 2]
    assert waiting.due_in(0.0) == 0
    assert len(waiting.take(3, 10_000)) == 3
    waiting.settle(repeated_message("4"), 0.0, is_stored=False)
    assert waiting.due_in(100.0) is None
    assert len(waiting.clear()) == 40 - sum(sizes) - 3


@pytest.mark.proves("I5")
def test_a_quarter_of_what_is_free_waits_of_a_subject_and_each_subject_has_its_turn() -> None:
    waiting = RepeatedMessages()

    added = [waiting.add(repeated_message("4"), 0.0) for _ in range(1_000)]
    large = [waiting.add(repeated_message("4", bytes(3 << 20), "large"), 0.0) for _ in range(2)]
    others = {
        waiting.add(repeated_message("4", subject=f"s{number % 99}"), 0.0) for number in range(999)
    }
    taken: list[str] = []
    while waiting.due_in(0.0) is not None:
        messages = waiting.take(2_000, 32 << 20)
        taken += [message.subject for message in messages]
        waiting.settle(messages[0], 0.0, is_stored=True)

    # A fifth of 4,096, because a quarter of the rest is as many.
    assert (added.count(True), large, others) == (820, [True, False], {True})
    # 1, 2, 4 messages and so on, of different subjects.
    first = taken[:255]
    assert set(first) == {"turn.completed", "large", *(f"s{number}" for number in range(99))}
    assert first.count("turn.completed") < 16
    assert [waiting.add(repeated_message("4"), 0.0) for _ in range(820)] == [True] * 820


@pytest.mark.proves("I5")
def test_one_event_is_soon_taken_among_hundreds_of_a_session_that_fail() -> None:
    waiting = RepeatedMessages()
    for number in range(800):
        waiting.add(repeated_message("4", subject="one" if number == 700 else "faulty"), 0.0)
    taken: list[str] = []

    while "one" not in taken:
        (message,) = waiting.take(2_000, 10_000)
        waiting.settle(message, 0.0, is_stored=False)
        taken.append(message.subject)

    # Each time with a chance of a half.
    assert len(taken) < 40
