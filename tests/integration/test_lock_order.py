"""Sessions are locked in the order of their numbers, and before their compactions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import asyncpg
import pytest

from tests.contract.compact.versions import claimed
from tests.postgres import Postgres
from tests.store_fixtures import (
    KEY,
    LEASE_MS,
    NOON,
    Stores,
    new_postgres,
    sql_stores,
    turn,
    turns,
    user,
)
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.summary.sources import ChunkSummary
from turnfold.messages import SessionId, SessionKey
from turnfold.ports.compact import Job
from turnfold.store.database import instance_lock
from turnfold_migrations import downgrade, upgrade

WAITING = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'"""


@pytest.mark.proves("L4", "E6")
async def test_a_policy_of_an_agent_locks_the_first_session_before_the_second(
    postgres: Postgres,
) -> None:
    url = await new_postgres(postgres)
    address = url.replace("+asyncpg", "")
    async with sql_stores(url) as stores:
        first, second = (SessionKey(KEY.agent_id, SessionId(name)) for name in ("z", "a"))
        await stores.ingest(turn(1, user("hi"), key=first))
        await stores.ingest(turn(2, user("hi"), key=second))
        # The newest row of the first session stands last in the table now.
        await stores.ingest(turn(3, user("again"), key=first))
        holder, watcher = await asyncpg.connect(address), await asyncpg.connect(address)
        holding = holder.transaction()
        await holding.start()
        await holder.execute("SELECT 1 FROM sessions WHERE session_id = 'z' FOR UPDATE")

        setting = asyncio.create_task(
            stores.changes.set_policy(
                KEY.agent_id,
                PolicyRequest(mode="manual"),
                installation=stores.installation,
                now_ms=NOON,
            )
        )
        async with asyncio.timeout(20):
            while not await watcher.fetchval(WAITING):  # noqa: ASYNC110 - a server tells nobody
                await asyncio.sleep(0.01)
        async with watcher.transaction():
            # It would fail at once if the policy held this lock.
            await watcher.execute("SELECT 1 FROM sessions WHERE session_id = 'a' FOR UPDATE NOWAIT")
        await holding.rollback()
        await setting
        await holder.close()
        await watcher.close()

        policy = await stores.history.wishes(KEY.agent_id)
        assert policy[0].mode == "manual"


JobChange = Callable[[Stores, Job], Awaitable[None]]


@pytest.mark.proves("L4", "S1")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda stores, job: stores.jobs.keep(job, ChunkSummary("d", "paid", 5), now_ms=NOON),
            id="an answer is stored",
        ),
        pytest.param(
            lambda stores, job: stores.jobs.renew(job, lease_ms=LEASE_MS, now_ms=NOON + 2_000),
            id="a lease is renewed",
        ),
        pytest.param(
            lambda stores, job: stores.jobs.give_back(job, now_ms=NOON + 2_000),
            id="a job is given back",
        ),
    ],
)
async def test_a_worker_locks_the_session_before_the_rows_of_its_job(
    postgres: Postgres, change: JobChange
) -> None:
    url = await new_postgres(postgres)
    address = url.replace("+asyncpg", "")
    async with sql_stores(url) as stores:
        await stores.ingest(*turns(10, 7))
        await stores.ingest(*turns(20, 7))
        job = await claimed(stores)
        holder, watcher = await asyncpg.connect(address), await asyncpg.connect(address)
        holding = holder.transaction()
        await holding.start()
        await holder.execute("SELECT 1 FROM sessions FOR UPDATE")

        changing = asyncio.ensure_future(change(stores, job))
        async with asyncio.timeout(20):
            while not await watcher.fetchval(WAITING):
                assert not changing.done(), "it did not wait for the session"
                await asyncio.sleep(0.01)
        async with watcher.transaction():
            # It would fail at once if the worker held one of these locks.
            await watcher.execute("SELECT 1 FROM compactions FOR UPDATE NOWAIT")
        await holding.rollback()
        await changing
        await holder.close()
        await watcher.close()


@pytest.mark.proves("L4", "E6")
async def test_an_erasure_of_an_agent_locks_its_policy_before_its_sessions(
    postgres: Postgres,
) -> None:
    url = await new_postgres(postgres)
    address = url.replace("+asyncpg", "")
    async with sql_stores(url) as stores:
        await stores.ingest(turn(1, user("hi")))

        async def set_mode(mode: Literal["off", "manual"]) -> None:
            await stores.changes.set_policy(
                KEY.agent_id,
                PolicyRequest(mode=mode),
                installation=stores.installation,
                now_ms=NOON,
            )

        await set_mode("off")
        holder, watcher = await asyncpg.connect(address), await asyncpg.connect(address)
        holding = holder.transaction()
        await holding.start()
        await holder.execute("SELECT 1 FROM sessions FOR UPDATE")

        async def wait_for(number: int) -> None:
            async with asyncio.timeout(20):
                while await watcher.fetchval(WAITING) < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        erasing = asyncio.create_task(stores.changes.erase(KEY.agent_id, last_seq=100, now_ms=NOON))
        await wait_for(1)
        setting = asyncio.create_task(set_mode("manual"))
        await wait_for(2)
        await holding.rollback()
        # Otherwise each would hold what the other waits for, and one of them would fail.
        erased, _ = await asyncio.gather(erasing, setting)
        await holder.close()
        await watcher.close()

        assert erased.sessions == 1
        policy = await stores.history.wishes(KEY.agent_id)
        assert policy[0].mode == "manual"


@pytest.mark.proves("A6")
async def test_a_batch_that_waited_for_an_erasure_knows_it_whatever_the_default_of_transactions_is(
    postgres: Postgres,
) -> None:
    url = await new_postgres(postgres)
    address = url.replace("+asyncpg", "")
    await postgres.set(url.rpartition("/")[2], "default_transaction_isolation", "repeatable read")
    async with sql_stores(url) as stores:
        eraser, watcher = await asyncpg.connect(address), await asyncpg.connect(address)
        erasing = eraser.transaction()
        await erasing.start()
        await eraser.execute(f"SELECT pg_advisory_xact_lock({instance_lock._STORING})")

        storing = asyncio.create_task(stores.ingest(turn(1, user("hi"))))
        async with asyncio.timeout(20):
            while not await watcher.fetchval(WAITING):  # noqa: ASYNC110 - a server tells nobody
                await asyncio.sleep(0.01)
        tombstone = (
            "INSERT INTO erasures (agent_id, session_id, last_seq, at_ms) VALUES ($1, $2, 1, 1)"
        )
        await eraser.execute(tombstone, *KEY)
        await erasing.commit()
        await storing

        assert await watcher.fetchval("SELECT count(*) FROM events") == 0
        await eraser.close()
        await watcher.close()


@pytest.mark.proves("O6", "L4")
async def test_a_migration_that_empties_the_index_meets_a_worker_that_fills_it(
    postgres_url: str,
) -> None:
    await upgrade(postgres_url)
    async with sql_stores(postgres_url) as stores:
        await stores.ingest(turn(1, user("hi")))
    await downgrade(postgres_url, "1017")
    address = postgres_url.replace("+asyncpg", "")
    worker, watcher = await asyncpg.connect(address), await asyncpg.connect(address)
    indexing = worker.transaction()
    await indexing.start()
    await worker.execute("SELECT 1 FROM sessions FOR UPDATE")

    migrating = asyncio.create_task(upgrade(postgres_url))
    async with asyncio.timeout(20):
        while not await watcher.fetchval(WAITING):  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.01)
    await worker.execute("SELECT 1 FROM word_index_segments")
    await indexing.commit()
    await migrating

    waits = await watcher.fetchval("SELECT unindexed_from FROM sessions")
    await worker.close()
    await watcher.close()
    assert waits == 0
