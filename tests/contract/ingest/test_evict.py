"""How old messages leave the live window, in every store."""

import json
from typing import Any

import pytest
from sqlalchemy import text

from tests.contract.compact.versions import override, phases
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    result,
    retracted,
    system,
    tool,
    turn,
    turns,
    user,
)
from turnfold.errors import BadRequest, Conflict
from turnfold.messages import AgentId, CallRef, SessionId, SessionKey, State, position_of
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.database import statements
from turnfold.store.database.engine import Database

HOUR_MS = 3_600_000


async def states(stores: Stores, key: SessionKey = KEY) -> dict[str, State]:
    page = await stores.history.page(key, after_position=0, limit=1_000)
    return {one.message_id: one.state for one in page}


async def live(stores: Stores, key: SessionKey = KEY) -> list[str]:
    return [
        message_id
        for message_id, state in (await states(stores, key)).items()
        if state is State.LIVE
    ]


@pytest.mark.proves("E1", "E2", "E3", "C27")
async def test_what_is_over_the_limit_leaves_with_the_event_that_made_it_so(stores: Stores) -> None:
    await stores.ingest(*turns(1, 6))
    assert len(await live(stores)) == 12

    done = await stores.intake.ingest(turns(7, 1), (), installation=stores.installation)

    assert done.evictions == 1
    assert await live(stores) == ["e6#0", "e6#1", "e7#0", "e7#1"]
    assert set((await states(stores)).values()) == {State.LIVE, State.PENDING}


@pytest.mark.proves("E2", "L7")
async def test_evicted_messages_stay_in_the_window_until_a_summary_speaks_for_them(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7))

    facts = await stores.facts()

    (pending,) = facts.pending
    assert (pending.messages, pending.requested_at_ms) == (10, NOON + 7)
    assert pending.tokens == sum(
        message.tokens
        for message in facts.messages
        if message.compaction_id == pending.compaction_id
    )
    assert pending.digest
    assert len(facts.messages) == 14


@pytest.mark.proves("E2", "A1", "A3")
async def test_an_eviction_leaves_an_audit_row_and_a_notice(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))

    (row,) = await stores.history.audit(KEY, after=0, limit=9)
    (pending,) = (await stores.facts()).pending
    (notice,) = await stores.outbox.unsent(9)
    told = json.loads(notice.payload)
    assert (row.phase, row.compaction_id, row.at_ms) == (
        "evicted",
        int(pending.compaction_id),
        NOON + 7,
    )
    assert notice.subject == "context.compressed.ada.s-1"
    assert (told["compaction_id"], told["trigger"]) == (pending.compaction_id, "messages")
    assert (told["original_count"], told["compressed_count"]) == (14, 4)
    assert told["audit"] == {"rows": 1, "hash": row.hash}


@pytest.mark.proves("E1", "L3")
async def test_a_batch_evicts_what_its_events_would_have_evicted_one_by_one(stores: Stores) -> None:
    alone = SessionKey(KEY.agent_id, SessionId("one by one"))
    await stores.ingest(
        *[turn(seq, user("q"), assistant("a"), event_id=f"t{seq}") for seq in range(1, 21)]
    )
    for seq in range(21, 41):
        await stores.ingest(turn(seq, user("q"), assistant("a"), event_id=f"a{seq}", key=alone))

    together = [(one.messages, one.tokens) for one in (await stores.facts()).pending]
    assert together == [(one.messages, one.tokens) for one in (await stores.facts(alone)).pending]
    assert list((await states(stores)).values()) == list((await states(stores, alone)).values())


@pytest.mark.proves("E1")
async def test_too_many_tokens_make_an_eviction_due_and_the_notice_names_the_limit(
    stores: Stores,
) -> None:
    await override(stores, trigger_tokens=500)

    await stores.ingest(*[turn(seq, user("x" * 400)) for seq in range(1, 6)])

    (notice, *_) = await stores.outbox.unsent(9)
    told = json.loads(notice.payload)
    assert (told["trigger"], told["budget_tokens"]) == ("tokens", 500)


@pytest.mark.proves("I6", "E3")
async def test_the_newest_system_message_stays_and_older_ones_leave_with_their_neighbours(
    stores: Stores,
) -> None:
    await stores.ingest(
        turn(1, system("first rules")), turn(2, system("rules in force")), *turns(3, 7)
    )

    assert (await live(stores))[0] == "e2#0"
    assert (await states(stores))["e1#0"] is State.PENDING


@pytest.mark.proves("L3")
async def test_a_straggler_is_live_in_its_place_and_leaves_with_the_next_eviction(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 3), *turns(5, 4))
    assert (await states(stores))["e1#0"] is State.PENDING

    await stores.ingest(turn(4, user("late"), event_id="late"))

    page = await stores.history.page(KEY, after_position=0, limit=100)
    assert next(one.message_id for one in page if one.state is State.LIVE) == "late#0"
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON)
    assert (await states(stores))["late#0"] is State.PENDING


@pytest.mark.proves("I1")
async def test_a_result_whose_call_was_evicted_is_live_answers_it_and_leaves_next(
    stores: Stores,
) -> None:
    await override(stores, open_call_timeout_seconds=0)
    await stores.ingest(turn(1, user("look"), assistant(None, "c")), *turns(2, 6))
    assert (await states(stores))["e1#1"] is State.PENDING

    await stores.ingest(result(9, "c", "42", event_id="r"), *turns(10, 1))

    facts = await stores.facts()
    assert (
        next(message for message in facts.messages if message.event_id == "r").answers is not None
    )
    await stores.ingest(*turns(11, 6))
    assert (await states(stores))["r#0"] is State.PENDING


@pytest.mark.proves("E3", "E4", "C6")
async def test_an_open_call_stays_until_its_time_is_up(stores: Stores) -> None:
    await stores.ingest(turn(1, user("look"), assistant(None, "c")), *turns(2, 7))
    assert (await live(stores))[:2] == ["e1#0", "e1#1"]

    await stores.ingest(
        *[
            turn(seq, user("later"), assistant("yes"), at_ms=NOON + HOUR_MS + seq)
            for seq in range(9, 15)
        ]
    )

    assert {"e1#0", "e1#1"}.isdisjoint(await live(stores))


@pytest.mark.proves("E3", "C2")
async def test_a_call_leaves_with_all_its_results(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("look"), assistant(None, "a", "b"), tool("a"), tool("b")), *turns(2, 6)
    )

    gone = {
        state
        for message_id, state in (await states(stores)).items()
        if message_id.startswith("e1#")
    }

    assert gone == {State.PENDING}


@pytest.mark.proves("E5", "C32")
async def test_where_nothing_can_leave_there_is_no_row(stores: Stores) -> None:
    await stores.ingest(*turns(1, 1))

    assert (
        await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON) is None
    )

    assert (await stores.facts()).pending == ()
    assert await phases(stores) == []


@pytest.mark.proves("E1")
async def test_a_request_evicts_below_every_limit(stores: Stores) -> None:
    await stores.ingest(*turns(1, 4))

    opened = await stores.changes.compact_now(
        KEY, installation=stores.installation, now_ms=NOON + 99
    )

    (pending,) = (await stores.facts()).pending
    assert (pending.compaction_id, pending.messages, pending.requested_at_ms) == (
        opened,
        4,
        NOON + 99,
    )
    assert json.loads((await stores.outbox.unsent(1))[0].payload)["trigger"] == "request"


@pytest.mark.proves("E1")
async def test_a_session_nobody_published_in_has_nothing_to_evict(stores: Stores) -> None:
    assert (
        await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON) is None
    )
    assert await stores.history.sessions(agent_ids=None, limit=9) == []


# --- what sessions and agents want


@pytest.mark.proves("E6")
@pytest.mark.parametrize("mode", ["off", "manual"])
async def test_nothing_leaves_by_itself_unless_the_mode_is_auto(stores: Stores, mode: str) -> None:
    await override(stores, mode=mode)

    await stores.ingest(*turns(1, 20))

    assert len(await live(stores)) == 40


@pytest.mark.proves("E6")
async def test_a_request_is_refused_where_the_mode_is_off_and_done_where_it_is_manual(
    stores: Stores,
) -> None:
    await override(stores, mode="off")
    await stores.ingest(*turns(1, 8))

    with pytest.raises(Conflict):
        await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON)
    await override(stores, mode="manual")

    assert (
        await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON)
        is not None
    )


@pytest.mark.proves("E1")
async def test_a_tighter_policy_evicts_at_once(stores: Stores) -> None:
    await stores.ingest(*turns(1, 5))

    await override(stores, max_live_messages=6)

    assert len(await live(stores)) == 4


@pytest.mark.proves("E6", "L12")
async def test_an_agents_policy_holds_for_its_sessions_alone_and_a_sessions_own_stands_above_it(
    stores: Stores,
) -> None:
    wide, other = (
        SessionKey(KEY.agent_id, SessionId("wide")),
        SessionKey(AgentId("bob"), KEY.session_id),
    )
    await override(stores, KEY.agent_id, max_live_messages=6)
    await override(stores, wide, max_live_messages=0)

    for number, key in enumerate((KEY, wide, other)):
        events = [
            turn(10 * number + seq, user("q"), assistant("a"), key=key) for seq in range(1, 6)
        ]
        await stores.ingest(*events)

    assert [len(await live(stores, key)) for key in (KEY, wide, other)] == [6, 10, 10]


@pytest.mark.proves("O5")
async def test_wishes_add_up_and_null_takes_one_back(stores: Stores) -> None:
    await override(stores, mode="manual", keep_messages=3, keep_tokens=7)

    told = await override(stores, preset="static-buffer", keep_tokens=None)

    assert (told["mode"], told["preset"], told["overrides"]) == (
        "manual",
        "static-buffer",
        {"keep_messages": 3},
    )
    counts = await stores.history.counts(KEY)
    assert (counts.mode, counts.preset) == ("manual", "static-buffer")


@pytest.mark.proves("O5")
@pytest.mark.parametrize("key", [KEY, KEY.agent_id])
async def test_a_policy_that_does_not_exist_is_refused_and_changes_nothing(
    stores: Stores, key: SessionKey | AgentId
) -> None:
    wrong: list[dict[str, Any]] = [
        {"keep_mesages": 3},
        {"keep_messages": -1},
        {"keep_messages": "many"},
    ]
    for numbers in wrong:
        with pytest.raises(BadRequest):
            await override(stores, key, **numbers)
    with pytest.raises(BadRequest):
        await override(stores, key, preset="ballanced")

    await stores.ingest(*turns(1, 1))
    facts = (await stores.facts()).session
    assert facts is not None
    assert facts.wishes == facts.agent_wishes


@pytest.mark.proves("L5", "C10")
async def test_an_evicted_result_that_finds_its_call_later_is_seen_so_by_who_knew_it_without(
    stores: Stores,
) -> None:
    await stores.ingest(result(1, "c9", "forty-two", event_id="early"), *turns(2, 7))
    (before,) = [
        message for message in (await stores.facts()).messages if message.event_id == "early"
    ]
    assert (before.compaction_id is not None, before.answers) == (True, None)

    await stores.ingest(turn(20, assistant(None, "c9")))

    (after,) = [
        message for message in (await stores.facts()).messages if message.event_id == "early"
    ]
    assert (after.compaction_id, after.answers) == (
        before.compaction_id,
        CallRef(position_of(20, 0), 0),
    )


@pytest.mark.proves("L3")
async def test_an_evicted_event_that_moves_is_seen_at_its_new_place_by_who_knew_its_old_one(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(5, 7))
    known = await stores.facts()
    await stores.ingest(turn(2, user("question 6"), assistant("answer 6"), event_id="e6"))

    moved = await stores.facts()

    assert [message.message_id for message in known.messages][:4] == [
        "e5#0",
        "e5#1",
        "e6#0",
        "e6#1",
    ]
    assert [message.message_id for message in moved.messages][:4] == [
        "e6#0",
        "e6#1",
        "e5#0",
        "e5#1",
    ]
    assert len(moved.messages) == len(known.messages)


def in_progress(key: SessionKey, first: int) -> list[DecodedEvent]:
    """1,100 calls that are not answered yet."""
    calls = [assistant(None, f"c{number}") for number in range(550)]
    return [turn(seq, *calls, key=key, at_ms=NOON) for seq in (first, first + 1)]


@pytest.mark.proves("L8", "E4")
@pytest.mark.parametrize("commit", ["immediate", "on_summary"])
async def test_an_event_that_can_evict_nothing_reads_few_of_thousands_of_live_messages(
    stores: Stores, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await override(stores, commit=commit)
    old = turn(1, user("old"), user("old"), user("go"))
    # Every second message is examined.
    await stores.ingest(old, *in_progress(KEY, 2), turn(4, assistant(None, "d"), at_ms=NOON))
    rows: list[int] = []
    fetched = statements._fetched  # all prepared statements fetch here

    def counted(*call: Any) -> Any:
        found = fetched(*call)
        rows.append(len(found))
        return found

    monkeypatch.setattr(statements, "_fetched", counted)

    await stores.ingest(turn(5_000, assistant(None, "c"), at_ms=NOON))

    assert sum(rows) < 100


@pytest.mark.proves("L3", "E1")
async def test_of_thousands_of_live_messages_the_same_leave_in_a_batch_as_one_by_one(
    stores: Stores,
) -> None:
    other = SessionKey(KEY.agent_id, SessionId("s-2"))
    for key, first in ((KEY, 1), (other, 10_001)):
        await stores.ingest(*in_progress(key, first))
    late = [
        [
            turn(first + n, user(f"q{n}"), key=key, at_ms=NOON + 2 * HOUR_MS)
            for n in range(2_000, 2_005)
        ]
        for key, first in ((KEY, 0), (other, 10_000))
    ]

    await stores.ingest(*late[0])
    for event in late[1]:
        await stores.ingest(event)

    sessions = (await stores.seen()).sessions
    left = [
        [one.message.compaction_id is not None for one in sessions[key].messages]
        for key in (KEY, other)
    ]
    assert left[0] == left[1]
    assert sum(left[0]) > 1_000


@pytest.mark.proves("I5", "L1")
async def test_counters_that_are_slightly_off_hold_up_no_event(
    stores: Stores, database: Database
) -> None:
    """L1: a worker of a release that counts otherwise may leave them so."""
    await stores.ingest(*turns(1, 3))
    off = "UPDATE sessions SET live_messages = live_messages - 1, live_tokens = live_tokens - 1"
    await database.write(lambda connection: connection.execute(text(off)))

    await stores.ingest(retracted(9, all=True))

    session = (await stores.facts()).session
    assert session is not None
    assert (session.messages_total, session.live_messages, session.live_tokens) == (0, 0, 0)
