"""Sessions and events of an agent, found by their ids, and sessions erased by a prefix."""

import pytest

from tests.store_fixtures import NOON, Stores, turn, user
from turnfold.contracts.history_requests import EventsKnownRequest, SessionListRequest
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.query import agent_lists

ADA = AgentId("ada")
NAMES = ("draft 1", "draft%2", "draft_3", "Draft 4", "drafted", "final", "草稿", "草稿 2")


async def stored(stores: Stores) -> None:
    """One event for each session, and one of the same name of another agent."""
    keys = [SessionKey(ADA, SessionId(name)) for name in NAMES]
    keys.append(SessionKey(AgentId("bob"), SessionId("draft 1")))
    for seq, key in enumerate(keys, 1):
        await stores.ingest(turn(seq, user(key.session_id), key=key, event_id=f"e{seq}"))


async def listed(stores: Stores, **fields: str | int) -> list[str]:
    """All sessions, page by page."""
    names: list[str] = []
    after: str | None = None
    while True:
        request = SessionListRequest.model_validate({"after": after, "limit": 2, **fields})
        page = await agent_lists.sessions(ADA, request, lists=stores.lists)
        names += [session["session_id"] for session in page["sessions"]]
        after = page["next_after"]
        if after is None:
            return names


@pytest.mark.proves("G1")
async def test_sessions_are_listed_by_prefix_and_page_by_page(stores: Stores) -> None:
    """G1: a prefix is plain text, also where it looks like a pattern."""
    await stored(stores)

    assert sorted(await listed(stores)) == sorted(NAMES)
    assert await listed(stores, prefix="draft ") == ["draft 1"]
    assert set(await listed(stores, prefix="draft")) == {
        "draft 1",
        "draft%2",
        "draft_3",
        "drafted",
    }
    assert await listed(stores, prefix="draft%") == ["draft%2"]
    assert await listed(stores, prefix="草稿") == ["草稿", "草稿 2"]
    assert await listed(stores, prefix="nothing") == []
    with pytest.raises(BadRequest, match="prefix"):
        await listed(stores, prefix="a\x00")


@pytest.mark.proves("G1", "L12")
async def test_only_stored_events_of_the_agent_are_known(stores: Stores) -> None:
    """G1: ids that no event can have are unknown, and no error."""
    await stored(stores)
    request = EventsKnownRequest(event_ids=["e2", "never", "e1", "e9", "e2", "", "\x00", "\ud800"])

    known = await agent_lists.known_events(ADA, request, lists=stores.lists)

    assert known == {"agent_id": "ada", "known": ["e2", "e1"], "erased": []}


@pytest.mark.proves("G1", "A6")
async def test_sessions_are_erased_by_prefix_and_the_others_stay(stores: Stores) -> None:
    """G1, A6: what was erased does not come back, and other agents keep theirs."""
    await stored(stores)

    erased = await stores.changes.erase(ADA, last_seq=9, now_ms=NOON, prefix="draft")
    await stores.ingest(turn(1, user("draft 1"), key=SessionKey(ADA, SessionId("draft 1"))))

    request = EventsKnownRequest(event_ids=[f"e{seq}" for seq in range(1, 11)])
    known = await agent_lists.known_events(ADA, request, lists=stores.lists)
    await stores.delete_rows()
    later = await agent_lists.known_events(ADA, request, lists=stores.lists)
    assert (erased.sessions, erased.messages) == (4, 4)
    assert sorted(await listed(stores)) == ["Draft 4", "final", "草稿", "草稿 2"]
    assert known["known"] == ["e4", "e6", "e7", "e8"]
    assert known["erased"] == ["e1", "e2", "e3", "e5"]
    # The same without the rows, which are deleted later.
    assert later == known
    other = SessionKey(AgentId("bob"), SessionId("draft 1"))
    assert (await stores.history.counts(other)).messages_total == 1
