"""Histories read from their ends, and answers that wait for events, on a real bus and a real file."""

import asyncio
import json
import threading
from pathlib import Path

import nats
import pytest

from tests.nats_server import subscriptions_known
from tests.running_system import Parts, running_parts, serving_parts
from turnfold.client import Session, StoredMessage, turn_event
from turnfold.client.events import session_key
from turnfold.nats_client.connection import NatsClient
from turnfold_query.newest import NewestLookup

PATH = "/v1/agents/support/sessions/user-42"


async def said(session: Session, first: int, last: int) -> int:
    """Publish one message for each number; the freshness token of the last."""
    receipts = [
        await session.turn_completed([{"role": "user", "content": f"Note {number}."}])
        for number in range(first, last)
    ]
    return receipts[-1].seq


def numbers(messages: list[StoredMessage] | tuple[StoredMessage, ...]) -> list[int]:
    """The numbers of these messages."""
    return [int(stored.message["content"].split()[1].rstrip(".")) for stored in messages]


async def http_numbers(parts: Parts, **query: int) -> list[int]:
    """The same over HTTP."""
    async with parts.http() as http:
        page = (await http.get(f"{PATH}/history", params=query)).json()
    return [int(entry["message"]["content"].split()[1].rstrip(".")) for entry in page["messages"]]


@pytest.mark.proves("G1", "A5")
async def test_a_history_is_read_from_its_end_page_by_page(tmp_path: Path) -> None:
    """G1: the tail of a session, without its beginning."""
    async with serving_parts(tmp_path) as (parts, client):
        session = client.session("support", "user-42")
        assert await session.tail() == []
        await said(session, 0, 12)

        last = await session.tail(5, wait_ms=5_000)
        before = await session.history(before_position=last[0].position, limit=4)
        first = await session.history(before_position=before.previous_position, limit=4)
        between = await session.history(
            after_position=first.messages[0].position, before_position=last[0].position, limit=2
        )
        over_http = await http_numbers(parts, newest=2)

    assert numbers(last) == [7, 8, 9, 10, 11]
    assert numbers(before.messages) == [3, 4, 5, 6]
    assert numbers(first.messages) == [0, 1, 2]
    assert before.next_position is first.next_position is first.previous_position is None
    assert numbers(between.messages) == [1, 2]
    assert between.next_position == between.messages[-1].position
    assert over_http == [10, 11]


@pytest.mark.proves("G1", "W5")
async def test_histories_and_searches_wait_for_an_event_and_say_if_it_did_not_come(
    tmp_path: Path,
) -> None:
    """G1: `after` with `wait_ms`, as in windows."""
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.client() as client,
    ):
        session = client.session("support", "user-42")
        async with parts.running("worker"):
            await said(session, 0, 2)
            assert len(await session.tail(wait_ms=5_000)) == 2
        seq = await said(session, 2, 3)

        stale = await session.history(newest=1, after=seq, wait_ms=100)
        stale_hits = await session.search("Note", after=seq, wait_ms=100)
        waiting = asyncio.create_task(session.history(newest=1, after=seq, wait_ms=5_000))
        searching = asyncio.create_task(
            session.ask(
                "history.search", {"q": "Note", "after": seq, "wait_ms": 5_000}, patience_seconds=5
            )
        )
        finding = asyncio.create_task(session.search("Note", after="latest", wait_ms=5_000))
        async with parts.running("worker"):
            fresh, hits, latest = await waiting, await searching, await finding

    assert (stale.fresh, numbers(stale.messages)) == (False, [1])
    assert (fresh.fresh, numbers(fresh.messages)) == (True, [2])
    assert (stale_hits.fresh, sorted(numbers(stale_hits))) == (False, [0, 1])
    assert (hits["fresh"], len(hits["hits"])) == (True, 3)
    assert (latest.fresh, latest.is_partial, len(latest)) == (True, False, 3)


@pytest.mark.proves("F1")
async def test_the_hits_of_a_search_say_if_there_may_be_more(tmp_path: Path) -> None:
    async with serving_parts(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        for number in range(8):
            text = f"Note {number}. " + "x" * 300_000
            await session.turn_completed([{"role": "user", "content": text}])

        hits = await session.search("Note", after="latest", wait_ms=5_000)

    assert (hits.fresh, hits.is_partial) == (True, True)
    assert 0 < len(hits) < 8


@pytest.mark.proves("G1", "W5")
async def test_latest_waits_for_what_others_published_also_on_a_subject_without_ids(
    tmp_path: Path,
) -> None:
    """G1: a client that never saw a sequence reads what another one has just written."""
    async with (
        serving_parts(tmp_path) as (parts, client),
        await nats.connect(parts.server.url) as bus,
    ):
        session = client.session("support", "user-42")
        assert (await session.context(after="latest")).fresh
        seen = []
        for number in range(10):
            event = turn_event(session.key, [{"role": "user", "content": f"Note {number}."}])
            subject = event.kind if number % 2 else event.subject
            await bus.jetstream().publish(subject, event.payload)
            window = await session.context(after="latest", wait_ms=5_000)
            seen.append((window.fresh, len(window.messages)))
        page = await session.history(newest=1, after="latest", wait_ms=5_000)
        async with parts.http() as http:
            hits = await http.get(f"{PATH}/search", params={"q": "Note", "after": "latest"})

    assert seen == [(True, number + 1) for number in range(10)]
    assert numbers(page.messages) == [9]
    assert len(hits.json()["hits"]) == 10


@pytest.mark.proves("G1", "L4")
async def test_latest_takes_one_lookup_without_an_event_and_sends_it_before_it_reads(
    tmp_path: Path,
) -> None:
    """L4: the lookup of an event of 4 MiB, or one after the read, would delay the answer."""
    ready, arrived = threading.Event(), threading.Event()
    requests: list[bytes] = []

    async def watch(url: str) -> None:
        bus = await nats.connect(url)
        lookups = await bus.subscribe("$JS.API.STREAM.MSG.GET.*")
        await subscriptions_known(bus)
        ready.set()
        requests.append((await lookups.next_msg(timeout=60)).data)
        arrived.set()
        await bus.close()

    async def read() -> bool:
        # As a read of SQLite does, this holds the event loop.
        return arrived.wait(10)

    async def nothing_ingested() -> int:
        return 0

    async with running_parts(tmp_path) as parts:
        watching = threading.Thread(target=asyncio.run, args=(watch(parts.server.url),))
        watching.start()
        await asyncio.to_thread(ready.wait)
        client = NatsClient()
        await client.connect(parts.server.url)
        lookup = NewestLookup(client, nothing_ingested)
        found = await lookup.beside(session_key("support", "user-42"), read)
        await client.close()
        await asyncio.to_thread(watching.join)

    assert found == (0, True)
    assert json.loads(requests[0]) == {"seq": 1, "next_by_subj": ">"}


@pytest.mark.proves("G1", "L4")
async def test_latest_is_unavailable_while_the_stream_does_not_reply(tmp_path: Path) -> None:
    """G1: without the stream nobody can tell what the newest event is."""
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.http(timeout=20) as http,
    ):
        parts.server.kill()

        refused = await http.get(f"{PATH}/context", params={"after": "latest"})
        plain = await http.get(f"{PATH}/context")

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert plain.status_code == 200
