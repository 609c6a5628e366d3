"""The newest messages are retracted for one caller, and for the next one if another was faster."""

import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.store_fixtures import KEY, Stores, new_sqlite, retracted, sql_stores, turns
from turnfold.contracts.history_requests import PopRequest
from turnfold.errors import TooLarge
from turnfold.messages import SessionKey
from turnfold.operations.query.pop import pop
from turnfold.ports.admin import NewestEvents


class Stream:
    """A stream that holds one session and stores what it accepts; `rivals` are faster calls."""

    def __init__(self, stores: Stores, newest_seq: int, rivals: int = 0) -> None:
        self._stores = stores
        self._rivals = rivals
        self.last_seq = newest_seq
        self.retraction_seq = 0
        self.event_ids: list[str] = []

    async def newest(self, key: SessionKey) -> NewestEvents:
        return (
            NewestEvents(self.last_seq, self.retraction_seq) if key == KEY else NewestEvents(0, 0)
        )

    async def retract(
        self, key: SessionKey, event: bytes, *, event_id: str, newest_seq: int, actor: str
    ) -> int | None:
        assert actor == "local"
        if self._rivals:
            self._rivals -= 1
            page = await self._stores.history.page(key, limit=1, newest_first=True)
            await self._accept(key, [page[0].message_id], f"rival-{self._rivals}")
        if newest_seq != self.retraction_seq:
            return None
        retraction = json.loads(event)
        assert retraction["event_id"] == event_id
        self.event_ids.append(event_id)
        return await self._accept(key, retraction["message_ids"], event_id)

    async def ingested_to(self) -> int:
        return self.last_seq

    async def _accept(self, key: SessionKey, ids: list[str], event_id: str) -> int:
        self.last_seq += 1
        self.retraction_seq = self.last_seq
        await self._stores.ingest(retracted(self.last_seq, *ids, event_id=event_id, key=key))
        return self.last_seq


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncGenerator[Stores]:
    """Open a database that holds two turns of a session."""
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        await stores.ingest(*turns(1, 2))
        yield stores


async def popped(
    stores: Stores,
    stream: Stream,
    count: int = 1,
    key: SessionKey = KEY,
    most_bytes: int = 1_000_000,
) -> dict[str, Any]:
    answer = await pop(
        key,
        PopRequest(count=count),
        store=stores.history,
        stream=stream,
        ingested_to=stream.ingested_to,
        most_bytes=most_bytes,
        asked_at=time.monotonic(),
    )
    found: dict[str, Any] = json.loads(answer)
    return found


def ids(answer: dict[str, Any]) -> list[str]:
    return [message["message_id"] for message in answer["messages"]]


async def left(stores: Stores) -> list[str]:
    return [one.message_id for one in await stores.history.page(KEY, limit=9)]


@pytest.mark.proves("G1")
async def test_the_newest_messages_are_answered_in_order_and_retracted(stores: Stores) -> None:
    answer = await popped(stores, Stream(stores, 2), count=3)

    assert ids(answer) == ["e1#1", "e2#0", "e2#1"]
    assert {message["state"] for message in answer["messages"]} == {"retracted"}
    assert answer["seq"] == 3
    assert await left(stores) == ["e1#0"]


@pytest.mark.proves("G1")
async def test_a_caller_that_another_one_overtakes_gets_the_messages_before(
    stores: Stores,
) -> None:
    answer = await popped(stores, Stream(stores, 2, rivals=2))

    assert (ids(answer), answer["seq"]) == (["e1#1"], 5)
    assert await left(stores) == ["e1#0"]


@pytest.mark.proves("G1")
async def test_of_a_session_without_messages_nothing_is_retracted(stores: Stores) -> None:
    stream = Stream(stores, 2)
    await popped(stores, stream, count=4)

    answer = await popped(stores, stream)

    assert answer == {"messages": [], "seq": 3}
    assert (stream.last_seq, await left(stores)) == (3, [])


@pytest.mark.proves("G1")
async def test_each_retraction_is_an_event_of_its_own(stores: Stores) -> None:
    stream = Stream(stores, 2)

    for _ in range(3):
        await popped(stores, stream)

    assert all(event_id.startswith("pop-") for event_id in stream.event_ids)
    assert len(set(stream.event_ids)) == 3


@pytest.mark.proves("G1", "L1")
async def test_a_message_that_no_answer_carries_is_not_retracted(stores: Stores) -> None:
    stream = Stream(stores, 2)

    with pytest.raises(TooLarge):
        await popped(stores, stream, count=3, most_bytes=60)

    assert stream.event_ids == []
    assert len(await left(stores)) == 4
