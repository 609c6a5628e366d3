"""One client for several event loops and threads, on a real bus."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import turnfold
from tests.nats_server import NatsServer, nats_server
from turnfold.errors import Unavailable

USER = {"role": "user", "content": "Where is order 7341?"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    with nats_server(tmp_path) as running:
        await running.make_stream()
        yield running


async def test_one_client_serves_several_loops_and_threads(server: NatsServer) -> None:
    """G2: made without `async with`, and used from loops that come and go."""
    client = turnfold.PortalClient(server.url, environ={})
    session = client.session("support", "user-42")

    def in_a_loop_of_its_own(number: int) -> int:
        return asyncio.run(session.turn_completed([USER], event_id=f"e{number}")).seq

    here = await session.turn_completed([USER], event_id="here")
    with ThreadPoolExecutor(4) as threads:
        others = [threads.submit(in_a_loop_of_its_own, number) for number in range(8)]
        seqs = await asyncio.to_thread(lambda: [other.result(timeout=20) for other in others])
    blocking = await asyncio.to_thread(lambda: client.run(session.turn_completed([USER])))
    newest = client.newest_seq(session.key)
    await asyncio.to_thread(client.close)

    assert here.seq == 1
    assert sorted(seqs) == list(range(2, 10))
    assert blocking.seq == newest == 10
    assert "turnfold-client" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(Unavailable, match="closed"):
        await session.turn_completed([USER])


async def test_what_a_caller_leaves_behind_is_cancelled(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """G2: the loop of the caller may be closed by then."""
    client = turnfold.PortalClient(server.url, environ={})
    has_begun, has_ended = threading.Event(), threading.Event()

    async def endless(_: turnfold.Client) -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    async def leave() -> None:
        asked = asyncio.create_task(client.use(endless))
        await asyncio.to_thread(has_begun.wait, 20)
        assert not asked.done()

    await asyncio.to_thread(asyncio.run, leave())
    is_cancelled = await asyncio.to_thread(has_ended.wait, 20)
    receipt = await client.session("support", "user-42").turn_completed([USER])
    await asyncio.to_thread(client.close)

    assert is_cancelled
    assert receipt.seq == 1
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_it_connects_at_its_first_use_and_again_after_that_failed(
    tmp_path: Path,
) -> None:
    """G2: a host may make its client before the bus runs."""
    with nats_server(tmp_path) as running:
        await running.make_stream()
        running.kill()
        client = turnfold.PortalClient(running.url, environ={}, timeout_seconds=0.5, attempts=1)
        session = client.session("support", "user-42")
        with pytest.raises(Unavailable, match="no server answers"):
            await session.turn_completed([USER])
        running.start()

        receipt = await session.turn_completed([USER])
        await asyncio.to_thread(client.close)

    assert receipt.seq == 1


@pytest.mark.parametrize("buffering", [None, turnfold.BufferOptions()])
async def test_a_client_of_another_loop_fails_instead_of_waiting_for_ever(
    server: NatsServer, buffering: turnfold.BufferOptions | None
) -> None:
    """G2: the error names the client that can, and nothing waits in a buffer."""
    async with turnfold.connect(server.url, environ={}, buffering=buffering) as client:
        session = client.session("support", "user-42")

        def elsewhere() -> None:
            asyncio.run(session.turn_completed([USER]))

        async with asyncio.timeout(5):
            with pytest.raises(Unavailable, match="PortalClient"):
                await asyncio.to_thread(elsewhere)
        assert client.unpublished == ()


async def ran(code: str, nats_url: str, *, warnings: str) -> tuple[int | None, str]:
    """The status and the output of a program."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", warnings, "-c", code, nats_url),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await asyncio.wait_for(program.communicate(), 30)
    finally:
        if program.returncode is None:
            program.kill()
    return program.returncode, output.decode()


FORKS = """
import asyncio, os, sys
import turnfold

client = turnfold.PortalClient(sys.argv[1], environ={})
session = client.session("support", "user-42")

def publish(end):
    event = session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
    return asyncio.run(event).seq if end == "loop" else client.run(event).seq

print(publish("thread"), flush=True)
for end in ("loop", "thread"):
    child = os.fork()
    if child == 0:
        print(publish(end), flush=True)
        sys.exit(0)
    os.waitpid(child, 0)
    print(publish(end), flush=True)
"""


@pytest.mark.proves("G2")
async def test_a_forked_process_and_its_parent_both_use_the_client(server: NatsServer) -> None:
    """Servers such as gunicorn fork after they have loaded the program."""
    status, output = await ran(FORKS, server.url, warnings="ignore")

    assert [int(line) for line in output.split()] == [1, 2, 3, 4, 5]
    assert status == 0


NESTED = """
import sys
import turnfold

client = turnfold.PortalClient(sys.argv[1], environ={})
session = client.session("support", "user-42")

async def agent():
    for block in (lambda: client.run(session.status()), client.close, client.notices("support").__next__):
        try:
            block()
        except turnfold.Unavailable as error:
            print(error, flush=True)
    return await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])

print(client.run(agent()).seq)
client.close()
"""


@pytest.mark.proves("G2")
async def test_a_tool_that_would_block_the_client_in_its_own_thread_is_told_to_await(
    server: NatsServer,
) -> None:
    """An agent that `run` runs may call a tool that calls `run`, which waited for ever."""
    status, output = await ran(NESTED, server.url, warnings="error")

    *told, seq = output.splitlines()
    assert len(told) == 3
    assert all("await instead" in line for line in told)
    assert (seq, status) == ("1", 0)
