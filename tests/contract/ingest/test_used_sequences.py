"""Events under sequences that stand for others, as of a stream that is older than the database."""

from collections.abc import AsyncGenerator, Sequence

import pytest
import pytest_asyncio
from sqlalchemy import delete

from tests.store_fixtures import KEY, NOON, Stores, reported, turn, user
from turnfold.errors import StartError
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.ingest import DeadLetter, DecodedEvent
from turnfold.store.compact.withdrawal import withdraw
from turnfold.store.database import schema
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import bind_to_stream
from turnfold.store.ingest.ingest import SqlIngestStore

SISTER = SessionKey(KEY.agent_id, SessionId("s-2"))


class Stream:
    """A worker's store for the events of one stream."""

    def __init__(self, stores: Stores, database: Database) -> None:
        self._store = SqlIngestStore(database, withdraw, stream_created="now")
        self._installation = stores.installation

    async def brings(self, *arrivals: DecodedEvent, dead: Sequence[DeadLetter] = ()) -> None:
        await self._store.ingest(arrivals, dead, installation=self._installation)


@pytest_asyncio.fixture(loop_scope="session")
async def stream(stores: Stores, database: Database) -> AsyncGenerator[Stream]:
    await bind_to_stream(database, created="now", first_seq=1)
    yield Stream(stores, database)
    # The stores of this test belong to none.
    await database.write(lambda connection: connection.execute(delete(schema.stream)))


def letter(seq: int, payload: bytes = b"{") -> DeadLetter:
    return DeadLetter(seq, NOON, "turn.completed", "not_json", "", len(payload), payload, KEY)


@pytest.mark.proves("L1", "O2")
@pytest.mark.parametrize("key", [KEY, SISTER], ids=["same_session", "another_session"])
@pytest.mark.parametrize("is_known", [False, True], ids=["new", "published_again"])
async def test_no_event_takes_the_sequence_of_another(
    stores: Stores, stream: Stream, key: SessionKey, *, is_known: bool
) -> None:
    """L1: also one that was stored later, which its publisher has sent again."""
    first, again = [reported(seq, "m", event_id="again", tokens=9) for seq in (3, 2)]
    await stream.brings(turn(1, user("a")), reported(2, "m", key=key, event_id="b", tokens=9))
    if is_known:
        await stream.brings(first)

    with pytest.raises(StartError, match="sequence 2 stands for another event"):
        await stream.brings(again)


@pytest.mark.proves("I1", "L1", "O2")
async def test_the_sequences_of_one_stream_are_never_taken_for_those_of_another(
    stores: Stores, stream: Stream
) -> None:
    """Events, dead letters, and events that were dead letters before may all come again."""
    moved, copy = [turn(seq, user("moved"), event_id="moved") for seq in (4, 3)]
    events = [turn(1, user("a")), turn(2, user("b"), key=SISTER), moved]
    was_refused = turn(7, user("c"), key=SessionKey(AgentId("bob"), KEY.session_id))
    refused = [letter(5), letter(6, b"x" * 70_000)._replace(payload=b"x" * 65_536), letter(7)]

    for dead in (refused, refused[::-1]):
        await stream.brings(*events, dead=dead)
        await stream.brings(copy)
    await stream.brings(*events, copy, was_refused, dead=refused)
    await stores.changes.erase(SISTER, last_seq=7, now_ms=NOON)
    await stream.brings(*events, copy, was_refused, dead=refused)

    kept = await stores.history.dead_letters(after=0, limit=9)
    assert [one.stream_seq for one in kept] == [5, 6, 7]
