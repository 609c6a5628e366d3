"""Foreign messages and errors do not stop the consumer, the loops or ingest signals (O7, C69)."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.nats_server import NatsServer, subscriptions_known
from tests.running_system import wait_until
from turnfold.bus.pull import PullConsumer
from turnfold.contracts.subjects import (
    EVENTS_CONSUMER,
    EVENTS_STREAM,
    TURN_COMPLETED,
    session_subject,
)
from turnfold.errors import StartError, Unavailable
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.ingest.decode import Delivery
from turnfold_query.ingest_signal import WAKE_SECONDS, NatsIngestSignal
from turnfold_worker.loops.polling import PollingLoop
from turnfold_worker.receiver.child import DECODE_BYTES, DECODE_EVENTS, delivery_of, portions

NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS_STREAM}.{EVENTS_CONSUMER}"
FORGED: tuple[tuple[bytes, dict[str, str] | None], ...] = (
    (b"", None),
    (b'{"ok": true}', None),
    (b"[]", {"Status": "409", "Description": "Consumer Deleted"}),
    (b"", {"Status": "409", "Description": "Consumer Deleted"}),
    (b"", {"Status": "409", "Description": "Consumer is push based"}),
    (b"", {"Status": "408", "Nats-Pending-Messages": "many", "Nats-Pending-Bytes": "-1"}),
    (b"", {"Status": "408", "Nats-Pending-Messages": "9" * 5_000}),
    (b"", {"Status": "503"}),
    (b"", {"Status": "777"}),
)


@pytest.fixture
async def pull(server: NatsServer, bus: Client) -> AsyncIterator[PullConsumer]:
    own = NatsClient()
    await own.connect(server.url)
    pulling = PullConsumer(own, stream=EVENTS_STREAM, consumer=EVENTS_CONSUMER)
    yield pulling
    await pulling.stop()
    await own.close()


@pytest.mark.proves("O9")
async def test_a_batch_is_bounded_in_bytes_and_takes_at_least_one_event(
    bus: Client, pull: PullConsumer
) -> None:
    stream = bus.jetstream()
    subject = session_subject(TURN_COMPLETED, SessionKey(AgentId("a"), SessionId("s")))
    for number, size in enumerate((10, 20, 4_000, 30)):
        await stream.publish(subject, f"{number}".encode() * size)
    await pull.start()
    await wait_until(lambda: pull.in_flight == 4)

    batches = [await pull.take(3, most_bytes=1_000) for _ in range(3)]

    assert [[len(message.data) for message in batch] for batch in batches] == [
        [10, 20],
        [4_000],
        [30],
    ]


@pytest.mark.proves("O9")
def test_no_more_is_decoded_at_a_time_than_the_limits_of_count_and_size_allow() -> None:
    small = [Delivery("s", b"x", seq, 0) for seq in range(2 * DECODE_EVENTS + 1)]
    large = [Delivery("l", b"x" * DECODE_BYTES, seq, 0) for seq in range(2)]

    assert [len(some) for some in portions(small)] == [DECODE_EVENTS, DECODE_EVENTS, 1]
    assert [len(some) for some in portions([*small[:2], *large, small[2]])] == [2, 1, 1, 1]
    assert list(portions([])) == []


@pytest.mark.proves("O7", "C69")
async def test_events_arrive_whatever_others_write_to_whoever_asks_for_them(
    bus: Client, pull: PullConsumer
) -> None:
    asked = 0

    async def on_request(message: Msg) -> None:
        nonlocal asked
        asked += 1
        for data, headers in FORGED * 3:
            await bus.publish(message.reply, data, headers=headers)

    await bus.subscribe(NEXT, cb=on_request)
    await subscriptions_known(bus)
    await pull.start()
    taken: list[int] = []
    for number in range(30):
        await bus.jetstream().publish(f"turn.completed.a.{number}", b"{}")
        async with asyncio.timeout(10):
            messages = await pull.take(100)
        taken += [delivery_of(message, has_trace=False).stream_seq for message in messages]
        await pull.acknowledge(messages)
        await asyncio.sleep(0.05)

    assert taken == list(range(1, 31))
    assert 1 < asked < 60


@pytest.mark.proves("O7")
async def test_a_consumer_that_is_really_gone_is_told(bus: Client, pull: PullConsumer) -> None:
    await pull.start()
    # A request that comes after the consumer has gone is answered otherwise: nobody is there to say so.
    while not (await bus.jetstream().consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)).num_waiting:  # noqa: ASYNC110  # only the server knows
        await asyncio.sleep(0.01)
    await bus.jetstream().delete_consumer(EVENTS_STREAM, EVENTS_CONSUMER)

    with pytest.raises(StartError, match="turnfold migrate"):
        async with asyncio.timeout(10):
            await pull.take(1)


class Stumbling(PollingLoop):
    """Fails with each of these errors in turn, then works."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors: Sequence[Exception] = errors
        self.has_worked = asyncio.Event()

    async def work(self) -> float:
        if self.errors:
            first, *self.errors = self.errors
            raise first
        self.has_worked.set()
        return 60.0


async def test_a_loop_logs_an_outage_once_and_the_next_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("turnfold_worker.loops.polling.RETRY_SECONDS", 0.0)
    loop = Stumbling(*[Unavailable("the database cannot be used now")] * 20)
    with structlog.testing.capture_logs() as logged:
        running = asyncio.create_task(loop.run(on_failure=pytest.fail))
        await loop.has_worked.wait()
        assert len(logged) == 1
        loop.errors = [Unavailable("the database cannot be used now")] * 20
        loop.has_worked.clear()
        loop.wake()
        await loop.has_worked.wait()
    running.cancel()
    assert [(line["event"], line["part"]) for line in logged] == [("loop.delayed", "Stumbling")] * 2


@pytest.mark.proves("O7")
async def test_a_loop_goes_on_after_any_error_and_counts_those_that_were_not_foreseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[int] = []

    def at_once(failures: int) -> float:
        waited.append(failures)
        return 0.0

    monkeypatch.setattr("turnfold_worker.loops.polling.backoff_seconds", at_once)
    failed: list[str] = []
    loop = Stumbling(KeyError("seq"), ValueError("no JSON"), RuntimeError(), AssertionError())

    running = asyncio.create_task(loop.run(on_failure=failed.append))
    async with asyncio.timeout(5):
        await loop.has_worked.wait()
    running.cancel()

    assert failed == ["Stumbling"] * 4
    assert waited == [0, 1, 2, 3]


@pytest.mark.proves("O7")
async def test_only_what_a_new_process_would_mend_ends_a_loop() -> None:
    with pytest.raises(StartError):
        await Stumbling(StartError("the consumer is gone")).run(on_failure=print)
    patient = Stumbling(Unavailable("later"))
    running = asyncio.create_task(patient.run(on_failure=print))
    async with asyncio.timeout(10):
        await patient.has_worked.wait()
    running.cancel()


@pytest.mark.proves("O7")
async def test_a_flood_of_words_wakes_those_who_wait_no_more_often_than_is_useful() -> None:
    ended: list[float] = []
    begun: list[float] = []
    time = asyncio.get_running_loop().time

    async def ingested_to() -> int:
        begun.append(time())
        await asyncio.sleep(0)
        ended.append(time())
        return 0 if len(ended) < 20 else 1

    arrivals = NatsIngestSignal(ingested_to)
    waiting = asyncio.create_task(arrivals.reached(1, 3_600))
    async with asyncio.timeout(60):
        while not waiting.done():
            for _ in range(100):
                arrivals.notify()
            await asyncio.sleep(0)
        await arrivals.close()

    pauses = [after - before for before, after in zip(ended, begun[1:], strict=False)]
    assert len(begun) == 20
    assert all(pause >= WAKE_SECONDS * 0.9 for pause in pauses)
