"""Sessions are locked in the order of their numbers, also by what concerns a whole agent."""

import asyncio

import asyncpg
import pytest

from tests.postgres import Postgres
from tests.store_fixtures import KEY, NOON, new_postgres, sql_stores, turn, user
from turnfold.contracts.requests import PolicyRequest
from turnfold.messages import SessionId, SessionKey

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
