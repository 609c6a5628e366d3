"""Which system message windows pin when newer ones are retracted, in every store."""

import json
from typing import Any

import pytest

from tests.contract.query.test_as_of import at, commit_all, turn_at
from tests.contract.query.test_context import Asker, total_of
from tests.store_fixtures import NOON, Stores, retracted, system, turn, turns, user

Json = dict[str, Any]

OLD, NEW = "Answer in verse.", "Answer in prose."


async def replaced(stores: Stores) -> None:
    """A session whose older system message was evicted after a newer one came, and summarized."""
    await stores.ingest(turn(1, system(OLD), user("hi"), at_ms=at(1)))
    await stores.ingest(*[turn_at(seq) for seq in range(2, 20)])
    await stores.ingest(turn(20, system(NEW), user("hm"), at_ms=at(20)))
    for seq in range(21, 60):
        await stores.ingest(turn_at(seq))
    await commit_all(stores, at(60))


def pinned(window: Json) -> str | None:
    """The text of the system message that a window begins with."""
    first = window["messages"][0]
    return first["content"] if first["role"] == "system" else None


@pytest.mark.proves("I6", "W1", "W5")
async def test_an_older_system_message_is_pinned_again_when_the_newer_one_is_retracted(
    stores: Stores,
) -> None:
    await replaced(stores)
    asker = Asker(stores)
    before = await asker.told(entries=True)
    assert pinned(before) == NEW
    assert "e1#0" not in before["message_ids"]

    await stores.ingest(retracted(61, "e20#0", at_ms=at(61)))
    after = await asker.told(entries=True)

    assert pinned(after) == OLD
    assert after["message_ids"][0] == "e1#0"
    assert after["entries"][0]["form"] == "whole"
    assert total_of(after) == after["account"]["total"]
    assert pinned(await Asker(stores).told(mode="emergency")) == OLD
    assert (await asker.told(format="anthropic"))["system"] == OLD

    # Windows that continue an earlier one, and one that is built anew, agree.
    await stores.ingest(*turns(62, 3))
    continued, fresh = await asker.told(), await Asker(stores).told()
    assert pinned(continued) == OLD
    assert continued["messages"] == fresh["messages"]
    assert total_of(continued) == continued["account"]["total"]


@pytest.mark.proves("I6", "W1")
async def test_a_newer_system_message_takes_its_place_and_its_own_retraction_ends_it(
    stores: Stores,
) -> None:
    await replaced(stores)
    asker = Asker(stores)
    await stores.ingest(retracted(61, "e20#0"))
    assert pinned(await asker.told()) == OLD

    await stores.ingest(turn(62, system("Answer in French."), user("so?"), at_ms=NOON + 1_000))
    assert pinned(await asker.told()) == "Answer in French."

    await stores.ingest(retracted(63, "e62#0"))
    assert pinned(await asker.told()) == OLD

    await stores.ingest(retracted(64, "e1#0"))
    last = await asker.told()
    assert pinned(last) is None
    assert total_of(last) == last["account"]["total"]
    assert "in verse" not in json.dumps(last)


@pytest.mark.proves("W6")
async def test_windows_of_the_past_pin_what_was_pinned_then(stores: Stores) -> None:
    await replaced(stores)
    await stores.ingest(retracted(61, "e20#0", at_ms=at(61)))
    await stores.ingest(turn_at(62))
    await stores.ingest(retracted(63, "e1#0", at_ms=at(63)))
    await stores.ingest(turn_at(64))
    asker = Asker(stores)

    moments = ("e10#0", "e59#0", "e62#0", "e64#0")
    seen = [pinned(await asker.told(as_of=moment)) for moment in moments]

    assert seen == [OLD, NEW, OLD, None]
