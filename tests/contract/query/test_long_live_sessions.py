"""Sessions with more live messages than one statement reads, and than are cached."""

from collections.abc import Sequence

import pytest

from tests.store_fixtures import KEY, NOON, Stores, assistant, turn, user
from turnfold.contracts.requests import PolicyRequest
from turnfold.messages import Message
from turnfold.store.query import message_cache
from turnfold.store.query.message_cache import READ_AT_ONCE

TURNS = READ_AT_ONCE // 400 + 1


async def live(stores: Stores) -> Sequence[Message]:
    """Return the messages of a window."""
    found, _ = await stores.windows.window(
        KEY, on_session=lambda _: None, on_messages=lambda facts: (facts, ())
    )
    return found.messages


@pytest.mark.proves("L2", "W1")
async def test_every_live_message_is_read_once_in_order_cached_or_not(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stores.changes.set_policy(
        KEY, PolicyRequest(mode="off"), installation=stores.installation, now_ms=NOON
    )
    said = [user("And?"), assistant("So.")] * 200
    await stores.ingest(*[turn(seq, *said) for seq in range(1, TURNS + 1)])
    cached = await live(stores)
    await stores.ingest(turn(TURNS + 1, user("More?"), assistant("No more.")))

    grown = await live(stores)
    monkeypatch.setattr(message_cache, "MOST_CACHED", READ_AT_ONCE)
    uncached = await live(stores)

    assert len(cached) == 400 * TURNS > READ_AT_ONCE
    assert [*cached] == [*grown][: len(cached)]
    assert [*uncached] == [*grown]
    assert [one.position for one in grown] == sorted({one.position for one in grown})
    assert len(grown) == len(cached) + 2
