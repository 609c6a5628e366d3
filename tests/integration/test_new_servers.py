"""Another server of PostgreSQL is told from another connection to the same one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from tests.postgres import Postgres, running_postgres
from turnfold.errors import Unavailable
from turnfold.store.database.engine import READERS, Database

END_ALL = text("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()""")


class Address:
    """One address whose server may change."""

    def __init__(self, port: int) -> None:
        self.port = port

    @asynccontextmanager
    async def passing_on(self) -> AsyncGenerator[int]:
        """The port that leads to the server of the moment."""

        async def passed(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65_536):
                    to.write(data)
            except ConnectionError:
                pass
            finally:
                to.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", self.port)
            await asyncio.gather(passed(reader, back), passed(there, writer))

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]


def one(connection: Connection) -> int:
    return int(connection.execute(text("SELECT 1")).scalar_one())


def end_others(connection: Connection) -> None:
    connection.execute(END_ALL)


async def read_by_all(database: Database) -> None:
    """Read on every connection of the pool, whatever became of it."""

    async def read() -> None:
        async with asyncio.timeout(30):
            while True:
                try:
                    await database.snapshot(one)
                except Unavailable:
                    await asyncio.sleep(0.01)
                    continue
                return

    await asyncio.gather(*(read() for _ in range(READERS)))


@pytest.mark.proves("W5")
async def test_caches_are_forgotten_for_another_server_and_not_for_another_connection(
    postgres: Postgres,
) -> None:
    with running_postgres() as standby:
        name = await postgres.create_database()
        await standby.rename_database(await standby.create_database(), name)
        here, there = make_url(postgres.url(name)), make_url(standby.url(name))
        address, forgotten = Address(here.port or 0), list[int]()
        async with address.passing_on() as port:
            url = here.set(port=port).render_as_string(hide_password=False)
            reader, killer = Database(url, writes=False), Database(postgres.url(name), writes=False)
            reader.on_new_server(lambda: forgotten.append(1))
            await read_by_all(reader)
            at_first = len(forgotten)

            await killer.snapshot(end_others)
            await read_by_all(reader)
            after_a_lost_connection = len(forgotten)

            address.port = there.port or 0
            await killer.snapshot(end_others)
            await read_by_all(reader)
            await reader.close()
            await killer.close()

        assert (at_first, after_a_lost_connection, len(forgotten)) == (1, 1, 2)


@pytest.mark.proves("W5")
async def test_caches_are_forgotten_for_a_database_that_takes_the_name_of_another(
    postgres: Postgres,
) -> None:
    name, restored, forgotten = (
        await postgres.create_database(),
        await postgres.create_database(),
        list[int](),
    )
    reader = Database(postgres.url(name), writes=False)
    reader.on_new_server(lambda: forgotten.append(1))
    await read_by_all(reader)

    await postgres.rename_database(name, f"{name}_before")
    await postgres.rename_database(restored, name)
    await read_by_all(reader)
    await reader.close()

    assert len(forgotten) == 2
