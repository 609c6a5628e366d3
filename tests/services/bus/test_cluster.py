"""Three NATS servers with three replicas: any one may be killed, including the stream leader."""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import nats
import nats.errors
import pytest

from tests.nats_server import NatsServer, nats_cluster
from tests.running_system import Parts, eventually
from turnfold.client import Client, connect, session_key, turn_event
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import Unavailable
from turnfold.messages import Json

KEY = session_key("support", "user-42")


async def turn(client: Client, number: int) -> int:
    """Publish a turn until it is acknowledged; its sequence."""
    said: list[Json] = [
        {"role": "user", "content": f"Question {number}?"},
        {"role": "assistant", "content": f"Answer {number}."},
    ]
    event = turn_event(KEY, said, event_id=f"e{number}")
    while True:
        with contextlib.suppress(Unavailable):
            return (await client.publish(event)).seq


async def leader(servers: Sequence[NatsServer]) -> tuple[str, int]:
    """The server that leads the stream of events, by name, and how many of its replicas are current."""
    for server in servers:
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            client = await nats.connect(server.url, allow_reconnect=False, connect_timeout=1)
            try:
                cluster = (await client.jetstream(timeout=1).stream_info(EVENTS_STREAM)).cluster
            finally:
                await client.close()
            if cluster and cluster.leader:
                return cluster.leader, sum(bool(one.current) for one in cluster.replicas or [])
    return "", 0


@pytest.mark.proves("L1", "L2", "L3", "O2")
async def test_each_server_of_a_cluster_may_die_and_come_back_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with nats_cluster(tmp_path / "nats") as servers:
        urls = ",".join(server.url for server in servers)
        parts = Parts(
            tmp_path,
            servers[0],
            {
                "TURNFOLD_NATS_URL": urls,
                "TURNFOLD_NATS_REPLICAS": "3",
                "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20",
            },
        )
        await eventually(lambda: migrated(parts))
        published: list[int] = []
        async with (
            parts.running("worker") as worker,
            parts.running("query") as query,
            connect(urls, timeout_seconds=2, attempts=100, environ={}) as client,
        ):
            for _ in range(2):
                await eventually(partial(is_whole, servers))
                lost = servers[int((await leader(servers))[0].rpartition("-")[2])]
                published += [await turn(client, len(published) + one) for one in range(10)]
                lost.kill()
                published += [await turn(client, len(published) + one) for one in range(10)]

                await eventually(partial(sees, client, published), told=parts.words)
                lost.start()
            assert (worker.is_alive, query.is_alive) == (True, True)
            assert published == sorted(set(published))
            seen = await parts.seen()
            assert sorted(seen.sessions[KEY].events.values()) == published


async def sees(client: Client, published: Sequence[int]) -> bool:
    """Whether a window holds all that was published."""
    with contextlib.suppress(Unavailable):
        window = await client.session(*KEY).context(
            max_tokens=50_000, after=published[-1], wait_ms=2_000
        )
        return window.fresh and window.account.total == 2 * len(published)
    return False


async def is_whole(servers: Sequence[NatsServer]) -> bool:
    """Whether every server has all of the stream."""
    return (await leader(servers))[1] == len(servers) - 1


async def migrated(parts: Parts) -> bool:
    """Whether `turnfold migrate` was done; a cluster that has just begun may have no leader yet."""
    try:
        await parts.migrate()
    except AssertionError:
        await asyncio.sleep(0.2)
        return False
    return True
