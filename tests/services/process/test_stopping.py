"""Services stop on a signal, even if their database hangs, and while they still wait to start."""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGSTOP, SIGTERM

import nats
import pytest

from tests.nats_server import subscriptions_known
from tests.ports import free_port
from tests.postgres import Postgres
from tests.running_system import running_parts, wait_until
from tests.store_fixtures import new_postgres
from turnfold.process import http_server, supervisor
from turnfold.process.tasks import cancel_and_wait
from turnfold.store.database import transactions
from turnfold.store.database.engine import Database
from turnfold.store.query.window import SqlWindowStore
from turnfold_query.ingest_signal import NatsIngestSignal
from turnfold_query.lane import parent


async def test_services_stop_while_their_database_server_hangs(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with (
        running_parts(tmp_path, postgres=postgres) as parts,
        parts.running("worker") as worker,
        parts.running("query") as query,
        parts.client(timeout_seconds=30) as client,
    ):
        session = client.session("ada", "s-1")
        await session.turn_completed([{"role": "user", "content": "Is anybody there?"}])
        await session.context()
        with postgres.frozen():
            for service in (query, worker):
                service.signal(SIGTERM)

                assert await service.ended() == 0, parts.words()

        async with parts.running("worker") as another, parts.running("query"):
            await wait_until(lambda: another.is_ready, told=parts.words)
            assert len((await session.context()).messages) == 1


@pytest.mark.proves("O4")
async def test_services_stop_in_order_when_their_terminal_is_closed(tmp_path: Path) -> None:
    proxy_settings = {
        "TURNFOLD_PROXY_UPSTREAM": "http://127.0.0.1:1",
        "TURNFOLD_PROXY_PORT": str(free_port()),
    }
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker") as worker,
        parts.running("query") as query,
        parts.running("proxy", environ=proxy_settings) as proxy,
    ):
        for service in (proxy, query, worker):
            # It reaches the children of a service, too.
            os.killpg(service.pid, SIGHUP)

            assert await service.ended() == 0, parts.words()
            assert f"{service.name}.stopped" in parts.words()


@pytest.mark.proves("O4")
async def test_a_worker_that_stops_answers_the_requests_that_it_runs(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker") as worker,
        parts.client(timeout_seconds=30) as client,
    ):
        bus = await nats.connect(parts.server.url)
        arrived = await bus.subscribe("session.policy.>")
        await subscriptions_known(bus)
        with closing(sqlite3.connect(parts.database, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            asked = asyncio.create_task(client.session("ada", "s-1").policy(mode="off"))
            await arrived.next_msg(30)
            await asyncio.sleep(0.2)
            worker.signal(SIGTERM)
            await asyncio.sleep(0.5)
            database.execute("ROLLBACK")

        assert (await asked)["mode"] == "off"
        assert await worker.ended() == 0, parts.words()
        await bus.close()


@pytest.mark.proves("O4")
async def test_services_stop_in_time_while_their_bus_is_silent(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker") as worker,
        parts.running("query") as query,
    ):
        os.kill(parts.server.pid, SIGSTOP)
        try:
            for service in (query, worker):
                service.signal(SIGTERM)

                assert await service.ended() == 0, parts.words()
        finally:
            os.kill(parts.server.pid, SIGCONT)
        assert "stopped_late" not in parts.words()


@pytest.mark.proves("O4", "L12")
async def test_no_request_is_lost_while_one_of_two_query_servers_stops(tmp_path: Path) -> None:
    other = {"TURNFOLD_HTTP_PORT": str(free_port())}
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker"),
        parts.running("query") as query,
        parts.running("query", environ=other),
        parts.client(timeout_seconds=30) as client,
    ):
        session = client.session("ada", "s-1")
        await session.turn_completed([{"role": "user", "content": "Is anybody there?"}])
        await session.context()
        bus = await nats.connect(parts.server.url)

        async def asked(number: int) -> bytes:
            if number == 1_000:
                query.signal(SIGTERM)
            return (await bus.request("session.get.ada.s-1", b"{}", timeout=20)).data

        # Not all at once, because servers refuse what is beyond an agent's share.
        answers: list[bytes] = []
        for start in range(0, 3_000, 20):
            answers += await asyncio.gather(*map(asked, range(start, start + 20)))

        assert {b'"messages_total"' in answer for answer in answers} == {True}
        assert await query.ended() == 0, parts.words()
        await bus.close()


async def test_a_query_service_gives_up_reading_a_sequence_from_a_server_that_hangs(
    postgres: Postgres,
) -> None:
    database = Database(await new_postgres(postgres), writes=False)
    windows, is_reading = SqlWindowStore(database), asyncio.Event()

    async def ingested_to() -> int:
        is_reading.set()
        return await windows.ingested_to()

    await windows.ingested_to()
    arrivals = NatsIngestSignal(ingested_to)
    with postgres.frozen():
        waiting = asyncio.create_task(arrivals.reached(1, 60))
        await is_reading.wait()
        await cancel_and_wait(waiting)

        async with asyncio.timeout(60):
            await arrivals.close()
            await database.close()

    left = [task for task in asyncio.all_tasks() if task.get_name() == "arrivals"]
    assert left == []


@pytest.mark.proves("O4")
@pytest.mark.parametrize("awaited", ["tables", "bus"])
@pytest.mark.parametrize("name", ["worker", "query"])
async def test_a_service_that_waits_to_start_stops_at_once(
    tmp_path: Path, name: str, awaited: str
) -> None:
    lacks = {
        "tables": {"TURNFOLD_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/none.db"},
        "bus": {"TURNFOLD_NATS_URL": f"nats://127.0.0.1:{free_port()}"},
    }
    async with (
        running_parts(tmp_path) as parts,
        parts.running(name, is_awaited=False, environ=lacks[awaited]) as service,
    ):
        await wait_until(lambda: f"{awaited}.awaited" in parts.words(), told=parts.words)
        service.signal(SIGTERM)

        assert await service.ended() == 0, parts.words()
        assert "stopped_late" not in parts.words()


@pytest.mark.proves("O4")
def test_a_query_service_ends_its_requests_before_its_supervisor_kills_it() -> None:
    closing = parent.CLOSE_SECONDS + transactions.CLOSE_SECONDS

    assert http_server.STOP_SECONDS + closing < supervisor.SERVICE_STOP_SECONDS
