"""A query server that has read a session reads the same as one that never did."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from threading import Thread

import pytest

from tests.contract.compact.versions import compaction_of, restore, write
from tests.store_fixtures import (
    KEY,
    Stores,
    assistant,
    result,
    retracted,
    sql_stores,
    stores_on,
    tool,
    turn,
    turns,
    user,
)
from turnfold.ports.ingest import DecodedEvent
from turnfold.ports.query import WindowSnapshot
from turnfold.store.database.engine import Database

Change = Callable[[Stores], Awaitable[object]]


def stored(*arrivals: DecodedEvent) -> Change:
    """Ingest these events in one batch."""
    return lambda stores: stores.ingest(*arrivals)


async def restored(stores: Stores) -> None:
    """Bring back what the first compaction evicted."""
    await restore(stores, await compaction_of(stores, 1))


def steps(*seqs: int) -> Change:
    """Store steps of a turn, each a call with its result."""
    return stored(*[turn(seq, assistant(None, f"c{seq}"), tool(f"c{seq}")) for seq in seqs])


async def undone(stores: Stores) -> None:
    """Retract the steps that no summary covers, but not their request."""
    facts = await stores.facts()
    assert facts.covered_calls
    ids = [message.message_id for message in facts.messages if not message.is_request]
    await stores.ingest(retracted(40, *ids))


CHANGES: dict[str, tuple[Change, ...]] = {
    "turns": (stored(*turns(20, 1)), stored(*turns(21, 2))),
    "a call, then its result": (
        stored(turn(20, user("Look."), assistant(None, "new"))),
        stored(result(21, "new", "found")),
    ),
    "the result of a stored call": (stored(result(20, "open", "found")),),
    "the call of a stored result": (stored(turn(20, assistant(None, "early"))),),
    "a turn that comes late": (stored(turn(5, user("Before."))), stored(*turns(20, 1))),
    "an event again, earlier in the stream": (
        stored(turn(20, user("Go on."), event_id="same")),
        stored(turn(5, user("Go on."), event_id="same")),
    ),
    "a retraction, then the call of a stored result": (
        stored(retracted(20, "e2#1")),
        stored(turn(21, assistant(None, "early"))),
        stored(*turns(22, 1)),
    ),
    "a running turn whose newest steps are retracted": (
        stored(turn(20, user("Read all files."))),
        steps(*range(21, 32)),
        write,
        undone,
        steps(41),
        steps(42),
    ),
    "a request that comes late among covered calls": (
        stored(turn(20, user("Read all files."))),
        steps(*range(21, 25), *range(26, 32)),
        write,
        stored(turn(25, user("And then the others."))),
    ),
    "an eviction, its summary, and a restoration": (
        stored(*turns(20, 6)),
        stored(*turns(26, 1)),
        write,
        stored(*turns(27, 1)),
        restored,
        stored(*turns(28, 1)),
    ),
}


@pytest.mark.proves("W5", "L2")
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
async def test_a_cached_session_reads_like_a_new_one(
    stores: Stores, database: Database, changes: tuple[Change, ...]
) -> None:
    await stores.ingest(
        *turns(1, 2), turn(10, assistant(None, "open")), result(12, "early", "too soon")
    )
    for change in (stored(), *changes):
        await change(stores)

        cached = await stores.facts()
        assert cached == await stores_on(database).facts()


@pytest.mark.proves("W5", "L2")
async def test_a_window_is_of_one_state_though_one_of_its_messages_is_retracted_meanwhile(
    stores: Stores, store_url: str
) -> None:
    await stores.ingest(*turns(1, 2))
    await stores.facts()
    await stores.ingest(*turns(20, 1))
    chosen: list[WindowSnapshot] = []

    async def retract() -> None:
        async with sql_stores(store_url) as others:
            await others.ingest(retracted(30, "e1#0"))

    def choose(facts: WindowSnapshot) -> tuple[WindowSnapshot, Sequence[int]]:
        if not chosen:
            # In a thread: this function holds the event loop while the window is read.
            (elsewhere := Thread(target=asyncio.run, args=(retract(),))).start()
            elsewhere.join()
        chosen.append(facts)
        return facts, [message.position for message in facts.messages]

    facts, texts = await stores.windows.window(KEY, on_session=lambda _: None, on_messages=choose)

    assert texts.keys() == {message.position for message in facts.messages}


@pytest.mark.proves("W5", "L5")
async def test_covered_calls_stay_known_though_a_second_reading_answers_without_messages(
    stores: Stores, database: Database
) -> None:
    await stores.ingest(turn(20, user("Read all files.")))
    await steps(*range(21, 25), *range(26, 32))(stores)
    await write(stores)
    known = (await stores.facts()).covered_calls
    await stores.ingest(turn(25, user("And then the others.")))
    readings = count()

    # More must be read than is read at once, and then the answer is found in a cache.
    await stores.windows.window(
        KEY,
        on_session=lambda facts: facts if next(readings) else None,
        on_messages=lambda facts: (facts, ()),
    )
    await stores.ingest(retracted(40, "e25#0"))

    assert known == (await stores.facts()).covered_calls != ()
    assert await stores.facts() == await stores_on(database).facts()
