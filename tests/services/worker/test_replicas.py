"""A streaming replica of PostgreSQL: query servers read it, and it takes over from a lost primary."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.postgres import Postgres, running_postgres
from tests.running_system import Parts, running_parts, serving_parts
from tests.services.worker.test_catch_up import ENVIRON, KEYS, VIEW, Life


def on(server: Postgres, parts: Parts) -> dict[str, str]:
    """The environment of a service that uses the same database on another server."""
    database = urlsplit(parts.database_url).path.removeprefix("/")
    return {"TURNFOLD_DATABASE_URL": server.url(database)}


async def messages_on(server: Postgres, parts: Parts) -> set[tuple[object, ...]]:
    """The messages of all sessions, as a server has them."""
    copied = Parts(parts.database.parent, parts.server, on(server, parts))
    return {tuple(row.values()) for row in await copied.rows(VIEW)}


def ids_of(messages: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """The agents, sessions and ids of messages."""
    return {row[:3] for row in messages}


@pytest.mark.proves("W5")
async def test_a_window_of_a_replica_waits_or_says_that_it_is_not_fresh(tmp_path: Path) -> None:
    """The replica is behind when the worker has told everybody that the event is stored."""
    key = KEYS[0]
    with running_postgres() as primary, primary.standby() as replica:
        async with (
            running_parts(tmp_path, environ=ENVIRON, postgres=primary) as parts,
            parts.client() as client,
            parts.running("worker"),
            parts.running("query", environ=on(replica, parts)),
        ):
            session = client.session(*key)
            await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
            old = await session.context(after="latest", wait_ms=10_000)
            await replica.pause()
            receipt = await session.turn_completed([{"role": "user", "content": "And 7342?"}])
            await parts.caught_up()

            stale = await session.context(after=receipt.seq, wait_ms=0)
            waiting = asyncio.create_task(session.context(after=receipt.seq, wait_ms=10_000))
            await asyncio.sleep(0.3)
            still_waits = not waiting.done()
            await replica.resume()
            fresh = await waiting

    assert old.fresh
    assert not stale.fresh
    assert still_waits
    assert stale.messages == old.messages
    assert fresh.fresh
    assert [message["content"] for message in fresh.messages] == [
        "Where is order 7341?",
        "And 7342?",
    ]


@pytest.mark.proves("L1", "L2", "L3")
async def test_a_replica_that_lacks_commits_takes_over_and_gets_them_from_the_stream(
    tmp_path: Path,
) -> None:
    """The services keep running; the address of the database leads to the replica afterwards."""
    with running_postgres() as primary, primary.standby() as replica:
        async with (
            running_parts(tmp_path, environ=ENVIRON, postgres=primary) as parts,
            parts.client() as client,
            parts.running("worker"),
        ):
            life = Life(client, parts.server.url)
            await life.goes_on(turns=10)
            await parts.caught_up()
            await replica.cut_off()
            await life.goes_on(turns=20)
            await parts.caught_up()
            before = await messages_on(primary, parts)
            replayed = await messages_on(replica, parts)

            primary.crash()
            await life.goes_on(turns=5)
            await replica.take_over(primary.port)
            await life.goes_on(turns=5)
            await parts.caught_up()
            await life.sees_everything(parts)
            after = await messages_on(primary, parts)

    # Places are compared only of the primary: the replica may have stopped between the commit of a
    # copy that overtook its original and the one that gave the original's place to its messages.
    assert ids_of(replayed) < ids_of(before)
    assert before < after


@pytest.mark.proves("W5")
async def test_a_query_server_forgets_windows_that_the_replica_never_had(tmp_path: Path) -> None:
    """A replica may store in one commit what took two, and give it the number of the first."""
    with running_postgres() as primary, primary.standby() as replica:
        async with serving_parts(tmp_path, environ=ENVIRON, postgres=primary) as (parts, client):
            session = client.session(*KEYS[0])
            await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
            await parts.caught_up()
            await replica.cut_off()
            await session.turn_completed([{"role": "user", "content": "And 7342?"}])
            await session.context(after="latest", wait_ms=10_000)
            last = await session.turn_completed([{"role": "user", "content": "And 7343?"}])
            await parts.caught_up()

            primary.crash()
            await replica.take_over(primary.port)
            await parts.caught_up()
            window = await session.context(after=last.seq, wait_ms=10_000)

    assert window.fresh
    assert window.messages[-1]["content"] == "And 7343?"
