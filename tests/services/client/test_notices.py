"""Notices as a client iterates over them, on a real bus."""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

import turnfold
from tests.nats_server import NatsServer, nats_server, subscriptions_known
from tests.running_system import eventually, wait_until
from turnfold.bus.streams import NOTICES_CONFIG
from turnfold.client import notice_readers, notice_stream
from turnfold.client import notices as notices_module
from turnfold.contracts.notices import NOTICE_NAMES
from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.errors import NotAllowed, Unavailable
from turnfold.nats_client.connection import Denied

AUDIT = {"rows": 3, "hash": "5e7b"}
READS_NO_NOTICES = """
authorization {
  users: [
    {user: support, password: secret, permissions: {
      publish: ["turn.completed.support.>"],
      subscribe: ["_INBOX.>", "*.*.support.*"]}}
  ]
}
"""

READS_THE_NEWEST_NOTICES = """
authorization {
  users: [
    {user: worker, password: secret}
    {user: support, password: secret, permissions: {
      publish: ["$JS.API.DIRECT.GET.NOTICES.>"],
      subscribe: ["_INBOX.>", "*.*.a.*"]}}
  ]
}
""".replace("NOTICES", NOTICES_STREAM)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    with nats_server(tmp_path) as running:
        await running.make_stream(NOTICES_CONFIG)
        yield running


def summary(version: int, session_id: str = "s", agent_id: str = "a") -> dict[str, Any]:
    return {
        "agent_id": agent_id, "session_id": session_id, "audit": AUDIT, "version": version,
        "kind": "llm", "tokens_before": 90, "tokens_after": 40,
    }  # fmt: skip


async def store(server: NatsServer, subject: str, fields: dict[str, Any]) -> None:
    """Put a message into the stream, as a worker does."""
    bus = await nats.connect(server.url)
    await bus.jetstream().publish(subject, json.dumps(fields).encode())
    await bus.close()


async def collect(
    notices: AsyncIterator[turnfold.StoredNotice], count: int
) -> list[turnfold.StoredNotice]:
    async with asyncio.timeout(30):
        return [await anext(notices) for _ in range(count)]


def versions(notices: list[turnfold.StoredNotice]) -> list[int | None]:
    return [
        notice.content.version
        for notice in notices
        if isinstance(notice.content, turnfold.SummaryUpdated)
    ]


@pytest.mark.proves("G2", "X5")
async def test_notices_are_those_of_the_stream_whose_ids_are_their_subjects(
    server: NatsServer,
) -> None:
    failed = {
        "agent_id": "a", "session_id": "t", "audit": AUDIT, "compaction_id": "7",
        "reason": "timeout", "attempts": 2, "next_attempt_at": None,
    }  # fmt: skip
    await store(server, "summary.updated.a.s", summary(1))
    await store(server, "summary.updated.a.s", summary(2, session_id="another"))
    await store(server, "summary.updated.a.s", {"agent_id": "a", "session_id": "s"})
    await store(server, "compaction.failed.a.t", failed)
    await store(server, "summary.updated.other.s", summary(3, agent_id="other"))
    await store(server, "summary.updated.a.s", summary(4))
    async with turnfold.connect(server.url, environ={}) as client:
        bus = await nats.connect(server.url)
        await bus.publish("summary.updated.a.s", json.dumps(summary(99)).encode(), reply="")
        await bus.close()

        every = await collect(client.notices("a", after=0), 4)
        of_session = await collect(client.notices("a", "s", after=every[0].seq), 2)

    assert [(notice.seq, notice.name) for notice in every[:3]] == [
        (1, "summary.updated"),
        (4, "compaction.failed"),
        (6, "summary.updated"),
    ]
    assert every[1].content == turnfold.CompactionFailed.model_validate(failed)
    # Without roles, a message on the subject is in the stream too, whoever sent it.
    assert versions(every) == [1, 4, 99]
    assert versions(of_session) == [4, 99]


@pytest.mark.proves("G2")
async def test_notices_go_on_after_the_bus_was_away_and_end_with_the_client(
    server: NatsServer,
) -> None:
    async with turnfold.connect(server.url, environ={}) as client:
        notices = client.notices("a", "s")
        await store(server, "summary.updated.a.s", summary(1))
        first = asyncio.create_task(collect(notices, 1))

        async def is_heard() -> bool:
            await store(server, "summary.updated.a.s", summary(2))
            return first.done()

        await eventually(is_heard)
        server.kill()
        server.start()
        await store(server, "summary.updated.a.s", summary(3))
        rest: list[int | None] = []
        while 3 not in rest:
            rest += versions(await collect(notices, 1))
        waiting = asyncio.create_task(collect(notices, 1))
        await asyncio.sleep(0)

    with pytest.raises(Unavailable, match="closed"):
        await waiting
    assert versions(first.result()) == [2]
    assert rest[-1] == 3


@pytest.mark.proves("G2")
async def test_a_thread_without_a_loop_iterates_and_ends_with_the_client(
    server: NatsServer,
) -> None:
    client = turnfold.PortalClient(server.url, environ={})
    await store(server, "summary.updated.a.s", summary(1))

    def first() -> list[turnfold.StoredNotice]:
        return [next(client.notices("a", after=0))]

    def all_of_them() -> None:
        for _ in client.notices("a", after=0):
            pass

    assert versions(await asyncio.to_thread(first)) == [1]
    assert versions(await collect(client.notices("a", after=0), 1)) == [1]
    listening = asyncio.create_task(asyncio.to_thread(all_of_them))
    await asyncio.sleep(0)
    await asyncio.to_thread(client.close)
    with pytest.raises(Unavailable, match="closed"):
        await asyncio.wait_for(listening, 20)


@pytest.mark.proves("G2")
async def test_every_thread_that_waits_when_a_client_is_closed_is_told(server: NatsServer) -> None:
    """Whether it asks before, while or after the client is closed."""
    for _ in range(8):
        client = turnfold.PortalClient(server.url, environ={})
        begun = threading.Barrier(5)

        def waits(client: turnfold.PortalClient = client, begun: Any = begun) -> None:
            begun.wait(20)
            client.run(asyncio.Event().wait())

        def listens(client: turnfold.PortalClient = client, begun: Any = begun) -> None:
            begun.wait(20)
            next(client.notices("a", after=10_000))

        waiting = [asyncio.create_task(asyncio.to_thread(one)) for one in 2 * [waits, listens]]
        await asyncio.to_thread(begun.wait, 20)
        await asyncio.to_thread(client.close)
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert {type(one) for one in ended} == {Unavailable}, ended


@pytest.mark.proves("G2")
async def test_attempts_to_begin_leave_no_subscriptions_while_nothing_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices_module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(notice_stream, "READ_SECONDS", 0.02)
    attempts: list[bytes] = []

    async def on_request(message: Msg) -> None:
        attempts.append(message.data)

    with nats_server(tmp_path) as silent:
        bus = await nats.connect(silent.url)
        await bus.subscribe("$JS.API.DIRECT.GET.>", cb=on_request)
        async with turnfold.connect(silent.url, environ={}) as client:
            before = len(asyncio.all_tasks())
            notices = client.notices("a", after=0)
            waiting = asyncio.create_task(anext(notices))
            await wait_until(lambda: len(attempts) > 20)
            during = len(asyncio.all_tasks())
            await notices.aclose()
            with pytest.raises(Unavailable, match="closed"):
                await waiting
            await wait_until(lambda: len(asyncio.all_tasks()) == before)
        await bus.close()

    # A task for each of the subscriptions, and those that wait for an answer.
    assert during - before < 3 * 3


@pytest.mark.proves("G2", "X1")
async def test_credentials_that_may_not_read_notices_leave_no_subscriptions(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path, more=READS_NO_NOTICES) as guarded:
        environ = {"TURNFOLD_NATS_USER": "support", "TURNFOLD_NATS_PASSWORD": "secret"}
        async with turnfold.connect(guarded.url, inbox_prefix="_INBOX", environ=environ) as client:
            before = len(asyncio.all_tasks())
            for _ in range(2):
                with pytest.raises(NotAllowed):
                    await anext(client.notices("support"))
            await wait_until(lambda: len(asyncio.all_tasks()) == before)


@pytest.mark.proves("G2")
async def test_a_signal_that_arrives_before_its_notice_is_stored_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: for a key that reads only the newest notice of a subject, nothing else tells of it."""
    reads: list[object] = []
    read = notice_stream.NoticeStream.newest

    async def stored_late(stream: notice_stream.NoticeStream, subject: str) -> Any:
        # The first read after the signal is that of a stream which is not as far yet.
        kept = await read(stream, subject)
        reads.append(kept)
        return kept if [one for one in reads if one][1:] else None

    monkeypatch.setattr(notice_stream.NoticeStream, "newest", stored_late)
    with nats_server(tmp_path, more=READS_THE_NEWEST_NOTICES) as running:
        worker = running.url.replace("nats://", "nats://worker:secret@")
        bus = await nats.connect(worker)
        await bus.jetstream().add_stream(NOTICES_CONFIG)
        environ = {"TURNFOLD_NATS_USER": "support", "TURNFOLD_NATS_PASSWORD": "secret"}
        async with turnfold.connect(running.url, environ=environ) as client:
            notices = client.notices("a")
            iterating = asyncio.create_task(collect(notices, 1))
            # A notice that is stored before would be none that the iterator waits for.
            await wait_until(lambda: len(notices._subscriptions) == len(NOTICE_NAMES))
            await subscriptions_known(notices._bus)
            fields = json.dumps(summary(1)).encode()
            await bus.jetstream().publish("summary.updated.a.s", fields)

            assert versions(await iterating) == [1]
        await bus.close()


@pytest.mark.proves("G2")
async def test_all_that_is_stored_from_the_first_request_on_is_yielded(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: also notices that are stored while the iterator finds the position to begin at."""
    await store(server, "summary.updated.a.s", summary(1))
    read, reads = notice_stream.NoticeStream.last, iter(range(100))

    async def storing(stream: notice_stream.NoticeStream, subject: str) -> Any:
        kept = await read(stream, subject)
        await store(server, "summary.updated.a.s", summary(10 + next(reads)))
        return kept

    monkeypatch.setattr(notice_stream.NoticeStream, "last", storing)
    async with turnfold.connect(server.url, environ={}) as client:
        first = await collect(client.notices("a"), 1)

    # Two are stored before the position of their subject is known, which is after them.
    assert versions(first) == [11]


@pytest.mark.proves("G2")
async def test_a_notice_is_yielded_that_a_new_stream_stores(tmp_path: Path) -> None:
    with nats_server(tmp_path) as empty:
        async with turnfold.connect(empty.url, environ={}) as client:
            waiting = asyncio.create_task(collect(client.notices("a"), 1))
            await wait_until(lambda: client_subscriptions(client) == 3)
            await empty.make_stream(NOTICES_CONFIG)
            await store(empty, "summary.updated.a.s", summary(1))

            assert versions(await waiting) == [1]


def client_subscriptions(client: turnfold.Client) -> int:
    """How many subscriptions to notices a client has."""
    bus = client._connection.bus
    return sum(one.subject.endswith(".a.*") for one in bus._subs.values())


@pytest.mark.proves("G2")
async def test_two_readers_of_one_iterator_share_its_notices(server: NatsServer) -> None:
    for version in range(1, 21):
        await store(server, "summary.updated.a.s", summary(version))
    async with turnfold.connect(server.url, environ={}) as client:
        notices = client.notices("a", after=0)
        halves = await asyncio.gather(collect(notices, 10), collect(notices, 10))

    assert sorted(version or 0 for half in halves for version in versions(half)) == [*range(1, 21)]


@pytest.mark.proves("G2")
async def test_a_reader_in_another_thread_that_gives_up_loses_no_notice(server: NatsServer) -> None:
    client = turnfold.PortalClient(server.url, environ={})
    notices = client.notices("a", after=0)
    found: list[turnfold.StoredNotice] = []
    bus = await nats.connect(server.url)

    async def read() -> None:
        while len(found) < 100:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.004):
                    found.append(await anext(notices))

    reading = asyncio.create_task(read())
    for version in range(1, 101):
        fields = json.dumps(summary(version)).encode()
        await bus.jetstream().publish("summary.updated.a.s", fields)
    async with asyncio.timeout(60):
        await reading
    await bus.close()
    await asyncio.to_thread(client.close)

    assert versions(found) == [*range(1, 101)]


INTERRUPTED = """
import signal, sys
import turnfold

class WaitEndedError(Exception):
    pass

def interrupt(*_):
    raise WaitEndedError

client = turnfold.PortalClient(sys.argv[1], environ={})
notices = client.notices("a", after=0)
signal.signal(signal.SIGALRM, interrupt)
try:
    for notice in notices:
        print(notice.content.version, flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
except WaitEndedError:
    print("interrupted", flush=True)
sys.stdin.readline()
print(next(notices).content.version, flush=True)
client.close()
"""


@pytest.mark.proves("G2")
async def test_a_thread_whose_wait_is_interrupted_loses_no_notice(server: NatsServer) -> None:
    """A program may go on after Ctrl-C, or after an alarm that limits a wait."""
    await store(server, "summary.updated.a.s", summary(1))
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INTERRUPTED, server.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdin
    assert program.stdout
    try:
        async with asyncio.timeout(30):
            lines = [await program.stdout.readline(), await program.stdout.readline()]
            # An earlier wait that went on would receive the first, and the next one the second.
            await store(server, "summary.updated.a.s", summary(2))
            await store(server, "summary.updated.a.s", summary(3))
            program.stdin.write(b"\n")
            lines.append(await program.stdout.readline())
            await program.wait()
    finally:
        if program.returncode is None:
            program.kill()

    assert [line.decode().strip() for line in lines] == ["1", "interrupted", "2"]


@pytest.mark.proves("G2")
async def test_the_subscriptions_of_an_iterator_end_with_it(server: NatsServer) -> None:
    await store(server, "summary.updated.a.s", summary(1))
    async with turnfold.connect(server.url, environ={}) as client:
        for _ in range(5):
            async for notice in client.notices("a", after=0):
                assert notice.seq == 1
                break

        await wait_until(lambda: client_subscriptions(client) == 0)

    portal = turnfold.PortalClient(server.url, environ={})
    notices = portal.notices("a", after=0)
    await collect(notices, 1)
    waiting = asyncio.create_task(collect(notices, 1))
    await asyncio.sleep(0)
    await notices.aclose()
    with pytest.raises(Unavailable, match="closed"):
        await waiting
    await asyncio.to_thread(notices.close)
    await asyncio.to_thread(portal.close)
    await asyncio.to_thread(notices.close)


@pytest.mark.proves("G2")
async def test_an_iterator_that_is_closed_while_it_begins_ends_at_once(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (notice_readers, notices_module):
        monkeypatch.setattr(module, "POLL_SECONDS", 600.0)
    async with turnfold.connect(server.url, environ={}) as client:
        for steps in range(20):
            notices = client.notices("a")
            waiting = asyncio.create_task(anext(notices))
            await asyncio.sleep(0.0005 * steps)
            await notices.aclose()
            with pytest.raises(Unavailable, match="closed"):
                await asyncio.wait_for(waiting, 30)


@pytest.mark.proves("G2")
async def test_a_notice_that_is_put_back_during_a_read_is_followed_by_the_one_that_was_read(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (1, 2, 3):
        await store(server, "summary.updated.a.s", summary(version))
    read = notice_readers.AllNotices.read
    async with turnfold.connect(server.url, environ={}) as client:
        notices = client.notices("a", after=0)
        (first,) = await collect(notices, 1)

        async def interrupted(reader: notice_readers.AllNotices, ready: Any) -> None:
            monkeypatch.setattr(notice_readers.AllNotices, "read", read)
            # A reader of another thread gave up what it had been given.
            notices.put_back(first)
            await read(reader, ready)

        monkeypatch.setattr(notice_readers.AllNotices, "read", interrupted)
        assert versions(await collect(notices, 3)) == [1, 2, 3]


@pytest.mark.proves("G2", "X1")
async def test_an_iterator_whose_rights_were_taken_goes_on_where_it_was(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(server, "summary.updated.a.s", summary(1))
    await store(server, "summary.updated.a.s", summary(2))
    following = notice_stream.NoticeStream.following

    async def denied(*_: Any) -> Any:
        raise Denied

    async with turnfold.connect(server.url, environ={}) as client:
        notices = client.notices("a", after=0)
        await collect(notices, 1)
        monkeypatch.setattr(notice_stream.NoticeStream, "following", denied)
        with pytest.raises(NotAllowed):
            await anext(notices)
        monkeypatch.setattr(notice_stream.NoticeStream, "following", following)

        assert versions(await collect(notices, 1)) == [2]


@pytest.mark.proves("G2")
async def test_an_iterator_that_was_never_used_is_closed_too(server: NatsServer) -> None:
    portal = turnfold.PortalClient(server.url, environ={})
    notices, others = portal.notices("a", after=0), portal.notices("a", after=0)
    await notices.aclose()
    await asyncio.to_thread(others.close)
    for one in (notices, others):
        with pytest.raises(Unavailable, match="closed"):
            await anext(one)
    await asyncio.to_thread(portal.close)
