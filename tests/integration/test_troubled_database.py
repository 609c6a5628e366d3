"""A database in trouble says nothing against the events that it cannot store just now."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import Connection, make_url, select, text
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi

import turnfold_migrations
from tests.chaos.crashing_worker import Life, living
from tests.store_fixtures import new_sqlite
from turnfold.errors import StartError, Unavailable
from turnfold.store.database import engine
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import bind_to_stream, wait_until_adopted
from turnfold.store.database.schema import REVISION, stream_purges
from turnfold.store.database.statements import Prepared
from turnfold.store.database.transactions import Result, is_transient_error
from turnfold_migrations import upgrade

ENCRYPTION_WANTED = bytes.fromhex("00000008 04d2162f")
DAMAGE = """
CREATE FUNCTION damage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file "base/1/1": File too large' USING ERRCODE = 'XX000'; END $$;
"""


@pytest.mark.proves("L1")
async def test_what_a_full_or_damaged_disk_refuses_is_no_dead_letter_and_is_stored_later(
    postgres_url: str,
) -> None:
    await upgrade(postgres_url)
    async with living(Life(deed="", database_url=postgres_url)) as worker:

        def damage(connection: Connection) -> None:
            connection.execute(text(DAMAGE))
            connection.execute(
                text("CREATE TRIGGER damage BEFORE INSERT ON messages EXECUTE FUNCTION damage()")
            )

        await worker.database.write(damage)

        with pytest.raises(Unavailable):
            await worker.do("ingest", "1")

        await worker.database.write(
            lambda connection: connection.execute(text("DROP TRIGGER damage ON messages"))
        )
        await worker.do("ingest", "1")
        stored = await worker.database.snapshot(
            lambda connection: connection.execute(text("SELECT count(*) FROM events")).scalar()
        )
        assert stored


@pytest.mark.proves("L1")
async def test_what_a_damaged_file_refuses_is_no_dead_letter_and_is_stored_once_it_is_whole(
    tmp_path: Path,
) -> None:
    url, path = new_sqlite(tmp_path), tmp_path / "turnfold.db"
    with closing(sqlite3.connect(path)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name='messages'")
        ((size,),) = connection.execute("PRAGMA page_size")
    whole = path.read_bytes()
    path.write_bytes(whole[: (page - 1) * size] + bytes(size) + whole[page * size :])

    async with living(Life(deed="", database_url=url)) as worker:
        with pytest.raises(Unavailable, match="damaged"):
            await worker.do("ingest", "1")
    path.write_bytes(whole)
    async with living(Life(deed="", database_url=url)) as worker:
        await worker.do("ingest", "1")


@pytest.mark.proves("L1")
@pytest.mark.parametrize(
    ("taking", "giving"),
    [
        ("REVOKE INSERT ON messages FROM {}", "GRANT INSERT ON messages TO {}"),
        ("ALTER ROLE {} NOLOGIN", "ALTER ROLE {} LOGIN"),
        ("ALTER TABLE messages RENAME TO old", "ALTER TABLE old RENAME TO messages"),
        ("ALTER TABLE messages RENAME gist TO old", "ALTER TABLE messages RENAME old TO gist"),
    ],
    ids=["a right", "the login", "a table", "a column"],
)
async def test_what_is_taken_from_a_role_makes_no_dead_letter_and_is_stored_once_it_is_back(
    postgres_url: str, taking: str, giving: str
) -> None:
    await upgrade(postgres_url)
    role = f"role_{uuid4().hex}"
    owner = Database(postgres_url, writes=True)

    async def execute(*statements: str) -> None:
        for statement in statements:
            await owner.write(partial(Connection.execute, statement=text(statement.format(role))))

    await execute(
        "CREATE ROLE {} LOGIN",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO {}",
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {}",
    )
    try:
        url = str(make_url(postgres_url).set(username=role))
        await execute(taking)
        async with living(Life(deed="", database_url=url)) as worker:
            with pytest.raises(Unavailable):
                await worker.do("ingest", "1")

            await execute(giving)
            await worker.do("ingest", "1")
    finally:
        await execute("DROP OWNED BY {}", "DROP ROLE {}")
        await owner.close()


@pytest.mark.proves("L1")
async def test_a_pooler_that_mixes_connections_makes_no_dead_letters(postgres_url: str) -> None:
    await upgrade(postgres_url)
    async with living(Life(deed="", database_url=postgres_url)) as worker:
        await worker.do("ingest", "1")
        # A pooler in another mode than that of sessions goes on with another connection, which
        # does not know the statements that this one has prepared.
        await worker.database.write(
            lambda connection: connection.exec_driver_sql("DEALLOCATE ALL").close()
        )

        with pytest.raises(Unavailable, match="does not exist"):
            await worker.do("ingest", "10")


@asynccontextmanager
async def pooled(url: str) -> AsyncGenerator[str]:
    """The URL of a database behind a pooler: it takes no parameters that it does not know."""
    address = make_url(url)
    known = {b"user", b"database", b"client_encoding", b"application_name", b""}

    async def passed(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            to.write(data)
        to.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun = await reader.readexactly(8)
        if begun == ENCRYPTION_WANTED:
            writer.write(b"N")
            begun = await reader.readexactly(8)
        told = await reader.readexactly(int.from_bytes(begun[:4]) - 8)
        if set(told.split(b"\0")[::2]) <= known:
            there, back = await asyncio.open_connection(address.host, address.port)
            back.write(begun + told)
            await asyncio.gather(passed(reader, back), passed(there, writer))
        else:
            fault = b"SFATAL\0C08P01\0Munsupported startup parameter\0\0"
            writer.write(b"E" + (len(fault) + 4).to_bytes(4) + fault)
            writer.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield address.set(port=port).render_as_string(hide_password=False)


@pytest.mark.proves("O2")
async def test_a_worker_stores_through_a_pooler(postgres_url: str) -> None:
    async with pooled(postgres_url) as url:
        await upgrade(url)
        async with living(Life(deed="", database_url=url)) as worker:
            await worker.do("ingest", "1")


@pytest.mark.proves("O6")
async def test_a_migration_does_not_hold_services_up_behind_a_transaction_left_open(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnfold_migrations, "LOCK_SECONDS", 1)
    await upgrade(postgres_url, "1001")
    auditor = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
    reading = auditor.transaction()
    await reading.start()
    await auditor.execute("SELECT FROM sessions_view")

    async with asyncio.timeout(20):
        with pytest.raises(StartError, match="lock timeout"):
            await upgrade(postgres_url)
    await reading.rollback()
    await upgrade(postgres_url)

    revision = await auditor.fetchval("SELECT version_num FROM alembic_version")
    await auditor.close()
    assert revision == REVISION


@pytest.mark.proves("O2")
async def test_a_column_of_another_type_fails_one_read_of_a_connection_and_no_more(
    postgres_url: str,
) -> None:
    await upgrade(postgres_url)
    database, migration = Database(postgres_url, writes=True), Database(postgres_url, writes=True)
    purges = Prepared(select(stream_purges.c.stream_seq), ())
    change = text("ALTER TABLE stream_purges ALTER stream_seq TYPE integer")

    for run in (database.snapshot, database.write):
        assert await run(purges.rows) == []
    await migration.write(lambda connection: connection.execute(change))

    for run in (database.snapshot, database.write):
        with pytest.raises(Unavailable):
            await run(purges.rows)
        assert await run(purges.rows) == []
    await database.close()
    await migration.close()


@pytest.mark.proves("L1", "O2")
async def test_a_process_that_stops_inside_a_transaction_does_not_keep_its_locks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ABANDONED_SECONDS", 1)
    await upgrade(postgres_url)
    stopped, other = (Database(postgres_url, writes=True) for _ in range(2))
    is_locked, is_over = threading.Event(), threading.Event()

    def stop_inside(connection: Connection) -> None:
        connection.execute(text("LOCK TABLE sessions"))
        is_locked.set()
        # The process that is stopped here answers nothing, like one after SIGSTOP.
        assert is_over.wait(30)
        connection.execute(text("SELECT 1"))

    def in_a_process_of_its_own() -> None:
        with pytest.raises(Unavailable):
            asyncio.run(stopped.write(stop_inside))

    try:
        running = asyncio.create_task(asyncio.to_thread(in_a_process_of_its_own))
        await asyncio.to_thread(is_locked.wait, 30)
        async with asyncio.timeout(30):
            await other.write(lambda connection: connection.execute(text("LOCK TABLE sessions")))
        is_over.set()
        await running
    finally:
        is_over.set()
        await other.close()


def test_a_connection_whose_server_has_just_ended_it_is_passing_trouble() -> None:
    kind: type[Exception] = AsyncAdapt_asyncpg_dbapi.InternalClientError

    assert is_transient_error(
        kind("cannot switch to state 12; another operation (2) is in progress")
    )


class Recovering(Database):
    """A database that cannot be read at first."""

    times_away = 2

    async def snapshot(self, work: Callable[[Connection], Result]) -> Result:
        """A snapshot, once it is back."""
        self.times_away -= 1
        if self.times_away >= 0:
            raise Unavailable("the database system is in recovery mode")
        return await super().snapshot(work)


async def test_a_worker_that_starts_while_its_database_recovers_waits_for_it(
    tmp_path: Path,
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'turnfold.db'}"
    await upgrade(url)
    database = Recovering(url, writes=True)
    try:
        await bind_to_stream(database, created="2026-11-20T10:00:00Z", first_seq=1)

        await wait_until_adopted(database, created="2026-11-20T10:00:00Z")

        assert database.times_away < 0
    finally:
        await database.close()


async def test_a_worker_does_not_start_on_the_database_of_another_stream(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'turnfold.db'}"
    await upgrade(url)
    database = Database(url, writes=True)
    theirs, ours = "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z"
    try:
        with pytest.raises(StartError, match="belongs to no stream yet"):
            await wait_until_adopted(database, created=ours, seconds=0)
        await bind_to_stream(database, created=theirs, first_seq=1)
        with pytest.raises(StartError, match=f"made at {theirs}.*made at {ours}.*turnfold migrate"):
            await wait_until_adopted(database, created=ours, patience_seconds=0)
    finally:
        await database.close()
