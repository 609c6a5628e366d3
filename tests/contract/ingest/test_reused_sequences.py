"""New events under the sequences of erased ones, in a stream restored from an older backup."""

import json

import pytest
import pytest_asyncio

from tests.contract.query.test_search import ids, indexed
from tests.store_fixtures import KEY, NOON, Stores, turn, user
from turnfold.messages import AgentId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.operations.ingest.ingest import ingest
from turnfold.store.ingest.tombstones import CLOCKS_MS

LATER = NOON + 10 + CLOCKS_MS + 1
SAID = {"event_id": "e-1", **KEY._asdict(), "messages": [{"role": "user", "content": "new"}]}
GOOD, BAD = json.dumps(SAID).encode(), json.dumps(SAID | {"messages": "new"}).encode()


@pytest_asyncio.fixture(loop_scope="session")
async def erased(stores: Stores) -> Stores:
    """A store whose session was erased with all events up to 100, a dead letter at 30 among them."""
    await stores.ingest(turn(1, user("q")))
    await store(stores, Delivery("turn.completed", BAD, 30, NOON))
    await stores.intake.mark_ingested([(1, 100)])
    await stores.changes.erase(KEY, last_seq=100, now_ms=NOON + 10)
    return stores


async def store(stores: Stores, *deliveries: Delivery) -> None:
    batch = decode_batch(deliveries, count=len)
    await ingest(batch, store=stores.intake, installation=stores.installation)


async def places(stores: Stores) -> list[int]:
    found = await stores.history.page(KEY, after_position=0, limit=9)
    return [one.position // 1024 for one in found]


@pytest.mark.proves("A6", "F1")
async def test_a_new_message_is_found_although_the_words_of_an_erased_one_stand_in_its_place(
    stores: Stores,
) -> None:
    bob, eve = (SessionKey(AgentId(name), KEY.session_id) for name in ("bob", "eve"))
    await stores.ingest(turn(1, user("zebra")), turn(2, user("yak")))
    await indexed(stores)
    await stores.changes.erase(KEY, last_seq=2, now_ms=NOON + 10)
    await stores.delete_rows()

    await stores.ingest(turn(1, user("giraffe"), key=bob))
    await indexed(stores)
    # Erased before it is indexed, it leaves nothing to remove besides.
    await stores.ingest(turn(2, user("okapi"), key=eve))
    await stores.changes.erase(eve, last_seq=0, now_ms=NOON + 20)
    await stores.delete_rows()

    for _ in range(2):
        assert await ids(stores, "giraffe", key=bob) == ["e1#0"]
        await stores.erasures.tidy()


@pytest.mark.proves("L1", "I5")
@pytest.mark.parametrize("seq", [70, 150])
async def test_the_replay_of_a_letter_that_came_after_the_erasure_is_stored(
    erased: Stores, seq: int
) -> None:
    await store(erased, Delivery("turn.completed", BAD, 60, LATER))

    await store(erased, Delivery("turn.completed", GOOD, seq, LATER + 1, replay_of=60))

    assert await places(erased) == [seq]


@pytest.mark.proves("A6", "I5")
@pytest.mark.parametrize("seq", [70, 150])
async def test_the_replay_of_an_erased_letter_is_not_stored_under_whatever_sequence(
    erased: Stores, seq: int
) -> None:
    await store(erased, Delivery("turn.completed", GOOD, seq, LATER, replay_of=30))
    await erased.ingest(turn(200, user("q"), at_ms=LATER))

    assert await places(erased) == [200]
