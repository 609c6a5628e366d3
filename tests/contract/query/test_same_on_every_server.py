"""A server that remembers earlier windows answers as one that has just started."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.query.test_recall import (
    FACT,
    NO_OVERRIDES,
    QUESTION,
    Asker,
    block_of,
    long_ago,
    long_ago_rest,
    no_arrivals,
)
from tests.contract.query.test_search import indexed
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    installation_of,
    new_sqlite,
    result,
    retracted,
    sql_stores,
    summary,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.requests import ContextRequest
from turnfold.messages import AgentId, CompactionId, SessionId, SessionKey
from turnfold.operations.query.context import context
from turnfold.ports.query import TooLargeHere
from turnfold.store.query.recall import SqlRecallStore
from turnfold.store.query.window import Size, SqlWindowStore


async def asked(asker: Asker, stores: Stores, **fields: Any) -> dict[str, Any]:
    """An answer that does not wait for an event."""
    reply = await context(
        KEY,
        ContextRequest.model_validate({"max_tokens": 1_000, "wait_ms": 0, **fields}),
        store=stores.windows,
        environment=asker.environment,
        ingest_signal=no_arrivals,
    )
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


@pytest.mark.proves("W5")
async def test_a_window_that_lacks_the_event_asked_for_says_so_to_who_knows_the_window(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("hi"), assistant("hello")))
    asker = Asker(stores)
    known = (await asked(asker, stores, after=1))["etag"]

    stale = await asked(asker, stores, after=2, etag=known)
    again = await asked(asker, stores, after=2, etag=stale["etag"])
    # The event came, and belongs to another session: this one is as it was.
    fresh = await asked(asker, stores, after=1, etag=stale["etag"])

    assert stale["fresh"] is False
    assert again["not_modified"] is True
    assert fresh["fresh"] is True
    assert (await asked(asker, stores, after=1, etag=known))["not_modified"] is True


@pytest.mark.proves("L12", "W6")
async def test_an_etag_does_not_tell_how_many_sessions_other_agents_began(tmp_path: Path) -> None:
    tags = []
    for strangers in (0, 3):
        folder = tmp_path / str(strangers)
        folder.mkdir()
        async with sql_stores(new_sqlite(folder)) as stores:
            for number in range(strangers):
                key = SessionKey(AgentId("bob"), SessionId(f"s-{number}"))
                await stores.ingest(turn(1 + number, user("mine"), key=key))
            await stores.ingest(turn(9, user("hi"), assistant("hello")))

            tags.append((await asked(Asker(stores), stores))["etag"])

    assert tags[0] == tags[1]


@pytest.mark.proves("W6", "A6")
async def test_a_session_that_begins_again_after_its_erasure_has_another_etag(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("hi")))
    before = (await asked(Asker(stores), stores))["etag"]
    await stores.changes.erase(KEY, last_seq=1, now_ms=NOON)
    await stores.ingest(turn(2, user("ho")))

    again = await asked(Asker(stores), stores, etag=before)

    assert [message["content"] for message in again["messages"]] == ["ho"]


@pytest.mark.proves("G1", "F2")
async def test_a_retraction_that_comes_late_takes_its_message_out_of_the_recall_block(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user(FACT), assistant("Noted.")))
    await stores.ingest(*turns(10, 30))
    await stores.ingest(turn(45, user("an aside"), assistant("ok")))
    await stores.ingest(turn(52, user(QUESTION)))
    await stores.ingest(retracted(70, "e45#0", "e45#1"))
    await indexed(stores)
    asker = Asker(stores)
    assert FACT in block_of(await asker.told(max_tokens=400))

    await stores.ingest(retracted(60, "e1#0"))

    assert FACT not in json.dumps((await asker.told(max_tokens=400))["messages"])
    assert FACT not in json.dumps((await Asker(stores).told(max_tokens=400))["messages"])


@pytest.mark.proves("G1", "F2", "I6")
async def test_an_event_that_moves_before_a_retraction_of_all_leaves_the_recall_block(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("hi"), assistant("hello")))
    await stores.ingest(retracted(5, all=True))
    await stores.ingest(turn(6, user(FACT), assistant("Noted."), event_id="dup"))
    await stores.ingest(*turns(10, 30))
    await stores.ingest(turn(52, user(QUESTION)))
    await indexed(stores)
    asker = Asker(stores)
    assert FACT in block_of(await asker.told(max_tokens=400))

    await stores.ingest(turn(4, user(FACT), assistant("Noted."), event_id="dup"))

    assert FACT not in json.dumps((await asker.told(max_tokens=400))["messages"])


@pytest.mark.proves("F2", "L11")
async def test_a_result_that_came_after_the_request_is_in_no_recall_block_of_it(
    stores: Stores,
) -> None:
    call = assistant("I count every lantern.", "slow")
    await stores.ingest(turn(1, user(FACT), call, at_ms=NOON - 7_200_000))
    await long_ago_rest(stores)
    await stores.ingest(turn(45, user(QUESTION)))
    await indexed(stores)
    asker = Asker(stores)
    block = block_of(await asker.told(max_tokens=1_000))
    assert "I count every lantern." in block

    await stores.ingest(turn(46, assistant(None, "look"), tool("look", "no news")))
    await stores.ingest(result(47, "slow", "LZ-127 landed"))
    await indexed(stores)

    for other in (asker, Asker(stores)):
        assert block_of(await other.told(max_tokens=1_000)) == block


@pytest.mark.proves("F2")
@pytest.mark.parametrize("most", [150, 20])
async def test_a_smaller_block_in_the_policy_is_in_force_at_once(stores: Stores, most: int) -> None:
    await long_ago(stores, user(QUESTION))
    policy = stores.policy(*NO_OVERRIDES)
    asker = Asker(stores, policy)
    assert (await asker.told(max_tokens=2_000))["recall"]["tokens"] > most
    smaller = replace(policy, recall_max_tokens=most)

    asker.environment = replace(asker.environment, policy=installation_of(smaller)[1])

    told = await asker.told(max_tokens=2_000)
    assert told["recall"] == (await Asker(stores, smaller).told(max_tokens=2_000))["recall"]
    assert told["recall"] is None or told["recall"]["tokens"] <= most


@pytest.mark.proves("F2", "I6")
async def test_an_event_that_moved_to_its_earlier_copy_is_recalled_from_there(
    stores: Stores,
) -> None:
    moved = [user("please look"), assistant(None, "c1")]
    await stores.ingest(turn(1, user("look it up"), assistant("hm")))
    await stores.ingest(turn(6, *moved, event_id="dup"))
    await stores.ingest(result(7, "c1", "zeppelin LZ-127 landed"))
    await stores.ingest(*turns(10, 30))
    await stores.ingest(turn(52, user("what was first?")))
    await indexed(stores)
    asker = Asker(stores)
    await asker.told(max_tokens=400)

    await stores.ingest(turn(4, *moved, event_id="dup"))
    await stores.ingest(
        turn(60, assistant("done")), turn(61, user("where did the zeppelins land?"))
    )
    await indexed(stores)

    told = await asker.told(max_tokens=400)
    assert "LZ-127" in block_of(told)
    assert told["recall"] == (await Asker(stores).told(max_tokens=400))["recall"]


@pytest.mark.proves("X6", "C72")
async def test_an_empty_session_fits_every_limit_of_characters_at_once(stores: Stores) -> None:
    await stores.ingest(turn(1, user("hi")), retracted(2, "e1#0"))
    policy = replace(stores.policy(*NO_OVERRIDES), max_chars=40)

    told = await asked(Asker(stores, policy), stores, format="anthropic", max_tokens=None)

    assert told["messages"] == []


@pytest.mark.proves("F2", "L11")
async def test_the_lines_of_a_block_do_not_depend_on_the_steps_after_it(stores: Stores) -> None:
    notes = [user(f"the key_{number}_name is set in part_{number}.py") for number in range(170)]
    await stores.ingest(*[turn(seq, note) for seq, note in enumerate(notes, start=1)])
    while jobs := await stores.claim():
        for job in jobs:
            await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 175)
    await stores.ingest(turn(180, user("And now?"), assistant(None, "c0"), tool("c0")))
    await stores.ingest(turn(181, assistant("Done."), user("And then?")))
    await indexed(stores)
    asker = Asker(stores)
    block = block_of(await asker.told(max_tokens=3_000))
    assert ", in part: " in block

    await stores.ingest(
        *[turn(190 + step, assistant(None, f"c{step}"), tool(f"c{step}")) for step in range(1, 6)]
    )

    for other in (asker, Asker(stores)):
        assert block_of(await other.told(max_tokens=3_000)) == block


@pytest.mark.proves("F2", "L3")
@pytest.mark.parametrize("seq", [3, 4])
async def test_a_block_of_the_running_turn_has_what_comes_late_or_moves_before_it(
    stores: Stores, seq: int
) -> None:
    said = [user("where do zeppelins land?"), assistant("In Friedrichshafen.")]
    await stores.ingest(turn(5, user("hi"), assistant("hello")))
    await stores.ingest(turn(6, *said, event_id="e4"), *turns(10, 30))
    await stores.ingest(turn(52, user("where did the zeppelins land?")))
    await indexed(stores)
    asker = Asker(stores)
    before = block_of(await asker.told(max_tokens=400))

    await stores.ingest(turn(seq, *said))
    await indexed(stores)

    told = block_of(await asker.told(max_tokens=400))
    assert told == block_of(await Asker(stores).told(max_tokens=400)) != before


@pytest.mark.proves("F2", "A5")
async def test_a_block_of_a_version_is_decided_again_if_a_restoration_brings_the_version_back(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 30))
    await write_versions(stores)
    # So long that its window shows fewer of them once they are live again.
    long = [turn(seq, user(f"question {seq}"), assistant("so " * 60)) for seq in range(40, 55)]
    await stores.ingest(*long, turn(60, user("question 12 and question 32?")))
    await indexed(stores)
    asker = Asker(stores)
    before = block_of(await asker.told(max_tokens=600))

    compactions = await write_versions(stores)
    await stores.versions.restore(
        KEY, compactions[-1], installation=stores.installation, now_ms=NOON + 70
    )

    told = block_of(await asker.told(max_tokens=600))
    assert told == block_of(await Asker(stores).told(max_tokens=600)) != before


async def write_versions(stores: Stores) -> list[CompactionId]:
    """Write all summaries that are due; return the compactions of the last job."""
    written: list[CompactionId] = []
    while jobs := await stores.claim():
        for job in jobs:
            await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 60)
            written = [*job.compaction_ids]
    return written


@pytest.mark.proves("L8", "X6")
async def test_a_server_that_did_not_see_the_request_of_a_long_session_builds_its_window_itself(
    stores: Stores,
) -> None:
    """The rows that it reads decide which process builds a window, not the age of the session."""
    await long_ago(stores, user(QUESTION))
    await stores.ingest(turn(60, assistant(None, "c1"), tool("c1")))
    shown = await stores.facts()
    assert shown.session is not None
    assert isinstance(stores.recall, SqlRecallStore)
    most = Size(len(shown.messages), shown.session.tokens_total - 1)
    assert most.messages < shown.session.messages_total / 2
    small = replace(stores, windows=SqlWindowStore(stores.recall._database, most))

    told = await Asker(small).told(max_tokens=2_000)

    assert FACT in block_of(told)
    assert told == await Asker(stores).told(max_tokens=2_000)
    # What a version covers now was live or pending then.
    with pytest.raises(TooLargeHere):
        await Asker(small).told(max_tokens=2_000, as_of="e30#1")


@pytest.mark.proves("L8", "X6")
async def test_a_moment_before_most_of_a_long_session_is_left_to_the_lane(stores: Stores) -> None:
    """To find its place, all messages since then are looked through, evicted or not."""
    await long_ago(stores, user(QUESTION))
    shown = await stores.facts()
    assert shown.session is not None
    assert isinstance(stores.recall, SqlRecallStore)
    most = Size(len(shown.messages), shown.session.tokens_total)
    assert most.messages < shown.session.messages_total / 2
    small = replace(stores, windows=SqlWindowStore(stores.recall._database, most))

    with pytest.raises(TooLargeHere):
        await Asker(small).told(max_tokens=2_000, as_of="2020-01-01T00:00:00Z")

    assert (await Asker(stores).told(max_tokens=2_000, as_of="2020-01-01T00:00:00Z"))[
        "messages"
    ] == []


async def work_until_a_version(stores: Stores) -> None:
    """Call tools until messages leave, write a version of them, and index all."""
    step = 0
    while not (jobs := await stores.claim()):
        step += 1
        await stores.ingest(turn(10 + step, assistant(None, f"c{step}"), tool(f"c{step}")))
    for job in jobs:
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 10 + step)
    await indexed(stores)


@pytest.mark.proves("F2", "L11", "W14")
async def test_a_turn_whose_request_saw_everything_has_a_block_once_messages_are_covered(
    stores: Stores,
) -> None:
    """Otherwise its windows would leave out what they have room for, until the next request."""
    await stores.ingest(turn(1, user(FACT), assistant("Noted.")), turn(2, user(QUESTION)))
    asker = Asker(stores)
    before = await asker.told(max_tokens=2_000)
    assert before["account"]["shown"] == before["account"]["total"]

    await work_until_a_version(stores)
    told = [await one.told(max_tokens=2_000) for one in (asker, Asker(stores))]
    await stores.ingest(turn(50, assistant(None, "c0"), tool("c0")))
    later = [await one.told(max_tokens=2_000) for one in (asker, Asker(stores))]

    assert FACT in block_of(told[0])
    assert {block_of(one) for one in (*told, *later)} == {block_of(told[0])}


@pytest.mark.proves("F2", "L8")
async def test_a_turn_without_room_for_a_block_is_not_planned_anew_for_each_window(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stores.ingest(turn(1, user(FACT), assistant("Noted.")), turn(2, user(QUESTION)))
    await work_until_a_version(stores)
    plan, plans = SqlWindowStore.window_as_of, 0

    async def counted(*given: Any, **named: Any) -> Any:
        nonlocal plans
        plans += 1
        return await plan(*given, **named)

    monkeypatch.setattr(SqlWindowStore, "window_as_of", counted)
    asker, fields = Asker(stores), {"max_tokens": 2_000, "recall": {"tokens": 10}}
    told = await asker.told(**fields)
    first = plans
    again = await asker.told(**fields, entries=True)

    assert block_of(told) == block_of(again) == ""
    assert (first > 0, plans) == (True, first)
