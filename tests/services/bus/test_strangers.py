"""Strangers that reply to everything, beside a whole system under load (O7, C69).

`STRANGERS_SECONDS=60` makes the load last a minute; by default it is short.
"""

import asyncio
import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

from tests.running_system import System, client_of, eventually, rows, running_system, streamed
from tests.strangers import listening, told_of
from turnfold.client import Client, session_key, turn_event
from turnfold.errors import Unavailable

SECONDS = float(os.environ.get("STRANGERS_SECONDS", "8"))
SESSIONS = 6
TURN = [
    {"role": role, "content": f"item {number:02d} of a long conversation"}
    for number in range(31)
    for role in ("user", "assistant")
]


@pytest.fixture
def answers_match_their_models() -> None:
    """Strangers answer, too."""


@dataclass
class Published:
    """What was published, with the sequence that each publisher was told, and which windows were asked for meanwhile."""

    seqs: dict[str, int] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    windows: int = 0
    unanswered: int = 0


@pytest.mark.proves("O7", "C69", "L1", "W5")
async def test_strangers_that_reply_to_everything_stop_nothing_and_are_never_believed(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path / "system") as system:
        before = {name: system.pid(name) for name in ("nats", "worker", "receiver", "query")}
        async with (
            listening([system.nats_url]) as heard,
            client_of(system, timeout_seconds=10.0) as client,
        ):
            published = await loaded(system, client)
            # All this happens while they listen: what they reply to JetStream would only disturb a look at the streams.
            await eventually(lambda: is_settled(system, published), seconds=60, told=system.words)
        found = await streamed(system.nats_url)
        stored = {json.loads(one.payload)["event_id"]: one.seq for one in found}
        assert published.seqs == stored, told_of(heard)
        assert len(found) == len(stored)
        assert await sessions_told_of(system) >= {f"s{number}" for number in range(SESSIONS)}

        assert {name: system.pid(name) for name in before} == before
        assert set(published.statuses) == {200}
        assert published.windows > 0
        assert all(
            heard[name]
            for name in ("turn.completed", "context.compressed", "context.get", "$JS.API")
        ), told_of(heard)
        print(  # noqa: T201
            f"{len(stored)} events, {published.windows} windows, {published.unanswered} unanswered, {heard.total()} replies"
        )


async def loaded(system: System, client: Client) -> Published:
    """Publish in every way and ask, for as long as the load lasts."""
    published = Published()
    end = asyncio.get_running_loop().time() + SECONDS
    async with (
        asyncio.TaskGroup() as group,
        httpx.AsyncClient(base_url=system.http_url, timeout=30) as http,
    ):
        load = [
            group.create_task(one_session(client, number, end, published))
            for number in range(SESSIONS)
        ]
        load += [
            group.create_task(in_batches(client, end, published)),
            group.create_task(over_http(http, end, published)),
        ]
        await asyncio.gather(*load)
    return published


async def one_session(client: Client, number: int, end: float, published: Published) -> None:
    session = client.session("crowd", f"s{number}")
    draw = random.Random(number)
    turn = 0
    while turn < 2 or asyncio.get_running_loop().time() < end:
        receipt = await session.turn_completed(TURN, event_id=f"s{number}-{turn}")
        published.seqs[receipt.event_id] = receipt.seq
        if draw.random() < 0.3:
            again = await session.turn_completed(TURN, event_id=f"s{number}-{turn}")
            assert (again.seq, again.is_duplicate) == (receipt.seq, True)
        try:
            window = await session.context(max_tokens=2_000, wait_ms=1_000)
        except Unavailable:
            published.unanswered += 1
        else:
            assert window.messages
            published.windows += 1
        turn += 1


async def in_batches(client: Client, end: float, published: Published) -> None:

    number = 0
    while number < 2 or asyncio.get_running_loop().time() < end:
        events = [
            turn_event(
                session_key("crowd", "batched"), TURN[:2], event_id=f"batch-{number}-{place}"
            )
            for place in range(10)
        ]
        for receipt in await client.publish_batch(events):
            published.seqs[receipt.event_id] = receipt.seq
        number += 1
        await asyncio.sleep(0.1)


async def over_http(http: httpx.AsyncClient, end: float, published: Published) -> None:
    number = 0
    while number < 2 or asyncio.get_running_loop().time() < end:
        event: dict[str, Any] = {
            "type": "turn.completed",
            "event_id": f"post-{number}",
            "agent_id": "crowd",
            "session_id": "posted",
        }
        for _ in range(2):
            answer = await http.post(
                "/v1/agents/crowd/sessions/posted/events", json=event | {"messages": TURN[:2]}
            )
            published.statuses.append(answer.status_code)
            if answer.status_code == 200:
                assert (
                    published.seqs.setdefault(f"post-{number}", answer.json()["seq"])
                    == answer.json()["seq"]
                )
        policy = await http.patch("/v1/agents/crowd/sessions/posted/policy", json={"mode": "auto"})
        published.statuses.append(policy.status_code)
        number += 1
        await asyncio.sleep(0.05)


async def is_settled(system: System, published: Published) -> bool:
    """Whether everything that was published is stored, and everything was told of."""
    [ingested] = rows(
        system.database, "SELECT max(last_seq) AS last FROM ingested_ranges WHERE first_seq = 1"
    )
    waiting = rows(system.database, "SELECT 1 FROM outbox")
    return bool(ingested["last"] == max(published.seqs.values()) and not waiting)


async def sessions_told_of(system: System) -> set[str]:
    """The sessions that have a notice of an eviction in the stream."""
    bus = await nats.connect(system.nats_url)
    subjects = (
        await bus.jetstream().stream_info(
            "TURNFOLD_NOTICES", subjects_filter="context.compressed.crowd.*"
        )
    ).state.subjects or {}
    await bus.close()
    return {subject.rpartition(".")[2] for subject in subjects}
