"""The caches of a query server after an erasure."""

from pathlib import Path

import pytest

from tests.contract.query.test_recall import no_arrivals
from tests.store_fixtures import KEY, NOON, Stores, turns
from turnfold.cache import SessionCaches
from turnfold.contracts.requests import ContextRequest
from turnfold.messages import SessionId, SessionKey
from turnfold.operations.query.context import context
from turnfold.operations.query.environment import ContextReply, QueryEnvironment
from turnfold.operations.query.recall_decisions import Recall
from turnfold.store.database.engine import Database
from turnfold.store.query.recall import SqlRecallStore
from turnfold.store.query.window import SqlWindowStore
from turnfold_query.erasures import ErasureFollower

GONE = SessionKey(KEY.agent_id, SessionId("gone"))


class Server:
    """A query server that was asked for two sessions, and caches them."""

    def __init__(self, stores: Stores) -> None:
        assert isinstance(stores.windows, SqlWindowStore)
        assert isinstance(stores.recall, SqlRecallStore)
        self._environment = QueryEnvironment(
            stores.policy,
            model_window=lambda _, numbers: numbers.context_window or 128_000,
            recall=Recall(stores.recall),
        )
        self.store = stores.windows
        self.caches = SessionCaches(
            *self.store.caches, *stores.recall.caches, *self._environment.caches
        )

    async def window(self, key: SessionKey) -> ContextReply:
        request = ContextRequest(max_tokens=1_000, query="question 7")
        return await context(
            key,
            request,
            store=self.store,
            environment=self._environment,
            ingest_signal=no_arrivals,
        )


async def asked_for_both(stores: Stores) -> Server:
    await stores.ingest(*turns(1, 30), *turns(31, 30, key=GONE))
    server = Server(stores)
    for key in (KEY, GONE):
        await server.window(key)
    return server


@pytest.mark.proves("A6", "X6")
async def test_an_erasure_removes_what_is_cached_of_its_own_session_alone(stores: Stores) -> None:
    server = await asked_for_both(stores)
    kept, gone = [(await stores.history.counts(key)).sid for key in (KEY, GONE)]
    before = server.caches.sessions()

    await stores.changes.erase(GONE, last_seq=100, now_ms=NOON)
    await ErasureFollower(server.store, server.caches).forget_erased()

    assert before == {kept, gone}
    assert server.caches.sessions() == {kept}
    assert (await server.window(KEY)).seconds is None


@pytest.mark.proves("A6")
async def test_without_an_answer_of_the_database_nothing_stays_cached(
    stores: Stores, tmp_path: Path
) -> None:
    server = await asked_for_both(stores)
    unreadable = SqlWindowStore(
        Database(f"sqlite+aiosqlite:///{tmp_path / 'none.db'}", writes=False)
    )

    await ErasureFollower(unreadable, server.caches).forget_erased()

    assert server.caches.sessions() == set()
