"""A restored or empty database catches up with the event stream."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nats
import pytest
from structlog.testing import capture_logs

from tests.invariants import StoreSnapshot
from tests.postgres import Postgres
from tests.running_system import Parts, running_parts, wait_until
from tests.store_fixtures import SMALL, stores_on
from turnfold.bus.streams import stream_created
from turnfold.client import Client, OutgoingEvent, result_event, session_key, turn_event
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM, NOTICES_STREAM
from turnfold.core.history.validation import validation_errors
from turnfold.nats_client.connection import NatsClient
from turnfold.process.clock import now_ms
from turnfold.store.compact.withdrawal import withdraw
from turnfold.store.database.engine import Database
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.catch_up import DOUBTS, CatchUp
from turnfold_worker.loops.gaps import GapFinder
from turnfold_worker.loops.idle import IdleEvictor
from turnfold_worker.loops.ingest import IngestLoop
from turnfold_worker.loops.wakeups import Wakeups

ENVIRON = {
    "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20",
    "TURNFOLD_POLICY__OPEN_CALL_TIMEOUT_SECONDS": "0",
    "TURNFOLD_LOG_LEVEL": "info",
}
KEYS = [
    session_key("support", "user-1"),
    session_key("support", "user-2"),
    session_key("billing", "user-1"),
]
VIEW = "SELECT agent_id, session_id, message_id, stream_seq, position, role, tool_call_id, tokens, priority, created_at FROM messages_view"


class Life:
    """Somebody who publishes to some sessions, with all that a stream may hold."""

    def __init__(self, client: Client, url: str) -> None:
        self.client = client
        self._url = url
        self._numbers = count()
        self._late: list[OutgoingEvent] = []
        self.newest = 0

    async def goes_on(self, turns: int = 25) -> None:
        """So many turns to each session: calls whose results come later, copies that the broker does not know, and what is no event."""
        bus = await nats.connect(self._url)
        try:
            for number in [next(self._numbers) for _ in range(turns)]:
                for key in KEYS:
                    event = turn_event(
                        key, conversation(number), event_id=f"{key.session_id}-{number}"
                    )
                    await self.publish(event)
                    if number % 5 == 0:
                        self._late.append(
                            result_event(
                                key,
                                f"c{number}",
                                f"found {number}",
                                event_id=f"{key.session_id}-late-{number}",
                            )
                        )
                    if number % 7 == 0:
                        copy = await bus.jetstream().publish(event.subject, event.payload)
                        assert not copy.duplicate
                if number % 9 == 8:
                    for event in self._late:
                        await self.publish(event)
                    self._late.clear()
                    await bus.jetstream().publish("turn.completed", b"no event")
        finally:
            await bus.close()

    async def publish(self, event: OutgoingEvent) -> None:
        """Publish until it is acknowledged."""
        self.newest = (await self.client.publish(event)).seq

    async def sees_everything(self, parts: Parts) -> None:
        """Windows of a query server say that nothing is missing, and can be sent."""
        async with parts.running("query"):
            for key in KEYS:
                window = await self.client.session(*key).context(
                    max_tokens=50_000, after=self.newest, wait_ms=5_000
                )
                assert window.fresh
                assert validation_errors(window.messages) == []


def conversation(number: int) -> list[dict[str, Any]]:
    """A question and an answer, which now and then calls a tool first."""
    call = {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "search", "arguments": json.dumps({"q": number})},
    }
    calls = (
        [{"role": "assistant", "content": None, "tool_calls": [call]}] if number % 5 == 0 else []
    )
    return [
        {"role": "user", "content": f"Question {number}, ünïcode 語?"},
        *calls,
        {"role": "assistant", "content": f"Answer {number}."},
    ]


@asynccontextmanager
async def life(directory: Path, sql: Postgres | None) -> AsyncGenerator[tuple[Parts, Life]]:
    """A bus, a database and somebody who publishes."""
    async with (
        running_parts(directory, environ=ENVIRON, postgres=sql) as parts,
        parts.client() as client,
    ):
        yield parts, Life(client, parts.server.url)


@asynccontextmanager
async def workers(parts: Parts, number: int = 2) -> AsyncGenerator[None]:
    """So many workers, as far as they may work at once."""
    async with AsyncExitStack() as stack:
        for first in range(number):
            await stack.enter_async_context(parts.running("worker", is_awaited=first == 0))
        yield


async def told(parts: Parts, seen: StoreSnapshot) -> dict[str, Any]:
    """What the stream alone decides: messages, their order and places, which result answers which call, counts, dead letters."""
    sessions = {
        key: (
            [replace(one.message, compaction_id=None) for one in session.messages],
            [(one.body, one.original, one.is_error) for one in session.messages],
            session.events,
            (
                session.counters.messages_total,
                session.counters.tokens_total,
                session.counters.last_event_at_ms,
            ),
        )
        for key, session in seen.sessions.items()
    }
    view = await parts.rows(f"{VIEW} ORDER BY agent_id, session_id, position")
    return {
        "sessions": sessions,
        "view": view,
        "dead": seen.dead_letters,
        "ingested": seen.ingested,
    }


@pytest.mark.proves("L1", "L2", "L3", "O2", "O6")
async def test_a_new_database_holds_what_the_one_held_that_lived_through_it_all(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with life(tmp_path / "first", sql) as (parts, somebody):
        async with workers(parts):
            await somebody.goes_on(36)
            lived = await told(parts, await parts.settled())
        environ = ENVIRON | (
            {"TURNFOLD_DATABASE_URL": sql.url(await sql.create_database())} if sql else {}
        )
        (tmp_path / "second").mkdir()
        again = Parts(tmp_path / "second", parts.server, environ)

        await again.migrate()
        async with workers(again):
            rebuilt = await told(again, await again.settled())

        assert rebuilt == lived
        assert sum(len(rows) for rows, *_ in lived["sessions"].values()) == 3 * (36 * 2 + 8 + 8)


@pytest.mark.proves("L1", "L2", "L3", "O2")
async def test_a_database_restored_from_a_backup_catches_up_with_the_stream(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with life(tmp_path, sql) as (parts, somebody):
        async with workers(parts):
            await somebody.goes_on()
            await parts.settled()
            backup = await backed_up(parts, sql)
            await somebody.goes_on()
            lived = await told(parts, await parts.settled())
        await restored(parts, sql, backup)
        assert await told(parts, await parts.seen()) != lived

        async with workers(parts):
            assert await told(parts, await parts.settled()) == lived
            await somebody.goes_on(5)
            await parts.settled()
            evictions = await parts.rows(
                "SELECT compaction_id FROM compactions_view WHERE messages_evicted > 0"
            )
            assert {row["compaction_id"] for row in evictions} <= await told_of(parts.server.url)
            await somebody.sees_everything(parts)


@pytest.mark.proves("L1", "L2", "L3", "O2")
async def test_a_database_that_falls_back_to_an_older_state_is_caught_up_by_workers_that_run_on(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with life(tmp_path, postgres) as (parts, somebody), workers(parts):
        await somebody.goes_on()
        await parts.settled()
        backup = await backed_up(parts, postgres)
        await somebody.goes_on()
        lived = await told(parts, await parts.settled())

        await restored(parts, postgres, backup)
        await wait_until(lambda: "events.caught_up" in parts.words(), told=parts.words)

        assert await told(parts, await parts.settled()) == lived


@pytest.mark.proves("L1", "O2")
async def test_deleted_events_between_others_are_all_found_in_one_round(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with life(tmp_path, sql) as (parts, _):
        bus = NatsClient()
        await bus.connect(parts.server.url)
        database = Database(parts.database_url, writes=True)
        try:
            jetstream = bus.jetstream()
            for _ in range(40):
                await jetstream.publish("turn.completed.support.user-1", b"{}")
            consumer = await jetstream.pull_subscribe_bind(EVENTS_CONSUMER, EVENTS_STREAM)
            for message in await consumer.fetch(40):
                await message.ack_sync()
            for seq in range(2, 40, 2):
                await jetstream.delete_msg(EVENTS_STREAM, seq)
            created = await stream_created(bus)
            store = SqlIngestStore(database, withdraw, stream_created=created)
            finder = GapFinder(cast("WorkerContext", SimpleNamespace(client=bus)), store=store)
            finder.max_requests = 3

            await finder.work()

            held = [(seq, seq) for seq in range(1, 38, 2)] + [(39, 40)]
            assert await store.gaps(up_to=40) == held
        finally:
            await database.close()
            await bus.close()


@pytest.mark.proves("L1", "O2")
async def test_a_worker_waits_for_a_stream_that_ends_too_early_for_some_rounds_only(
    tmp_path: Path, sql: Postgres | None
) -> None:
    """O2: as that of a server does that lost its cluster."""
    async with life(tmp_path, sql) as (parts, _):
        bus, database = NatsClient(), Database(parts.database_url, writes=True)
        await bus.connect(parts.server.url)
        try:
            store = SqlIngestStore(database, withdraw, stream_created=await stream_created(bus))
            await store.mark_ingested([(1, 1)])
            context = SimpleNamespace(client=bus, database=database, decode=None)
            ingest = SimpleNamespace(may_begin=asyncio.Event(), refusal=None)
            catch_up = CatchUp(
                cast("WorkerContext", context), store=store, ingest=cast("IngestLoop", ingest)
            )

            for _ in range(DOUBTS - 1):
                await catch_up.work()
                assert not ingest.may_begin.is_set()
            await bus.jetstream().publish("turn.completed.support.user-1", b"{}")
            await catch_up.work()

            assert ingest.may_begin.is_set()
        finally:
            await database.close()
            await bus.close()


@pytest.mark.proves("L7", "O2")
async def test_events_that_the_stream_purged_before_the_database_had_them_are_told_of(
    tmp_path: Path, sql: Postgres | None
) -> None:
    """L7: as after a backup is restored that is older than the stream's retention."""
    async with life(tmp_path, sql) as (parts, somebody):
        async with workers(parts):
            await somebody.goes_on(2)
            await parts.settled()
            backup = await backed_up(parts, sql)
            await somebody.goes_on(2)
            await parts.settled()
        assert "events.lost" not in parts.words()
        bus = await nats.connect(parts.server.url)
        (stored,) = await parts.rows("SELECT max(last_seq) AS seq FROM ingested_ranges")
        await bus.jetstream().purge_stream(EVENTS_STREAM, seq=stored["seq"])
        await bus.close()
        await restored(parts, sql, backup)
        (kept,) = await parts.rows("SELECT max(last_seq) AS seq FROM ingested_ranges")

        async with workers(parts):
            await parts.settled()

        told = [json.loads(line) for line in parts.words().splitlines() if "events.lost" in line]
        lost = stored["seq"] - kept["seq"] - 1
        # Two workers may find the same at once.
        assert {(line["events"], line["up_to_seq"]) for line in told} == {(lost, stored["seq"] - 1)}


@pytest.mark.proves("L7", "O2")
async def test_events_that_another_worker_stored_and_removed_meanwhile_are_not_called_lost(
    tmp_path: Path, sql: Postgres | None
) -> None:
    """L7: as when an agent is erased whose events are on their way."""

    class Overtaken(SqlIngestStore):
        async def gaps(self, *, up_to: int = 0) -> Sequence[tuple[int, int]]:
            gaps = await super().gaps(up_to=up_to)
            await self.mark_ingested(gaps)
            await bus.jetstream().purge_stream(EVENTS_STREAM)
            return gaps

    async with life(tmp_path, sql) as (parts, _):
        bus, database = NatsClient(), Database(parts.database_url, writes=True)
        await bus.connect(parts.server.url)
        try:
            for _ in range(3):
                await bus.jetstream().publish("turn.completed.support.user-1", b"{}")
            store = Overtaken(database, withdraw, stream_created=await stream_created(bus))
            await store.mark_ingested([(3, 3)])
            finder = GapFinder(cast("WorkerContext", SimpleNamespace(client=bus)), store=store)

            with capture_logs() as logs:
                await finder.work()

            assert [line["event"] for line in logs] == []
        finally:
            await database.close()
            await bus.close()


async def told_of(url: str) -> set[str]:
    """The compactions that the stream of notices speaks of."""
    bus = await nats.connect(url)
    try:
        jetstream = bus.jetstream()
        number = (await jetstream.stream_info(NOTICES_STREAM)).state.messages
        notices = await jetstream.subscribe("", stream=NOTICES_STREAM, ordered_consumer=True)
        said = [json.loads((await notices.next_msg(timeout=10)).data) for _ in range(number)]
        return {one["compaction_id"] for one in said if "compaction_id" in one}
    finally:
        await bus.close()


async def backed_up(parts: Parts, sql: Postgres | None) -> str:
    """A backup of the database in use: its name on the server, or its path."""
    if sql:
        return await sql.copy_database(parts.database_url.rpartition("/")[2])
    copy = parts.database.with_name("backup.db")
    with (
        contextlib.closing(sqlite3.connect(parts.database)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    return str(copy)


async def restored(parts: Parts, sql: Postgres | None, backup: str) -> None:
    """Put a backup in the place of the database."""
    if sql:
        name = parts.database_url.rpartition("/")[2]
        await sql.rename_database(name, f"{name}_lost")
        await sql.rename_database(backup, name)
        return
    for suffix in ("-wal", "-shm"):
        parts.database.with_name(parts.database.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(backup, parts.database)


@pytest.mark.proves("E1")
async def test_a_session_whose_newest_event_still_waits_is_not_idle(
    tmp_path: Path, sql: Postgres | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was off for longer than a session may be idle, while the agent went on."""
    async with life(tmp_path, sql) as (parts, agent):
        parts.environ["TURNFOLD_POLICY__IDLE_SECONDS"] = "36000"
        await agent.goes_on(4)
        async with parts.running("worker"):
            await parts.caught_up()
        ago_ms = 20_000_000
        database = Database(parts.database_url, writes=True)
        past = f"UPDATE sessions SET last_event_at_ms = last_event_at_ms - {ago_ms}, idle_at_ms = idle_at_ms - {ago_ms}"
        await database.write(lambda connection: connection.exec_driver_sql(past))
        await agent.goes_on(1)
        bus = NatsClient()
        await bus.connect(parts.server.url)
        policy = replace(SMALL, idle_seconds=36_000, keep_messages=2, max_live_messages=0)
        stores = stores_on(database, policy)
        context = SimpleNamespace(client=bus, database=database, installation=stores.installation)
        later = now_ms() + 20_000_000
        monkeypatch.setattr("turnfold_worker.loops.idle.now_ms", lambda: later)
        evictor = IdleEvictor(cast("WorkerContext", context), store=stores.idle, wakeups=Wakeups())
        try:
            await evictor.work()
            async with parts.running("worker"):
                await parts.caught_up()
            await evictor.work()
            assert await parts.rows("SELECT 1 FROM compactions") == []

            later += 20_000_000
            await evictor.work()
            assert len(await parts.rows("SELECT 1 FROM compactions")) == len(KEYS)
        finally:
            await database.close()
            await bus.close()
