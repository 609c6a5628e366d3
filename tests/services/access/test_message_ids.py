"""The ids by which the broker finds duplicates: no other agent can read, guess or use them."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest

import turnfold
from tests.nats_server import NatsServer
from tests.services.access.guarded import USER, Guarded, Json, Person, person


@asynccontextmanager
async def publishers(
    guarded: Guarded, server: NatsServer
) -> AsyncGenerator[tuple[Person, turnfold.Client, httpx.AsyncClient]]:
    """The other agent on the bus, and the agent `support` on the bus and over HTTP."""
    query = guarded.parts(server, "query")
    async with (
        query.running("query"),
        person(guarded, server, "other") as other,
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
        query.http() as http,
    ):
        yield other, client, http


def posted_event(session_id: str, event_id: str) -> Json:
    """The body with which an event is published over HTTP."""
    return {
        "type": "turn.completed",
        "event_id": event_id,
        "agent_id": "support",
        "session_id": session_id,
        "messages": [USER],
    }


async def publish_as(other: Person, headers: dict[str, str]) -> str:
    """Publish an event of the other agent, and return what the stream replies."""
    reply = await other.bus.request("turn.completed.other.s", b"{}", headers=headers, timeout=10)
    return reply.data.decode()


async def newest_id(other: Person) -> str:
    """The id of the newest event of anybody, as an error of the server quotes it."""
    told = await publish_as(other, {"Nats-Expected-Last-Msg-Id": "x"})
    quoted = re.search(r'wrong last msg ID: ([^"]+)"', told)
    assert quoted is not None, told
    return quoted[1]


@pytest.mark.proves("X1", "L12")
async def test_a_guessed_id_suppresses_nothing(guarded: Guarded, server: NatsServer) -> None:
    async with publishers(guarded, server) as (other, client, http):
        for guess in ("support.guessed", "support.posted"):
            await publish_as(other, {"Nats-Msg-Id": guess})

        receipt = await client.session("support", "user-44").turn_completed(
            [USER], event_id="guessed"
        )
        again = await client.session("support", "user-44").turn_completed(
            [USER], event_id="guessed"
        )
        posted = await http.post(
            "/v1/agents/support/sessions/user-44/events", json=posted_event("user-44", "posted")
        )

    assert not receipt.is_duplicate
    assert (again.seq, again.is_duplicate) == (receipt.seq, True)
    assert posted.json()["seq"] == receipt.seq + 1


@pytest.mark.proves("X1", "L12")
async def test_an_id_that_an_error_quotes_names_nothing_and_predicts_no_other(
    guarded: Guarded, server: NatsServer
) -> None:
    """L12: it named agent and event, and held a secret that swallowed the client's next events."""
    async with publishers(guarded, server) as (other, client, http):
        session, path = client.session("support", "user-45"), "/v1/agents/support/sessions/user-45"
        await session.turn_completed([USER], event_id="turn-1")
        quoted = [await newest_id(other)]
        await http.post(f"{path}/events", json=posted_event("user-45", "turn-2"))
        quoted.append(await newest_id(other))
        for message_id in quoted:
            for following in ("turn-3", "turn-4"):
                predicted = re.sub(r"turn-\d", following, message_id)
                await publish_as(other, {"Nats-Msg-Id": predicted})
        receipt = await session.turn_completed([USER], event_id="turn-3")
        posted = await http.post(f"{path}/events", json=posted_event("user-45", "turn-4"))

    assert not receipt.is_duplicate
    assert posted.json()["seq"] == receipt.seq + 1
    assert all(re.fullmatch("[0-9a-f]{64}", message_id) for message_id in quoted)
