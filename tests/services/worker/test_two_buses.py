"""A database belongs to the stream of one bus: the workers of another never store under its sequences."""

import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.nats_server import nats_server
from tests.postgres import Postgres
from tests.running_system import (
    UNFORGOTTEN,
    Parts,
    command,
    eventually,
    running_parts,
    streamed,
    wait_until,
)
from turnfold.client import session_key, turn_event
from turnfold.errors import StartError, Unavailable
from turnfold.messages import SessionKey
from turnfold.process.clock import now_ms
from turnfold.store.compact.requests import SqlSessionCommands
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import refuse_older_stream
from turnfold.store.ingest.erase import SqlErasureStore

KEY = session_key("support", "user-1")


async def publish(parts: Parts, *texts: str, key: SessionKey = KEY) -> None:
    """Publish an event of one request for each text."""
    async with parts.client() as client:
        for text in texts:
            turn = [{"role": "user", "content": text}]
            await client.publish(turn_event(key, turn, event_id=text))


async def publish_bad(parts: Parts, *texts: str) -> None:
    """Publish each text as an event that can never be stored."""
    for text in texts:
        await parts.publish("turn.completed.support.user-1", text.encode())


async def stored(parts: Parts) -> list[str]:
    """The ids of the stored events, in the order of their sequences."""
    rows = await parts.rows("SELECT message_id FROM messages_view ORDER BY position")
    return [row["message_id"].partition("#")[0] for row in rows]


@pytest.mark.proves("L1", "L2", "O2")
async def test_workers_end_once_their_database_belongs_to_another_bus(
    tmp_path: Path, sql: Postgres | None
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(running_parts(tmp_path / "one", postgres=sql))
        server = stack.enter_context(nats_server(tmp_path / "other"))
        other = Parts(tmp_path / "other", server, {"TURNFOLD_DATABASE_URL": one.database_url})
        async with one.running("worker") as worker:
            await publish(one, "first", "second")
            await one.caught_up()

            await other.migrate()
            await publish(one, "late")
            status = await worker.ended()

        assert status == 1
        assert "the database belongs to the stream made at" in one.words()
        async with other.running("worker"):
            await publish(other, "third")
            await other.caught_up()
        assert await stored(other) == ["first", "second", "third"]


@pytest.mark.proves("L1", "O2")
async def test_an_idle_worker_ends_as_well(tmp_path: Path, sql: Postgres | None) -> None:
    (tmp_path / "other").mkdir()
    async with running_parts(tmp_path / "one", postgres=sql) as one:
        with nats_server(tmp_path / "other") as server:
            other = Parts(tmp_path / "other", server, {"TURNFOLD_DATABASE_URL": one.database_url})
            async with one.running("worker") as worker:
                await other.migrate()

                await wait_until(lambda: not worker.is_alive, seconds=20, told=one.words)


@pytest.mark.proves("L1", "O2", "O6")
async def test_a_bus_with_events_of_its_own_does_not_take_over_a_database(
    tmp_path: Path, sql: Postgres | None
) -> None:
    (tmp_path / "other").mkdir()
    async with running_parts(tmp_path / "one", postgres=sql) as one:
        with nats_server(tmp_path / "other") as server:
            async with one.running("worker"):
                await publish(one, "first", "second")
                await one.caught_up()
            other = Parts(tmp_path / "other", server, {})
            await other.migrate()
            await publish(other, "its own")

            environ = other.environ | {"TURNFOLD_DATABASE_URL": one.database_url}
            refused = await command("migrate", environ=environ)

            assert refused.status == 1
            assert "holds events of another stream up to 2" in " ".join(refused.err.split())
        async with one.running("worker"):
            await publish(one, "third")
            await one.caught_up()
        assert await stored(one) == ["first", "second", "third"]


async def store_beyond_backup(
    parts: Parts, directory: Path, publish_more: Callable[..., Awaitable[None]] = publish
) -> None:
    """Store an event, back the stream up, and store two more."""
    await publish(parts, "first")
    await parts.caught_up()
    parts.server.stop()
    shutil.copytree(directory / "store", directory / "backup")
    parts.server.start()
    await publish_more(parts, "second", "third")
    await parts.caught_up()


@asynccontextmanager
async def beside(parts: Parts) -> AsyncGenerator[Database]:
    """The database, while no worker runs."""
    database = Database(parts.database_url, writes=True)
    try:
        yield database
    finally:
        await database.close()


async def is_empty(parts: Parts, statement: str) -> bool:
    """Whether a statement finds nothing."""
    return not await parts.rows(statement)


def put_back(parts: Parts, directory: Path) -> None:
    """Start the NATS server again with the stream of the backup."""
    parts.server.stop()
    shutil.rmtree(directory / "store")
    shutil.copytree(directory / "backup", directory / "store")
    parts.server.start()


@pytest.mark.proves("L1", "O2", "O6")
async def test_a_stream_restored_from_an_older_backup_than_the_database_is_refused(
    tmp_path: Path, sql: Postgres | None
) -> None:
    """L1: it would give new events the numbers of stored ones, and these are not stored again."""
    async with running_parts(tmp_path, postgres=sql) as parts:
        async with parts.running("worker"):
            await store_beyond_backup(parts, tmp_path)
        put_back(parts, tmp_path)

        refused = await command("migrate", environ=parts.environ)
        async with parts.running("worker", is_awaited=False) as worker:
            status = await worker.ended()

        assert (refused.status, status) == (1, 1)
        told = "ends at sequence 1, and the database holds events up to 3"
        assert told in " ".join(refused.err.split())
        assert told in parts.words()
        parts.server.stop()
        shutil.rmtree(tmp_path / "store")
        parts.server.start()
        await parts.migrate()
        async with parts.running("worker"):
            await publish(parts, "fourth")
            await parts.caught_up()
        assert await stored(parts) == ["first", "second", "third", "fourth"]


@pytest.mark.proves("L1", "O2")
async def test_a_running_worker_ends_once_the_bus_comes_back_with_an_older_stream(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with running_parts(tmp_path, postgres=sql) as parts, parts.running("worker") as worker:
        await store_beyond_backup(parts, tmp_path)
        put_back(parts, tmp_path)

        await wait_until(lambda: not worker.is_alive, seconds=60, told=parts.words)
        assert await worker.ended() == 1
        assert "ends at sequence 1, and the database holds events up to 3" in parts.words()


@pytest.mark.proves("L1", "O2")
@pytest.mark.parametrize("session", [KEY, session_key("support", "user-2")])
async def test_a_worker_ends_at_an_event_under_the_number_of_a_stored_one(
    tmp_path: Path, sql: Postgres | None, session: SessionKey
) -> None:
    """L1: publishers were faster than any look at the end of the older stream."""
    async with running_parts(tmp_path, postgres=sql) as parts:
        async with parts.running("worker"):
            await store_beyond_backup(parts, tmp_path)
        put_back(parts, tmp_path)
        # Only up to the former end: a batch beside the one that is refused may store what follows.
        await publish(parts, "fourth", "fifth", key=session)
        told = "stands for another event than the stored one"

        async with parts.running("worker", is_awaited=False) as worker:
            await wait_until(lambda: told in parts.words(), seconds=60, told=parts.words)
            await publish(parts, "sixth", key=session)
            await wait_until(lambda: not worker.is_alive, seconds=60, told=parts.words)

            assert await worker.ended() == 1
        assert await stored(parts) == ["first", "second", "third"]


@pytest.mark.proves("L1", "I5", "O2")
async def test_a_worker_ends_at_a_bad_event_under_the_number_of_another_dead_letter(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with running_parts(tmp_path, postgres=sql) as parts:
        async with parts.running("worker"):
            await store_beyond_backup(parts, tmp_path, publish_bad)
        put_back(parts, tmp_path)
        await publish_bad(parts, "fourth", "fifth")

        async with parts.running("worker", is_awaited=False) as worker:
            await wait_until(lambda: not worker.is_alive, seconds=60, told=parts.words)

            assert await worker.ended() == 1
        assert "sequence 2 stands for another event than the stored one" in parts.words()


@pytest.mark.proves("A6", "L1", "O2")
@pytest.mark.parametrize("session", [KEY, session_key("bystander", "user-2")])
async def test_an_erasure_removes_no_newer_events_from_an_older_stream(
    tmp_path: Path, sql: Postgres | None, session: SessionKey
) -> None:
    """L1: they have the numbers of erased events, of which some were still to be removed."""
    async with running_parts(tmp_path, postgres=sql) as parts:
        async with parts.running("worker"):
            await store_beyond_backup(parts, tmp_path)
        async with beside(parts) as database:
            # The clock of the stream may be a minute ahead.
            await SqlSessionCommands(database).erase(KEY, last_seq=3, now_ms=now_ms() - 60_000)
            # Before newer events come: under the numbers of rows that are left, they are refused.
            erasures = SqlErasureStore(database)
            while await erasures.delete_rows():
                pass
        put_back(parts, tmp_path)
        await publish(parts, "fourth", "fifth", "sixth", key=session)

        async with parts.running("worker"):
            await parts.caught_up()
            await eventually(lambda: is_empty(parts, UNFORGOTTEN), told=parts.words)

        assert await stored(parts) == ["fourth", "fifth", "sixth"]
        assert [event.seq for event in await streamed(parts.server.url)] == [2, 3, 4]


@pytest.mark.proves("O2")
async def test_a_stream_that_does_not_answer_at_once_is_asked_for_its_end_again(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with running_parts(tmp_path, postgres=sql) as parts:
        database = Database(parts.database_url, writes=True)
        answers = iter([None, None, -1])

        async def last_sequence() -> int:
            if (answer := next(answers)) is None:
                raise Unavailable("the stream does not answer")
            return answer

        try:
            with pytest.raises(StartError, match="ends at sequence -1"):
                await refuse_older_stream(database, last_sequence)
        finally:
            await database.close()
