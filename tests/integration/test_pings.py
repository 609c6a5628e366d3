"""PostgreSQL is asked rarely whether a connection still works, and one that it has closed is not used."""

import asyncio
import socket

import pytest
from sqlalchemy import Connection, func, select, text

from tests.postgres import running_postgres
from turnfold.store.database.engine import Database
from turnfold.store.database.statements import Prepared, SupportsStatements

READS = 200


def one(connection: Connection) -> int:
    """A transaction of one statement."""
    return int(connection.execute(text("SELECT 1")).scalar_one())


async def test_a_transaction_is_not_preceded_by_another_one(postgres_url: str) -> None:
    counts = text(
        "SELECT xact_commit, xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    )
    reader, observer = Database(postgres_url, writes=False), Database(postgres_url, writes=False)

    async def counted() -> tuple[int, int]:
        committed, rolled_back = await observer.snapshot(
            lambda connection: connection.execute(counts).one()
        )
        return committed, rolled_back

    before = await counted()
    for _ in range(READS):
        await reader.snapshot(one)
    # A server counts what a connection did when that ends, at the latest.
    await reader.close()
    async with asyncio.timeout(30):
        while True:
            now = await counted()
            if now[0] >= before[0] + READS:
                break
            await asyncio.sleep(0.05)
    await observer.close()

    # The first transaction of each connection, and some of the observer's.
    assert now[1] - before[1] < READS / 2


async def test_a_server_that_restarted_is_read_through_a_new_connection() -> None:
    with running_postgres() as postgres:
        database = Database(postgres.url("postgres"), writes=False)
        assert await database.snapshot(one) == 1

        await asyncio.to_thread(postgres.stop)
        await asyncio.to_thread(postgres.start)

        assert await database.snapshot(one) == 1
        await database.close()


async def test_a_small_read_is_in_no_transaction_and_a_later_snapshot_is(postgres_url: str) -> None:
    database = Database(postgres_url, writes=False)

    state = Prepared(select(func.now(), func.current_setting("transaction_isolation")), ())

    def twice(connection: SupportsStatements) -> tuple[bool, str]:
        """Tell whether two statements are in one transaction, and at which level."""
        (began, level), (again, _) = [*state.rows(connection), *state.rows(connection)]
        return began == again, str(level)

    small = await database.read_small(twice)
    # The connection has gone back to the pool.
    whole = await database.snapshot(twice)
    await database.close()

    assert small == (False, "read committed")
    assert whole == (True, "repeatable read")


@pytest.mark.proves("O2")
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="another system")
@pytest.mark.parametrize("writes", [False, True])
async def test_a_server_whose_machine_is_gone_is_given_up_within_half_a_minute(
    postgres_url: str, writes: bool
) -> None:
    database = Database(postgres_url, writes=writes)

    def options(connection: Connection) -> tuple[int, int, int]:
        driver = connection.connection.driver_connection
        assert driver
        connected = driver._transport.get_extra_info("socket")
        idle, each, times, unanswered = (
            connected.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
        is_asked = connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return is_asked, idle + each * times, unanswered

    is_asked, silent_seconds, unanswered_ms = await (
        database.write(options) if writes else database.snapshot(options)
    )
    await database.close()

    assert is_asked
    assert silent_seconds <= 30
    assert 0 < unanswered_ms <= 30_000
