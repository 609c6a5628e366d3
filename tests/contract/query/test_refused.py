"""How many events of a session were refused, as its windows tell."""

import json

import pytest

from tests.store_fixtures import KEY, NOON, Stores, turn, user
from turnfold.contracts.subjects import token_of
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.ports.query import (
    END_SEQ,
)

OTHER = SessionKey(AgentId("ada"), SessionId("s-2"))


async def refuse(
    stores: Stores, seq: int, key: SessionKey = KEY, subject: str = "turn.completed"
) -> None:
    """Ingest an event with a message that has no role."""
    event = {**key._asdict(), "event_id": f"bad-{seq}", "messages": [{"content": "no role"}]}
    delivery = Delivery(subject, json.dumps(event).encode(), seq, NOON + seq)
    dead = decode_batch([delivery], count=len).dead
    await stores.intake.ingest((), dead, installation=stores.installation)


async def refused(stores: Stores, key: SessionKey = KEY, to: int = END_SEQ) -> int:
    """The number in the snapshot of a window."""
    snapshot, _ = await stores.windows.window(
        key, on_session=lambda seen: seen, on_messages=lambda seen: (seen, ()), refused_to=to
    )
    return snapshot.refused


@pytest.mark.proves("G1", "I5", "L2")
async def test_windows_count_the_refused_events_of_their_session_up_to_a_sequence(
    stores: Stores,
) -> None:
    """G1: also before the session has a message, when only refused events are there."""
    await refuse(stores, 1)
    first = await refused(stores)
    await stores.ingest(turn(2, user("good")))
    await refuse(stores, 3)
    await refuse(stores, 4, OTHER)

    assert first == 1
    assert (await refused(stores), await refused(stores, OTHER)) == (2, 1)
    assert [await refused(stores, to=seq) for seq in (1, 2, 3)] == [1, 1, 2]


@pytest.mark.proves("G1", "A6")
async def test_replayed_and_erased_events_are_refused_no_longer(stores: Stores) -> None:
    """G1: what was published again is stored or refused under its new sequence."""
    await refuse(stores, 1)
    await refuse(stores, 2)
    await refuse(stores, 3, OTHER)

    await stores.letters.replayed(1, now_ms=NOON)
    replayed = await refused(stores)
    await stores.changes.erase(KEY, last_seq=3, now_ms=NOON)

    assert replayed == 1
    assert (await refused(stores), await refused(stores, OTHER)) == (0, 1)


@pytest.mark.proves("L12", "X1", "A6")
@pytest.mark.parametrize("session", ["s", "%zz", "s.s", "*"])
async def test_an_agent_has_no_events_of_another_one_refused(stores: Stores, session: str) -> None:
    await refuse(stores, 1, subject=f"turn.completed.eve.{session}")
    seen = await refused(stores)
    kept = len(await stores.history.dead_letters(after=0, limit=9))
    await refuse(stores, 2, subject=f"turn.completed.{token_of(KEY.agent_id)}.%zz")
    own = await refused(stores)

    await stores.changes.erase(KEY, last_seq=2, now_ms=NOON)
    left = await stores.history.dead_letters(after=0, limit=9)

    assert (seen, kept, own) == (0, 1, 1)
    assert left == []
