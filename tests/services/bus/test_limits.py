"""Behavior at limits: malformed events, a full or old stream, and too many requests."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.nats_server import NatsServer
from tests.running_system import Parts, command, eventually, rows, running_parts, wait_until
from turnfold.bus import connect, ensure_streams
from turnfold.bus.retention import prune_stream
from turnfold.client import BufferOptions, session_key, turn_event
from turnfold.client import connect as client_connect
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM
from turnfold.errors import StreamFull
from turnfold.ports.ingest import PAYLOAD_KEPT_BYTES
from turnfold.settings import Settings

Json = dict[str, Any]
KEY = session_key("support", "user-42")
LONG = "long " * PAYLOAD_KEPT_BYTES


def said(text: str) -> list[Json]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]


def count(parts: Parts, table: str) -> int:
    """How many rows a table has."""
    return int(rows(parts.database, f"SELECT count(*) FROM {table}")[0][0])


@asynccontextmanager
async def stream_of(server: NatsServer, **config: Any) -> AsyncGenerator[Client]:
    """A provisioner on a server whose stream of events has this besides."""
    client = await connect(Settings(nats_url=server.url), name="test")
    try:
        await ensure_streams(client, first_seq=1)
        jetstream = client.jetstream()
        await jetstream.update_stream(
            (await jetstream.stream_info(EVENTS_STREAM)).config.evolve(**config)
        )
        yield client
    finally:
        await client.close()


# --- dead letters


@pytest.mark.proves("I5", "O3")
async def test_dead_letters_are_stored_after_a_fix_and_told_apart_from_those_still_bad(
    tmp_path: Path,
) -> None:
    async with running_parts(tmp_path, environ={"TURNFOLD_MAX_EVENT_MESSAGES": "1"}) as parts:
        async with parts.running("worker"), parts.client() as client:
            await client.publish(turn_event(KEY, said("Where is it?"), event_id="short"))
            await client.publish(turn_event(KEY, said(LONG), event_id="long"))
            await parts.publish("turn.completed", b"\x00\x1b[2J no json")
            await wait_until(lambda: count(parts, "dead_letters") == 3, told=parts.words)
        parts.environ["TURNFOLD_MAX_EVENT_MESSAGES"] = "10"
        async with parts.running("worker"), parts.running("query"):
            shown = await command("deadletters", "show", "3", environ=parts.environ)
            done = await command("deadletters", "replay", "--all", "--json", environ=parts.environ)
            again = await command("deadletters", "replay", "--all", "--json", environ=parts.environ)
            named = await command(
                "deadletters", "replay", "1", "99", "--json", environ=parts.environ
            )
            listed = await command("deadletters", "list", "--json", environ=parts.environ)
        stored = [
            event_id
            for (event_id,) in rows(parts.database, "SELECT event_id FROM events ORDER BY event_id")
        ]

    assert "\\x00\\x1b[2J no json" in shown.out
    assert [(row["dead_letter_id"], row["outcome"]) for row in done.rows] == [
        (1, "stored"),
        (2, "stored"),
        (3, "dead"),
    ]
    assert done.status == 1
    # What is bad as before is a letter of its own now, and only that one is left to be replayed.
    assert [(row["dead_letter_id"], row["outcome"], row["became"]) for row in again.rows] == [
        (4, "dead", 5)
    ]
    assert [(row["dead_letter_id"], row["outcome"]) for row in named.rows] == [
        (1, "replayed_before"),
        (99, "unknown"),
    ]
    assert [row["replayed_at"] is not None for row in listed.rows] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert stored == ["long", "short"]


async def test_a_replay_says_which_letters_it_means(tmp_path: Path) -> None:
    told = await command(
        "deadletters", "replay", "1", "--all", environ={"TURNFOLD_DATA_DIR": str(tmp_path)}
    )

    assert told.status == 2


# --- a stream that is full


@pytest.mark.proves("X4")
async def test_a_full_stream_is_an_error_that_says_so_and_a_buffer_waits_for_room(
    server: NatsServer,
) -> None:
    async with (
        stream_of(server, max_msgs=2) as operator,
        client_connect(server.url, environ={}) as client,
    ):
        for number in range(2):
            await client.publish(turn_event(KEY, said("?"), event_id=f"e{number}"))
        with pytest.raises(StreamFull, match="maximum messages exceeded"):
            await client.publish(turn_event(KEY, said("?"), event_id="e2"))
        async with client_connect(
            server.url, environ={}, buffering=BufferOptions(wait_seconds=0.1)
        ) as patient:
            receipt = await patient.publish(turn_event(KEY, said("?"), event_id="e2"))
            await operator.jetstream().purge_stream(EVENTS_STREAM)
            await wait_until(lambda: not patient.unpublished)
        held = (await operator.jetstream().stream_info(EVENTS_STREAM)).state

    assert receipt.is_waiting
    assert (held.messages, held.last_seq) == (1, 3)


@pytest.mark.proves("X4")
async def test_over_http_a_full_stream_answers_unavailable(tmp_path: Path) -> None:
    async with running_parts(tmp_path, environ={"TURNFOLD_STREAM_MAX_BYTES": "2000"}) as parts:
        await parts.migrate()
        event = {"type": "turn.completed", "agent_id": KEY.agent_id, "session_id": KEY.session_id}
        async with parts.running("query"):
            status, answers = 200, []
            for number in range(20):
                told = event | {"event_id": f"e{number}", "messages": said("word " * 50)}
                status, answer = await http(
                    parts,
                    "POST",
                    f"/v1/agents/{KEY.agent_id}/sessions/{KEY.session_id}/events",
                    told,
                )
                answers.append(answer)
                if status != 200:
                    break

    assert status == 503
    assert answers[-1]["error"]["code"] == "unavailable"
    assert "maximum bytes exceeded" in answers[-1]["error"]["message"]


@pytest.mark.proves("X4")
async def test_migrating_keeps_the_size_an_operator_gave_the_stream_until_one_is_set(
    server: NatsServer,
) -> None:
    async with stream_of(server, max_bytes=50_000_000) as client:
        sizes = []
        for most in (None, 70_000_000, None):
            await ensure_streams(client, first_seq=1, max_bytes=most)
            sizes.append((await client.jetstream().stream_info(EVENTS_STREAM)).config.max_bytes)

    assert sizes == [50_000_000, 70_000_000, 70_000_000]


# --- a stream that is old


async def publish(client: Client, number: int) -> None:
    for at in range(number):
        await client.jetstream().publish("turn.completed.a.s", str(at).encode())


async def acknowledge(client: Client, number: int) -> None:
    events = await client.jetstream().pull_subscribe_bind(EVENTS_CONSUMER, EVENTS_STREAM)
    for message in await events.fetch(number, timeout=5):
        await message.ack_sync()


async def first_seq(client: Client) -> int:
    return int((await client.jetstream().stream_info(EVENTS_STREAM)).state.first_seq)


@pytest.mark.proves("L1")
async def test_nothing_is_purged_that_is_not_acknowledged_stored_and_old(
    server: NatsServer,
) -> None:
    async with stream_of(server) as client:
        await publish(client, 10)
        unacknowledged = await prune_stream(client, ingested_to=10, hours=0)
        await acknowledge(client, 6)
        too_young = await prune_stream(client, ingested_to=10, hours=1)
        half_stored = await prune_stream(client, ingested_to=4, hours=0)
        after_half = await first_seq(client)
        half_acknowledged = await prune_stream(client, ingested_to=10, hours=0)
        twice = await prune_stream(client, ingested_to=10, hours=0)
        at_last = await first_seq(client)

    assert (unacknowledged, too_young) == (0, 0)
    assert (half_stored, after_half) == (4, 5)
    assert (half_acknowledged, twice, at_last) == (2, 0, 7)


@pytest.mark.proves("L1")
async def test_only_what_is_older_goes_whatever_was_deleted_between(server: NatsServer) -> None:
    async with stream_of(server) as client:
        jetstream = client.jetstream()
        await jetstream.delete_stream(EVENTS_STREAM)
        await ensure_streams(client, first_seq=1)
        await publish(client, 30)
        await acknowledge(client, 30)
        for seq in (1, 2, 9, 10, 11, 29):
            await jetstream.delete_msg(EVENTS_STREAM, seq)
        went = await prune_stream(client, ingested_to=30, hours=0)
        left = await first_seq(client)

    assert went == 24
    assert left == 31


@pytest.mark.proves("W5")
async def test_a_worker_purges_by_itself_and_fresh_stays_true(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker"),
        parts.client() as client,
    ):
        for number in range(5):
            await client.publish(turn_event(KEY, said("?"), event_id=f"e{number}"))
        await wait_until(lambda: count(parts, "events") == 5)
        bus = await nats.connect(parts.server.url)

        async def acknowledged() -> bool:
            return not (
                await bus.jetstream().consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
            ).num_ack_pending

        await eventually(acknowledged)
        await prune_stream(bus, ingested_to=5, hours=0)
        receipt = await client.publish(turn_event(KEY, said("last"), event_id="last"))
        async with parts.running("query"):
            window = await client.session(*KEY).context(after=receipt.seq, wait_ms=5_000)
        await bus.close()

    assert window.fresh
    assert window.account.total == 12


# --- more requests than can be answered


async def http(parts: Parts, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
    """Status and JSON of one request."""
    host, _, port = parts.http_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + raw)
    answer = await reader.read()
    writer.close()
    status, _, told = answer.partition(b"\r\n\r\n")
    return int(status.split()[1]), json.loads(told)


@pytest.mark.proves("X4")
async def test_a_burst_is_answered_or_refused_at_once_and_afterwards_all_is_as_before(
    tmp_path: Path,
) -> None:
    async with (
        running_parts(
            tmp_path,
            environ={
                "TURNFOLD_MAX_REQUESTS": "50",
                "TURNFOLD_MAX_WAITING": "50",
                "TURNFOLD_AGENT_SHARE": "1",
            },
        ) as parts,
        parts.running("worker"),
        parts.running("query"),
        parts.client() as client,
    ):
        receipt = await client.publish(turn_event(KEY, said("Where is it?"), event_id="e"))
        await wait_until(lambda: count(parts, "events") == 1)
        bus = await nats.connect(parts.server.url)

        async def asked(subject: str, request: Json) -> str:
            told = json.loads(
                (
                    await bus.request(
                        f"{subject}.support.user-42", json.dumps(request).encode(), timeout=60
                    )
                ).data
            )
            return str(told["error"]["code"] if "error" in told else "answered")

        before = await asked("history.get", {})
        waiting = await all_places_held(asked, {"after": receipt.seq + 9, "wait_ms": 5_000})
        listed = await http(parts, "GET", "/v1/sessions")
        alive = await http(parts, "GET", "/healthz")
        burst = await asyncio.gather(*(asked("history.get", {}) for _ in range(5_000)))
        held = await asyncio.gather(*waiting)
        writes = await asyncio.gather(
            *(asked("session.policy", {"mode": "auto"}) for _ in range(500))
        )
        after = (
            await asked("history.get", {}),
            (await http(parts, "GET", "/v1/sessions"))[0],
            await asked("session.policy", {}),
        )
        await bus.close()

    assert before == "answered"
    assert Counter(held) == {"answered": 50, "unavailable": 10}
    assert set(burst) <= {"answered", "unavailable"}
    assert "unavailable" in burst
    # Who waits holds no working place.
    assert (listed[0], alive[0]) == (200, 200)
    assert {"answered", "unavailable"} == set(writes)
    assert after == ("answered", 200, "answered")


async def all_places_held(asked: Any, patient: Json) -> list[asyncio.Task[str]]:
    """Requests that hold every place for as long as they may wait; there are ten more of them than places, which are refused."""
    waiting = [asyncio.create_task(asked("context.get", patient)) for _ in range(60)]
    await wait_until(lambda: sum(one.done() for one in waiting) == 10)
    return waiting
