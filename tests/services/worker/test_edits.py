"""Messages that are taken back, through client, bus and HTTP."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Postgres, running_postgres
from tests.running_system import eventually, running_parts, serving_parts
from turnfold.bus.events import BusEvents
from turnfold.client import Client, Session, session_key
from turnfold.contracts.history_requests import PopRequest
from turnfold.core.history.audit_chain import LOCAL
from turnfold.errors import BadRequest, Unavailable
from turnfold.messages import SessionKey
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.query import pop as popping
from turnfold.operations.query.pop import pop
from turnfold.store.database.engine import Database
from turnfold.store.query.history import SqlHistoryStore
from turnfold.store.query.window import SqlWindowStore
from turnfold_worker.commands import Commands


async def numbered(client: Client, name: str, number: int) -> Session:
    session = client.session("ada", name)
    for place in range(number):
        await session.turn_completed(
            [{"role": "user", "content": f"item {place}"}], event_id=f"{name}-{place}"
        )
    return session


@pytest.mark.proves("G1")
async def test_a_client_takes_messages_back(tmp_path: Path) -> None:
    async with serving_parts(tmp_path) as (parts, client), parts.http("/v1/agents/ada") as http:
        session = await numbered(client, "s", 6)

        await session.retract("s-1#0", "s-2#0")
        window = await session.context(wait_ms=5_000)
        assert window.message_ids == ["s-0#0", "s-3#0", "s-4#0", "s-5#0"]

        popped = await session.pop(2)
        assert [stored.message_id for stored in popped] == ["s-4#0", "s-5#0"]
        assert (await session.context()).message_ids == ["s-0#0", "s-3#0"]

        await session.retract(after="s-0#0")
        assert (await session.context(wait_ms=5_000)).message_ids == ["s-0#0"]
        page = await session.history(include_retracted=True)
        assert [stored.state for stored in page.messages] == ["live"] + ["retracted"] * 5

        posted = await http.post("/sessions/s/pop", json={"count": 3})
        assert [entry["message_id"] for entry in posted.json()["messages"]] == ["s-0#0"]
        again = await http.post("/sessions/s/pop", json={})
        assert (again.json()["messages"], again.json()["seq"] > 0) == ([], True)
        refused = await http.post("/sessions/s/pop", json={"number": 3})
        unknown = await http.post("/sessions/nobody/pop", json={})
        assert (refused.status_code, unknown.status_code) == (400, 404)
        event = {"type": "turn.retracted", "event_id": "r", "agent_id": "ada", "session_id": "s"}
        accepted = await http.post("/sessions/s/events", json=event | {"all": True})
        both = await http.post("/sessions/s/events", json=event | {"all": True, "after": "s-0#0"})
        assert (accepted.status_code, both.status_code) == (200, 400)

        await session.turn_completed([{"role": "user", "content": "anew"}])
        await session.clear()
        assert (await session.context(wait_ms=5_000)).message_ids == []
        assert await client.session("ada", "nobody").pop() == []
        with pytest.raises(BadRequest):
            await session.retract()


@pytest.mark.proves("G1", "L2", "C77")
async def test_callers_of_two_workers_pop_each_message_once(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with (
        serving_parts(tmp_path, postgres=postgres) as (parts, client),
        parts.running("worker"),
    ):
        session = await numbered(client, "s", 30)

        popped = await asyncio.gather(*(session.pop(3) for _ in range(10)))

        taken = [stored.message_id for stored_ones in popped for stored in stored_ones]
        assert sorted(taken) == sorted(f"s-{place}#0" for place in range(30))
        assert (await session.context(wait_ms=5_000)).message_ids == []


class CutOffStream(BusEvents):
    """The stream; its database goes away as soon as a retraction is published."""

    def __init__(self, client: NatsClient, postgres: Postgres) -> None:
        async def no_secret() -> str:
            raise AssertionError("nothing is signed")

        super().__init__(client, read_secret=no_secret)
        self._postgres = postgres

    async def retract(
        self, key: SessionKey, event: bytes, *, event_id: str, newest_seq: int, actor: str
    ) -> int | None:
        seq = await super().retract(
            key, event, event_id=event_id, newest_seq=newest_seq, actor=actor
        )
        self._postgres.stop()
        return seq


@pytest.mark.proves("G1", "L1")
async def test_popped_messages_reach_their_caller_although_the_database_goes_away(
    tmp_path: Path,
) -> None:
    with running_postgres() as postgres:
        async with (
            running_parts(tmp_path, postgres=postgres) as parts,
            parts.running("worker"),
            parts.client() as client,
        ):
            await numbered(client, "s", 3)
            bus, database = NatsClient(), Database(parts.database_url, writes=False)
            await bus.connect(parts.server.url)

            try:
                popped = await pop(
                    session_key("ada", "s"),
                    PopRequest(count=2),
                    store=SqlHistoryStore(database),
                    stream=CutOffStream(bus, postgres),
                    ingested_to=SqlWindowStore(database).ingested_to,
                    most_bytes=1_000_000,
                    asked_at=time.monotonic(),
                )
            finally:
                postgres.start()

            async def retracted() -> list[str] | None:
                rows = await parts.rows(
                    "SELECT message_id FROM messages_view WHERE state = 'retracted'"
                    " ORDER BY position"
                )
                return [row["message_id"] for row in rows] or None

            # Whoever got an error instead would ask again, and lose these two.
            taken = [stored["message_id"] for stored in json.loads(popped)["messages"]]
            assert taken == await eventually(retracted, told=parts.words) == ["s-1#0", "s-2#0"]
            await bus.close()
            await database.close()


@pytest.mark.proves("G1", "L1")
async def test_nothing_is_popped_for_a_caller_that_no_longer_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is slow: one caller waits for it, and another one for the first."""
    monkeypatch.setattr(popping, "POP_SECONDS", 0.05)
    async with serving_parts(tmp_path) as (parts, client):
        session = await numbered(client, "s", 3)
        await session.context(wait_ms=5_000)
        bus, database = NatsClient(), Database(parts.database_url, writes=False)
        await bus.connect(parts.server.url)
        answers = asyncio.Event()

        async def ingested_to() -> int:
            await answers.wait()
            return await SqlWindowStore(database).ingested_to()

        names = "sessions versions campaigns letters installation now_ms last_seq on_change"
        others: Any = dict.fromkeys([*names.split(), "on_erased"])
        commands = Commands(
            histories=SqlHistoryStore(database),
            stream=BusEvents(bus, read_secret=others["now_ms"]),
            ingested_to=ingested_to,
            most_answer_bytes=lambda: 1_000_000,
            **others,
        )
        handle = commands.handlers()["session.pop"]
        asked = [
            asyncio.ensure_future(handle(session_key("ada", "s"), PopRequest(), LOCAL))
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)

        answers.set()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 2
        monkeypatch.undo()
        assert [stored.message_id for stored in await session.pop(3)] == ["s-0#0", "s-1#0", "s-2#0"]
        await bus.close()
        await database.close()


@pytest.mark.timeout(60)
@pytest.mark.proves("G1", "L1")
async def test_no_more_messages_are_popped_than_an_answer_carries(tmp_path: Path) -> None:
    """Beside its chat view, an element has twice the bytes in an answer that it has in the store."""
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker"),
        parts.client() as client,
    ):
        session = client.session("ada", "s")
        text = {"type": "text", "text": "文" * 150_000}
        for place in range(12):
            await session.turn_completed(
                [{"role": "user", "content": [text]}], shape="anthropic", event_id=f"s-{place}"
            )

        taken: list[str] = []
        while popped := await session.pop(100):
            taken[:0] = [stored.message_id for stored in popped]

        assert taken == [f"s-{place}#0" for place in range(12)]
