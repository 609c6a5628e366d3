"""A session as it was: what was live, pending and covered at a message, a time or a version."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.query.test_recall import Asker
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    result,
    retracted,
    summary,
    system,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.history_requests import HistoryRequest
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.history.as_of import AsOf, AtMessage, AtTime, AtVersion
from turnfold.errors import BadRequest, Conflict
from turnfold.messages import AgentId, CompactionId, EventId, SessionId, SessionKey
from turnfold.operations.query.history import history
from turnfold.operations.query.replies import rfc3339
from turnfold.ports.compact import JobStatus
from turnfold.ports.ingest import DecodedEvent
from turnfold.ports.query import (
    WindowSnapshot,
)

OTHER = SessionKey(AgentId("ada"), SessionId("s-2"))
Seen = tuple[Any, ...]


def at(seq: int) -> int:
    """When the event of this sequence came: ten milliseconds apart."""
    return NOON + 10 * seq


def turn_at(seq: int) -> DecodedEvent:
    return turn(seq, user(f"question {seq}"), assistant(f"answer {seq}"), at_ms=at(seq))


def essence(facts: WindowSnapshot) -> Seen:
    """The parts of a session that a window shows."""
    session = facts.session
    return (
        session and (session.messages_total, session.version),
        facts.summary,
        facts.pending,
        facts.messages,
        facts.covered_calls,
        facts.covered_system and facts.covered_system.message_id,
    )


async def then(stores: Stores, moment: AsOf, key: SessionKey = KEY) -> WindowSnapshot:
    found, _ = await stores.windows.window_as_of(
        key, moment, on_session=lambda _: None, on_messages=lambda facts: (facts, ())
    )
    return found


def counted(facts: WindowSnapshot) -> Seen:
    """The parts that a window shows, without digests: a retraction has them written anew."""
    assert facts.session is not None
    return (
        facts.session.messages_total,
        facts.session.version,
        [(waiting.compaction_id, waiting.messages, waiting.tokens) for waiting in facts.pending],
        [(message.message_id, message.compaction_id) for message in facts.messages],
    )


async def commit_all(stores: Stores, now_ms: int) -> None:
    """Write a version for every job that is due."""
    for job in await stores.claim(now_ms + 10_000):
        if not (await stores.jobs.load(job, now_ms=now_ms)).evicted:
            await stores.jobs.fail(
                job, ending=JobStatus.STALE, reason=None, detail="", now_ms=now_ms
            )
            continue
        await stores.jobs.commit(job, summary(), reason=None, now_ms=now_ms)


async def restore(stores: Stores, compaction_id: CompactionId, now_ms: int) -> None:
    await stores.versions.restore(
        KEY, compaction_id, installation=stores.installation, now_ms=now_ms
    )


async def told(stores: Stores, moment: AsOf) -> list[str]:
    """The ids that were live or pending."""
    return [message.message_id for message in (await then(stores, moment)).messages]


async def states(stores: Stores, as_of: str | None = None, **fields: Any) -> dict[str, str]:
    """The states of all messages of the history, now or at a moment."""
    request = HistoryRequest(limit=1_000, as_of=as_of, **fields)
    page = json.loads(await history(KEY, request, store=stores.history))
    return {stored["message_id"]: stored["state"] for stored in page["messages"]}


@pytest.mark.proves("W10", "W6")
async def test_calls_of_a_turn_that_are_covered_while_it_runs_are_known_until_the_next_version(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("Read all parts."), at_ms=at(1)))
    seen: list[tuple[AsOf, Seen]] = []
    for seq in range(2, 60):
        said = [user(f"And part {seq}?")] if seq == 50 else []
        call = assistant(None, f"c{seq}")
        await stores.ingest(turn(seq, *said, call, tool(f"c{seq}"), at_ms=at(seq)))
        for job in await stores.claim(at(seq)):
            await stores.jobs.commit(job, summary(), reason=None, now_ms=at(seq) + 5)
        now = await stores.facts()
        seen.append((AtTime(at(seq) + 9), essence(now)))
        if seq == 50:
            assert now.covered_calls
        if seq < 50:
            calls = [one for one in (*now.covered_calls, *now.messages) if one.calls]
            assert [one.event_id for one in calls] == [f"e{number}" for number in range(2, seq + 1)]

    for moment, was in seen:
        assert essence(await then(stores, moment)) == was, moment


async def running_turn_covered(stores: Stores) -> None:
    """Store a running turn of ten steps, and cover those that leave."""
    await stores.ingest(turn(1, user("Read all parts."), at_ms=at(1)))
    for seq in range(2, 12):
        step = assistant(None, f"c{seq}"), tool(f"c{seq}")
        await stores.ingest(turn(seq, *step, at_ms=at(seq)))
    await commit_all(stores, at(12))


@pytest.mark.proves("W10", "W6")
async def test_covered_calls_are_known_even_if_all_later_steps_were_retracted(
    stores: Stores,
) -> None:
    await running_turn_covered(stores)
    calls = (await stores.facts()).covered_calls
    steps = [message for message in (await stores.facts()).messages if not message.is_request]

    ids = [message.message_id for message in steps]
    await stores.ingest(retracted(13, *ids, at_ms=at(13)))

    now = await stores.facts()
    assert now.covered_calls == calls != ()
    assert essence(await then(stores, AtTime(at(13)))) == essence(now)


@pytest.mark.proves("W10", "W6")
async def test_a_window_of_the_past_knows_covered_calls_that_were_retracted_since(
    stores: Stores,
) -> None:
    await running_turn_covered(stores)
    was = await stores.facts()

    await stores.ingest(retracted(14, was.covered_calls[1].message_id, at_ms=at(14)))

    past = await then(stores, AtTime(at(13)))
    assert past.covered_calls == was.covered_calls
    assert (await stores.facts()).covered_calls != was.covered_calls


@pytest.mark.proves("W6", "L7", "L10")
@pytest.mark.parametrize("commit", ["immediate", "on_summary"])
async def test_every_moment_of_a_session_can_be_seen_as_it_was(stores: Stores, commit: str) -> None:
    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"commit": commit}),
        installation=stores.installation,
        now_ms=NOON,
    )
    seen: list[tuple[AsOf, Seen]] = []
    listed: dict[str, dict[str, str]] = {}
    for seq in range(1, 41):
        await stores.ingest(turn_at(seq))
        if seq % 5 == 0:
            listed[f"e{seq}#1"] = listed[rfc3339(at(seq))] = await states(stores)
        now = essence(await stores.facts())
        seen += [(AtMessage(EventId(f"e{seq}"), 1), now), (AtTime(at(seq)), now)]
        if seq % 9 == 0:
            for job in await stores.claim(at(seq) + 1_000):
                leaving = (await stores.jobs.load(job, now_ms=at(seq))).leaving
                number = await stores.jobs.commit(
                    job,
                    summary(f"Version at {seq}."),
                    leaving=leaving,
                    reason=None,
                    now_ms=at(seq) + 5,
                )
                now = essence(await stores.facts())
                listed[str(number)] = await states(stores)
                seen += [
                    (AtTime(at(seq) + 5), now),
                    (AtTime(at(seq) + 9), now),
                    (AtVersion(number), now),
                ]

    assert any(pending for _, (_, _, pending, *_) in seen) is (commit == "immediate")
    assert sum(isinstance(moment, AtVersion) for moment, _ in seen) >= 3
    for moment, was in seen:
        assert essence(await then(stores, moment)) == was, moment
    for as_of, were in listed.items():
        assert await states(stores, as_of) == were, as_of
    # What was looked at has changed nothing of what is.
    assert essence(await stores.facts()) == seen[-1][1]


@pytest.mark.proves("W6", "V6")
async def test_a_history_of_then_has_what_was_retracted_since(stores: Stores) -> None:
    await stores.ingest(*[turn_at(seq) for seq in range(1, 4)])
    await stores.ingest(retracted(4, "e1#0", "e1#1", "e3#1", at_ms=at(4)))
    await stores.ingest(turn_at(5))

    assert set((await states(stores, "e2#1")).values()) == {"live"}
    assert list(await states(stores, "e5#0")) == ["e2#0", "e2#1", "e3#0", "e5#0"]
    assert (await states(stores, "e5#0", include_retracted=True))["e1#1"] == "retracted"
    assert list(await states(stores, "e2#1", newest=3)) == ["e1#1", "e2#0", "e2#1"]
    assert list(await states(stores, "e2#0", message_ids=["e1#0", "e2#1"])) == ["e1#0"]
    # A page of messages that were retracted by then leads on to the next.
    first = HistoryRequest(limit=2, as_of="e5#0")
    page = json.loads(await history(KEY, first, store=stores.history))
    assert [stored["message_id"] for stored in page["messages"]] == ["e2#0", "e2#1"]


@pytest.mark.proves("W6", "G1", "V6")
@pytest.mark.parametrize("is_covered", [False, True])
async def test_between_an_eviction_and_its_restoration_the_retracted_ones_are_evicted(
    stores: Stores, is_covered: bool
) -> None:
    await stores.ingest(*[turn_at(seq) for seq in range(1, 8)])
    if is_covered:
        await commit_all(stores, at(8))
    was = await stores.facts()
    page = json.loads(await history(KEY, HistoryRequest(limit=100), store=stores.history))
    evicted = [one["message_id"] for one in page["messages"] if one["state"] != "live"]

    await stores.ingest(retracted(9, evicted[0], evicted[3], evicted[-1], at_ms=at(9)))
    await restore(stores, CompactionId("1"), at(10))

    assert counted(await then(stores, AtTime(at(8)))) == counted(was)
    # Before the eviction all of them were live.
    before = [f"e{seq}#{index}" for seq in range(1, 7) for index in (0, 1)]
    assert await told(stores, AtMessage(EventId("e6"), 1)) == before


@pytest.mark.proves("W6", "G1", "V6", "L7")
@pytest.mark.parametrize("seed", [1, 15, 50])
async def test_every_moment_is_seen_as_it_was_whatever_was_retracted_and_restored_since(
    stores: Stores, seed: int
) -> None:
    rng = random.Random(seed)
    seen: list[tuple[AsOf, Seen]] = []
    acts = ["turn"] * 6 + ["retract", "retract", "restore", "restore", "write", "compact"]
    for seq in range(1, 60):
        act = rng.choice(acts) if seq > 7 else "turn"
        session = (await stores.seen()).sessions.get(KEY)
        if session is None or act == "turn":
            await stores.ingest(turn_at(seq))
        elif act == "retract":
            ids = [stored.message.message_id for stored in session.messages]
            await stores.ingest(retracted(seq, *rng.sample(ids, min(2, len(ids))), at_ms=at(seq)))
        elif act == "restore":
            for row in reversed(session.rows):
                if row.messages_evicted and row.status != "restored":
                    try:
                        await restore(stores, CompactionId(str(row.ordinal)), at(seq))
                    except Conflict:
                        continue
                    break
        elif act == "write":
            await commit_all(stores, at(seq))
        else:
            await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=at(seq))
        seen.append((AtTime(at(seq) + 5), counted(await stores.facts())))

    for moment, was in seen:
        assert counted(await then(stores, moment)) == was, moment


@pytest.mark.proves("W6", "L2", "L7")
@pytest.mark.parametrize("is_covered", [False, True])
@pytest.mark.parametrize("is_restored_again", [False, True])
async def test_an_eviction_dated_before_the_restoration_of_its_messages_doubles_none(
    stores: Stores, is_covered: bool, is_restored_again: bool
) -> None:
    await stores.ingest(*[turn_at(seq) for seq in range(1, 8)])
    if is_covered:
        await commit_all(stores, at(8))
    await restore(stores, CompactionId("1"), at(20))

    # The stream took these before.
    await stores.ingest(turn_at(9))
    for seq in range(10, 15):
        await stores.ingest(turn(seq, assistant(None, f"c{seq}"), tool(f"c{seq}"), at_ms=at(seq)))
    if is_restored_again:
        await restore(stores, CompactionId("2"), at(21))

    evicted_at_ms = (await stores.seen()).sessions[KEY].rows[1].evicted_at_ms
    assert evicted_at_ms is not None
    assert evicted_at_ms < at(20)
    for seq in range(8, 15):
        found = await then(stores, AtTime(at(seq)))
        ids = [message.message_id for message in found.messages]
        assert len(ids) == len(set(ids)), seq
        assert found.session is not None
        assert found.session.messages_total == 2 * seq - (2 if seq > 7 else 0), seq
    budgets = (120, 160, 250, 4_000)
    windows = [await Asker(stores).told(max_tokens=budget) for budget in budgets]
    assert {told["account"]["total"] for told in windows} == {26}


@pytest.mark.proves("W6")
async def test_a_moment_inside_an_event_shows_it_up_to_there(stores: Stores) -> None:
    await stores.ingest(*turns(1, 4))

    assert await told(stores, AtMessage(EventId("e2"), 0)) == ["e1#0", "e1#1", "e2#0"]
    assert await told(stores, AtMessage(EventId("e1"), 0)) == ["e1#0"]


@pytest.mark.proves("W6")
async def test_before_the_first_message_there_was_nothing(stores: Stores) -> None:
    await stores.ingest(turn_at(1))

    found = await then(stores, AtTime(at(1) - 1))

    assert found.messages == ()
    assert found.session is not None
    assert found.session.messages_total == 0


@pytest.mark.proves("W6")
@pytest.mark.parametrize("at_ms", [-(10**20), -1, NOON * 100, 10**20])
async def test_any_time_is_a_moment(stores: Stores, at_ms: int) -> None:
    await stores.ingest(turn_at(1))

    assert len((await then(stores, AtTime(at_ms))).messages) == (2 if at_ms > at(1) else 0)


@pytest.mark.proves("W6", "L5")
async def test_a_result_that_came_later_answers_nothing_yet_and_one_that_waits_has_no_call(
    stores: Stores,
) -> None:
    await stores.ingest(
        turn(1, user("go"), assistant(None, "a")),
        result(2, "b", "early"),
        result(3, "a", "late"),
        turn(4, assistant(None, "b")),
    )

    before = {
        str(message.message_id): message.answers
        for message in (await then(stores, AtMessage(EventId("e2"), 0))).messages
    }
    after = {
        str(message.message_id): message.answers
        for message in (await then(stores, AtMessage(EventId("e4"), 0))).messages
    }

    assert before == {"e1#0": None, "e1#1": None, "e2#0": None}
    assert after["e2#0"] is not None
    assert after["e3#0"] is not None


@pytest.mark.proves("W6", "L7")
async def test_a_system_message_that_was_replaced_and_evicted_since_is_there_again(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, system("old"), user("hi"), at_ms=at(1)))
    for seq in range(2, 20):
        await stores.ingest(turn_at(seq))
    await stores.ingest(
        turn(20, system("new"), user("hm"), at_ms=at(20)), *[turn_at(seq) for seq in range(21, 40)]
    )

    assert (await told(stores, AtMessage(EventId("e2"), 1)))[0] == "e1#0"


@pytest.mark.proves("W6")
async def test_texts_of_then_are_read(stores: Stores) -> None:
    await stores.ingest(*[turn_at(seq) for seq in range(1, 30)])

    def choose(facts: WindowSnapshot) -> tuple[int, Sequence[int]]:
        return len(facts.messages), [facts.messages[0].position]

    _, bodies = await stores.windows.window_as_of(
        KEY, AtTime(at(2)), on_session=lambda _: None, on_messages=choose
    )

    assert [json.loads(body)["content"] for body in bodies.values()] == ["question 1"]


@pytest.mark.proves("W6", "L12")
@pytest.mark.parametrize(
    "moment",
    [AtVersion(1), AtVersion(0), AtMessage(EventId("mine"), 0), AtMessage(EventId("e1"), 5)],
)
async def test_what_this_session_never_had_is_no_moment(stores: Stores, moment: AsOf) -> None:
    await stores.ingest(
        turn(1, user("hi"), tool("a")), turn(2, user("other"), event_id="mine", key=OTHER)
    )

    with pytest.raises(BadRequest, match="as_of"):
        await then(stores, moment)


@pytest.mark.proves("W6")
async def test_a_session_nobody_published_in_was_empty_at_any_time(stores: Stores) -> None:
    assert (await then(stores, AtTime(NOON), OTHER)).session is None
    with pytest.raises(BadRequest, match="as_of"):
        await then(stores, AtVersion(1), OTHER)


@pytest.mark.proves("W6")
async def test_a_glance_sees_the_session_as_it_is(stores: Stores) -> None:
    await stores.ingest(*turns(1, 3))

    seen, _ = await stores.windows.window_as_of(
        KEY,
        AtMessage(EventId("e1"), 0),
        on_session=lambda facts: facts.session and facts.session.messages_total,
        on_messages=lambda _: (0, ()),
    )

    assert seen == 6


@pytest.mark.proves("W6", "L2")
@pytest.mark.parametrize("is_summarized", [False, True])
async def test_an_eviction_within_an_event_that_moved_to_its_earlier_copy_is_not_of_the_future(
    stores: Stores, *, is_summarized: bool
) -> None:
    said = [one for number in range(4) for one in (user(f"q{number}"), assistant(f"a{number}"))]
    await stores.ingest(*turns(1, 4))
    await stores.ingest(turn(12, *said, event_id="twice"))
    if is_summarized:
        (job,) = await stores.claim()
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 1_000)
    await stores.ingest(turn(10, *said, event_id="twice"))

    page = await stores.history.page(KEY, limit=100)
    known = await stores.history.states_as_of(KEY, AtTime(NOON + 2_000))

    states = {one.message_id: one.state for one in page}
    assert len(set(states.values())) == 2
    assert "live" not in {states["e1#0"], states["twice#0"]}
    assert {one.message_id: known.state_of(one) for one in page} == states


@pytest.mark.proves("W6", "L2")
@pytest.mark.parametrize("moved", [4, 8])
async def test_an_event_that_moves_after_a_restoration_is_seen_in_the_state_that_it_had(
    stores: Stores, moved: int
) -> None:
    await stores.ingest(*[turn_at(seq) for seq in (2, 4, 5, 6, 7, 8)])
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=at(9))
    were = {one.message_id: one.compaction_id for one in (await stores.facts()).messages}
    assert set(were.values()) == {None, CompactionId("1")}
    await restore(stores, CompactionId("1"), at(20))
    copy = turn_at(moved)

    for seq in (3, 1):
        await stores.ingest(copy._replace(stream_seq=seq, at_ms=at(seq)))

        found = await then(stores, AtTime(at(10)))
        assert {one.message_id: one.compaction_id for one in found.messages} == were
        assert len(found.messages) == len(were)
