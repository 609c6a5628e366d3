"""Transactions that are cancelled at any moment leave no old one open, on a real PostgreSQL.

Between the database and the server stands a relay that passes on each reply 3 ms late, as a network
does. Otherwise few cancellations would meet the beginning of a transaction.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.engine import make_url

from tests.postgres import Postgres
from tests.store_fixtures import new_postgres
from turnfold.process.tasks import cancel_and_wait
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import stream_purges
from turnfold.store.database.statements import Prepared, SupportsStatements

LATE_SECONDS = 0.003
ROUNDS, AT_ONCE = 60, 4
PURGES = Prepared(select(func.count()).select_from(stream_purges), ())
IN_TRANSACTION = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'"""


@asynccontextmanager
async def far_away(url: str) -> AsyncGenerator[str]:
    """The URL of a database as if its server were further away."""
    address = make_url(url)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(passed(reader, back, 0.0), passed(there, writer, LATE_SECONDS))

    async def passed(source: asyncio.StreamReader, to: asyncio.StreamWriter, late: float) -> None:
        try:
            while data := await source.read(65_536):
                await asyncio.sleep(late)
                to.write(data)
        except ConnectionError:
            pass
        finally:
            to.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield address.set(port=port).render_as_string(hide_password=False)


def look(connection: SupportsStatements) -> int:
    """Count the rows of a small table, as stores read."""
    (row,) = PURGES.rows(connection)
    return int(row[0])


@pytest.mark.proves("W5", "L1", "L9")
@pytest.mark.parametrize("name", ["write", "snapshot", "read_small"])
async def test_a_cancelled_transaction_leaves_none_open(postgres: Postgres, name: str) -> None:
    url, random = await new_postgres(postgres), Random(7)
    other = Database(url, writes=True)
    async with far_away(url) as slow_url:
        database = Database(slow_url, writes=name == "write", readers_each=AT_ONCE)
        run = getattr(database, name)

        async def interrupted() -> None:
            running = asyncio.create_task(run(look))
            await asyncio.sleep(random.random() * 5 * LATE_SECONDS)
            await cancel_and_wait(running)

        try:
            for _ in range(ROUNDS):
                # First whole: a new connection takes longer than what is cancelled.
                await asyncio.gather(*[run(look) for _ in range(AT_ONCE)])
                await asyncio.gather(*[interrupted() for _ in range(AT_ONCE)])
            await other.write(
                lambda connection: connection.execute(insert(stream_purges).values(stream_seq=1))
            )
            seen = await asyncio.gather(*[run(look) for _ in range(AT_ONCE)])
            still_open = await other.snapshot(
                lambda connection: connection.execute(text(IN_TRANSACTION)).scalar_one()
            )
        finally:
            await database.close()
            await other.close()

    assert set(seen) == {1}
    assert still_open == 0
