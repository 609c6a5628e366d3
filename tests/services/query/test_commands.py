"""Requests that write refuse what they do not understand, and do nothing then: over the bus and over HTTP."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Bus
from nats.js.errors import NotFoundError

from tests.running_system import UNFORGOTTEN, Parts, eventually, running_parts
from turnfold.bus.events import BusEvents
from turnfold.client import session_key, turn_event
from turnfold.contracts.subjects import AGENT_WRITES, EVENTS_STREAM, INSTALLATION_REQUESTS, WRITES
from turnfold.nats_client.connection import NatsClient

KEY = session_key("support", "user-42")
IDS = KEY._asdict()
VALID: Mapping[str, Mapping[str, Any]] = {
    "summary.promote": {"version": 1},
    "compaction.restore": {"compaction_id": "1"},
    "campaign.get": {"campaign_id": "1"},
    "deadletters.replay": {"all": True},
}
"""What these requests need; the others need nothing."""
SUBJECTS = {
    **{name: (f"{name}.support.user-42", IDS) for name in WRITES},
    **{name: (f"{name}.support", {"agent_id": KEY.agent_id}) for name in AGENT_WRITES},
    **{name: (name, {}) for name in INSTALLATION_REQUESTS},
}
"""Every request that a worker answers, with its subject and the ids that this names."""
REFUSED: tuple[dict[str, Any], ...] = (
    {"moed": "off"},
    {"actor": "key:A"},
    *({name: value} for name in IDS for value in ("another", None)),
)
TABLES = (
    "sessions",
    "agents",
    "messages",
    "compactions",
    "campaigns",
    "audit",
    "dead_letters",
    "erasures",
)


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """A worker and a query server with one session and one dead letter."""
    async with running_parts(tmp_path) as made, made.running("worker"), made.running("query"):
        async with made.client() as client:
            await client.publish(turn_event(KEY, [{"role": "user", "content": "Hello?"}]))
        bus = await nats.connect(made.server.url)
        await bus.jetstream().publish("turn.completed", b"{")
        await bus.close()
        await made.settled()

        async def is_indexed() -> bool:
            return not await made.rows("SELECT 1 FROM sessions WHERE unindexed_from IS NOT NULL")

        await eventually(is_indexed)
        yield made


async def stored(parts: Parts) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of all tables, when those of erased sessions are gone."""

    async def is_forgotten() -> bool:
        return not await parts.rows(UNFORGOTTEN)

    await eventually(is_forgotten, told=parts.words)
    return {table: await parts.rows(f"SELECT * FROM {table}") for table in TABLES}


async def answer(bus: Bus, subject: str, body: Any) -> Any:
    return json.loads((await bus.request(subject, json.dumps(body).encode(), timeout=10)).data)


@pytest.mark.proves("X7")
async def test_a_command_with_an_unknown_field_or_other_ids_is_refused_and_does_nothing(
    parts: Parts,
) -> None:
    before = await stored(parts)
    bus = await nats.connect(parts.server.url)
    for name, (subject, ids) in SUBJECTS.items():
        valid = dict(VALID.get(name, {}))
        for wrong in REFUSED:
            error = (await answer(bus, subject, valid | wrong)).get("error", {})
            assert error.get("code") == "bad_request", (name, wrong, error)
            assert next(iter(wrong)) in error["message"]
        assert await stored(parts) == before, name
        repeated = await answer(bus, subject, valid | ids)
        assert "of the subject" not in str(repeated), (name, repeated)
        before = await stored(parts)

    await bus.close()


@pytest.mark.proves("X7")
async def test_a_command_over_http_with_an_unknown_field_is_refused_and_does_nothing(
    parts: Parts,
) -> None:
    async with parts.http() as http:
        described = (await http.get("/openapi.json")).json()["paths"]
        commands = [
            (method.upper(), path.format(**IDS, version="1", compaction_id="1"))
            for path, methods in described.items()
            for method in methods
            if method != "get" and not path.endswith(("/events", "/events/known", "/tools/{name}"))
        ] + [("GET", "/v1/campaigns/1")]
        before = await stored(parts)
        assert len(commands) == len(SUBJECTS)

        for method, path in commands:
            for query, body in (("", b'{"moed": "off"}'), ("?prefix=user-", b"")):
                refused = await http.request(method, path + query, content=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (
                    400,
                    "bad_request",
                ), (method, path, query, refused.text)

        assert await stored(parts) == before


@pytest.mark.proves("A6", "I5")
async def test_a_letter_that_is_published_again_after_its_erasure_is_not_stored_and_leaves_the_stream(
    parts: Parts,
) -> None:
    said = {"event_id": "e-9", **IDS, "messages": [{"role": "user", "content": "secret"}]}
    bus = await nats.connect(parts.server.url)
    stream, client = bus.jetstream(), NatsClient()
    await client.connect(parts.server.url)
    bad = await stream.publish("turn.completed", json.dumps(said | {"messages": 1}).encode())
    await parts.settled()
    assert len(await parts.rows("SELECT 1 FROM dead_letters WHERE stream_seq = ?", bad.seq)) == 1
    await answer(bus, f"session.erase.{KEY.agent_id}.{KEY.session_id}", {})

    async def no_secret() -> str:
        raise AssertionError("nothing is signed")

    seq = await BusEvents(client, read_secret=no_secret).publish_again(
        "turn.completed", json.dumps(said).encode(), seq=bad.seq
    )
    await parts.settled()

    async def is_purged() -> bool:
        try:
            await stream.get_msg(EVENTS_STREAM, seq)
        except NotFoundError:
            return True
        return False

    await eventually(is_purged, told=parts.words)
    assert await parts.rows("SELECT 1 FROM messages WHERE body LIKE '%secret%'") == []
    await client.close()
    await bus.close()
