"""Removal of erased events from a real server's files: what is overwritten, and what is forgotten."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from tests.nats_server import NatsServer
from turnfold.bus import connect, ensure_streams
from turnfold.bus.removal import BLOCK_BYTES, LOOKED_AT, OVERWRITTEN_AT_ONCE, EventRemoval
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.process.clock import now_ms
from turnfold.settings import Settings

ERASED, KEPT = b"zanzibar-7f3a", b"somebody-else"
LARGE = BLOCK_BYTES // 16


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    connected = await connect(Settings(nats_url=server.url), name="test")
    await ensure_streams(connected, first_seq=1)
    yield connected
    await connected.close()


async def publish(client: Client, mark: bytes, number: int, size: int = 0) -> list[int]:
    """Publish `number` events of this text; return their sequences."""
    body = mark + b"." * size
    stream = client.jetstream(timeout=30)
    return [(await stream.publish("turn.completed.a.s", body)).seq for _ in range(number)]


def told(directory: Path, mark: bytes) -> int:
    """How often a text stands in the files of the server."""
    return sum(path.read_bytes().count(mark) for path in directory.rglob("*") if path.is_file())


def largest_block(directory: Path) -> int:
    return max(path.stat().st_size for path in directory.rglob("*.blk"))


async def held(client: Client) -> int:
    return int((await client.jetstream().stream_info(EVENTS_STREAM)).state.messages)


async def remove_all(
    client: Client, sequences: list[int], until_ms: int | None = None
) -> tuple[int, int]:
    """Remove all as a worker does; how many were overwritten, and how many forgotten."""
    asked: list[bool] = []

    async def note(message: object) -> None:
        asked.append(json.loads(message.data)["no_erase"])  # type: ignore[attr-defined]

    spying = await client.subscribe(f"$JS.API.STREAM.MSG.DELETE.{EVENTS_STREAM}", cb=note)
    removal, left = EventRemoval(client), sequences
    while left:
        removed = await removal.remove(dict.fromkeys(left[: removal.wanted], until_ms))
        assert list(removed) == left[: len(removed)]
        left = left[len(removed) :]
    # nats-py does not declare that it returns nothing.
    await spying.drain()  # type: ignore[no-untyped-call]
    return asked.count(False), asked.count(True)


@pytest.mark.proves("A6", "L8")
@pytest.mark.parametrize(
    ("before", "least", "most"), [(3, 32, 32 + OVERWRITTEN_AT_ONCE), (0, 16, 17)]
)
async def test_a_long_row_is_forgotten_but_for_its_ends_and_no_file_holds_it(
    tmp_path: Path, client: Client, before: int, least: int, most: int
) -> None:
    """A row at the beginning of the stream has one end: no other event is in its first block."""
    await publish(client, KEPT, before, LARGE)
    erased = await publish(client, ERASED, 120, LARGE)
    await publish(client, KEPT, 3)

    overwritten, forgotten = await remove_all(client, erased)

    assert overwritten + forgotten == len(erased)
    # At most a call more than a block on either side.
    assert least <= overwritten <= most
    assert await held(client) == before + 3
    assert (told(tmp_path, ERASED), told(tmp_path, KEPT)) == (0, before + 3)
    await client.close()


async def test_a_block_that_has_lost_most_of_its_events_shrinks(
    tmp_path: Path, client: Client
) -> None:
    """Each overwrite writes all of it, and it shrinks only if other than its first events go."""
    erased = await publish(client, ERASED, 12, LARGE)
    await publish(client, KEPT, 6, LARGE)

    assert await remove_all(client, erased) == (12, 0)

    assert largest_block(tmp_path) <= BLOCK_BYTES // 2
    await client.close()


@pytest.mark.proves("A6", "L8")
async def test_small_events_of_a_long_row_are_forgotten_too_and_none_is_read_twice(
    tmp_path: Path,
    client: Client,
) -> None:
    reads: list[object] = []

    async def note(message: object) -> None:
        reads.append(message)

    erased = await publish(client, ERASED, 17, LARGE)
    # A look along the row sees far less than a block.
    erased += await publish(client, ERASED, LOOKED_AT * 2 + 2_500)
    erased += await publish(client, ERASED, 17, LARGE)
    spying = await client.subscribe(f"$JS.API.STREAM.MSG.GET.{EVENTS_STREAM}", cb=note)

    overwritten, _ = await remove_all(client, erased)

    await spying.drain()  # type: ignore[no-untyped-call]
    assert overwritten <= 34 + OVERWRITTEN_AT_ONCE
    assert len(reads) <= len(erased)
    assert (await held(client), told(tmp_path, ERASED)) == (0, 0)
    await client.close()


@pytest.mark.proves("A6")
async def test_events_among_those_of_others_are_overwritten(tmp_path: Path, client: Client) -> None:
    erased: list[int] = []
    for _ in range(50):
        erased += await publish(client, ERASED, 1, LARGE)
        await publish(client, KEPT, 1)

    overwritten, forgotten = await remove_all(client, erased)

    assert (overwritten, forgotten) == (50, 0)
    assert (told(tmp_path, ERASED), told(tmp_path, KEPT)) == (0, 50)
    await client.close()


@pytest.mark.proves("A6")
async def test_events_that_are_gone_need_no_removal(client: Client) -> None:
    erased = await publish(client, ERASED, 20)
    await client.jetstream().purge_stream(EVENTS_STREAM, seq=10)

    assert await remove_all(client, [*erased, 1_000]) == (11, 0)

    assert await held(client) == 0
    await client.close()


@pytest.mark.proves("A6", "L1")
async def test_newer_events_than_the_erased_ones_are_not_removed(
    tmp_path: Path, client: Client
) -> None:
    """L1: a stream that was restored from an older backup gave their sequences to new events."""
    erased = await publish(client, ERASED, 120, LARGE)
    until_ms = now_ms()
    await asyncio.sleep(0.01)
    newer = await publish(client, KEPT, 20, LARGE)

    overwritten, forgotten = await remove_all(client, [*erased, *newer], until_ms)

    assert overwritten + forgotten == len(erased)
    assert forgotten
    assert await held(client) == len(newer)
    assert (told(tmp_path, ERASED), told(tmp_path, KEPT)) == (0, len(newer))
