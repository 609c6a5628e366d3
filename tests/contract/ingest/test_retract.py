"""What `turn.retracted` does, in every store: messages, pairs, counts, versions, and any order of arrival."""

import json
from itertools import permutations
from typing import Any

import pytest

from tests.contract.compact.versions import OTHER, STRANGER, ids, phases, regenerate, three_versions
from tests.contract.query.test_context import Asker, total_of
from tests.invariants import SessionSeen
from tests.store_fixtures import (
    KEY,
    LEASE_MS,
    NOON,
    Stores,
    assistant,
    result,
    retracted,
    summary,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.history_requests import HistoryRequest, SearchRequest
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.summary.cooldown import COOLDOWN_MS
from turnfold.errors import Conflict, LostLease
from turnfold.messages import AgentId, CompactionId, SessionId, SessionKey, State
from turnfold.operations.query.history import history
from turnfold.operations.query.history import session as status
from turnfold.operations.query.search import search
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.compact.jobs import rows


async def seen(stores: Stores, key: SessionKey = KEY) -> SessionSeen:
    return (await stores.seen()).sessions[key]


async def left(stores: Stores, key: SessionKey = KEY) -> list[str]:
    return [one.message.message_id for one in (await seen(stores, key)).messages]


async def gone(stores: Stores, key: SessionKey = KEY) -> list[str]:
    return [one.message.message_id for one in (await seen(stores, key)).retracted]


async def entries(stores: Stores, **fields: Any) -> list[dict[str, Any]]:
    answer = json.loads(await history(KEY, HistoryRequest(**fields), store=stores.history))
    found: list[dict[str, Any]] = answer["messages"]
    return found


async def seven_versions(stores: Stores) -> None:
    """Store 42 turns, and summarize what leaves after every sixth."""
    for first_seq in range(1, 40, 6):
        await stores.ingest(*turns(first_seq, 6))
        for job in await stores.claim():
            await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)


async def fold(stores: Stores) -> list[list[str]]:
    """Summarize everything that is due, job by job; the ids of the messages that each one read."""
    read: list[list[str]] = []
    for number in range(20):
        now_ms = NOON + 60_000 + number * 1_000
        for job in await stores.claim(now_ms):
            job_input = await stores.jobs.load(job, now_ms=now_ms)
            read.append([entry.message.message_id for entry in job_input.evicted])
            await stores.jobs.commit(job, summary(f"Fold {number}."), reason=None, now_ms=now_ms)
    return read


async def write(stores: Stores, text: str, *, at_ms: int = NOON + 1_000) -> int:
    (job,) = await stores.claim(at_ms)
    leaving = (await stores.jobs.load(job, now_ms=at_ms)).leaving
    return await stores.jobs.commit(job, summary(text), leaving=leaving, reason=None, now_ms=at_ms)


# --- which messages


@pytest.mark.proves("G1", "A5", "L7")
async def test_named_messages_leave_the_window_and_the_counts_and_stay_in_the_history(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 3))

    await stores.ingest(retracted(9, "e2#0", "e2#1"))

    told = await Asker(stores).told()
    assert told["message_ids"] == ["e1#0", "e1#1", "e3#0", "e3#1"]
    assert told["account"]["total"] == total_of(told) == 4
    assert [entry["message_id"] for entry in await entries(stores)] == told["message_ids"]
    whole = await entries(stores, include_retracted=True)
    assert [entry["message_id"] for entry in whole] == [
        f"e{n}#{i}" for n in (1, 2, 3) for i in (0, 1)
    ]
    assert [entry["state"] for entry in whole][2:4] == [State.RETRACTED] * 2
    assert [e["state"] for e in await entries(stores, message_ids=["e2#0"])] == []
    assert len(await entries(stores, message_ids=["e2#0"], include_retracted=True)) == 1


@pytest.mark.proves("G1")
async def test_what_follows_a_message_is_retracted_and_the_message_stays(stores: Stores) -> None:
    await stores.ingest(*turns(1, 3), retracted(9, after="e2#0"), turn(10, user("anew")))

    assert await left(stores) == ["e1#0", "e1#1", "e2#0", "e10#0"]


@pytest.mark.proves("G1")
async def test_all_messages_are_retracted_and_the_session_goes_on(stores: Stores) -> None:
    await stores.ingest(*turns(1, 20))
    await write(stores, "A summary of it all.")

    await stores.ingest(retracted(50, all=True), turn(51, user("anew")))

    told = await Asker(stores).told()
    assert (told["message_ids"], told["summary"]) == (["e51#0"], None)
    assert len(await gone(stores)) == 40


@pytest.mark.proves("G1")
@pytest.mark.parametrize("unknown", ["n#0", "e1#7", "e1", "e1#x", "e1#00", "#", "\ud800#0", "e5#0"])
async def test_unknown_and_later_messages_are_no_error(stores: Stores, unknown: str) -> None:
    await stores.ingest(turn(1, user("hi")), retracted(2, unknown), retracted(3, after=unknown))
    await stores.ingest(turn(5, user("later")))

    assert await left(stores) == ["e1#0", "e5#0"]
    assert (await phases(stores)).count("retracted") == 2


@pytest.mark.proves("G1", "L12")
async def test_sessions_and_agents_are_apart(stores: Stores) -> None:
    for number, key in enumerate((KEY, OTHER, STRANGER)):
        await stores.ingest(turn(number + 1, user("hi"), event_id=f"e-{number}", key=key))

    await stores.ingest(retracted(9, "e-1#0", "e-2#0"), retracted(10, after="e-1#0"))

    for number, key in enumerate((KEY, OTHER, STRANGER)):
        assert await left(stores, key) == [f"e-{number}#0"]


@pytest.mark.proves("G1", "T4")
async def test_after_a_retraction_no_report_says_how_full_the_window_is(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("a")), turn(2, assistant("b"), model="m", usage={"prompt_tokens": 900})
    )
    before = await status(KEY, None, store=stores.history)  # type: ignore[arg-type]  # it takes no fields

    await stores.ingest(retracted(3, "e1#0"))

    after = await status(KEY, None, store=stores.history)  # type: ignore[arg-type]  # it takes no fields
    assert (before["usage"]["reported_tokens"], after["usage"]["reported_tokens"]) == (900, 0)


@pytest.mark.proves("G1", "L2")
async def test_a_retraction_delivered_again_changes_nothing(stores: Stores) -> None:
    await stores.ingest(*turns(1, 2), retracted(3, "e1#0", event_id="r"))
    before = await stores.seen()

    await stores.ingest(retracted(3, "e1#0", event_id="r"))
    assert await stores.seen() == before

    await stores.ingest(retracted(4, "e2#0", event_id="r"))
    assert (await stores.seen()).dead_letters == ((4, "event_id_reused", "turn.retracted"),)
    assert await left(stores) == ["e1#1", "e2#0", "e2#1"]


@pytest.mark.proves("G1", "L2")
async def test_a_retracted_event_published_again_stays_retracted(stores: Stores) -> None:
    await stores.ingest(turn(1, user("hi"), event_id="a"), retracted(2, "a#0"))

    await stores.ingest(turn(3, user("hi"), event_id="a"))
    await stores.ingest(turn(4, {"content": "hi", "role": "user"}, event_id="a"))

    assert (await left(stores), await gone(stores)) == ([], ["a#0"])
    assert (await stores.seen()).dead_letters == ()


@pytest.mark.proves("G1", "F1")
async def test_no_search_finds_a_retracted_message(stores: Stores) -> None:
    await stores.ingest(turn(1, user("the violet harbour")), turn(2, user("another harbour")))
    while await stores.index.index_some():
        pass
    await stores.ingest(retracted(3, "e1#0"))
    while await stores.index.index_some():
        pass

    hits = json.loads(await search(KEY, SearchRequest(q="harbour"), store=stores.search))["hits"]
    assert [hit["message_id"] for hit in hits] == ["e2#0"]


# --- calls and results


@pytest.mark.proves("G1", "L5")
async def test_a_result_follows_its_call_whenever_it_comes(stores: Stores) -> None:
    await stores.ingest(turn(1, user("look"), assistant(None, "c1", "c2")), result(2, "c1", "one"))

    await stores.ingest(retracted(3, "e1#1"))
    assert await gone(stores) == ["e1#1", "e2#0"]

    await stores.ingest(result(4, "c2", "two"))
    assert await gone(stores) == ["e1#1", "e2#0", "e4#0"]
    assert await left(stores) == ["e1#0"]


@pytest.mark.proves("G1", "L5")
async def test_a_retracted_result_leaves_its_call_to_the_next_one(stores: Stores) -> None:
    await stores.ingest(turn(1, user("look"), assistant(None, "c1")), result(2, "c1", "wrong"))
    await stores.ingest(retracted(3, "e2#0"), result(4, "c1", "right"))

    told = await Asker(stores).told()
    assert [message["content"] for message in told["messages"]] == ["look", None, "right"]


@pytest.mark.proves("G1", "L5")
async def test_a_call_id_used_again_after_a_retraction_gets_its_own_result(stores: Stores) -> None:
    branch = (user("look"), assistant(None, "c1"))
    await stores.ingest(
        turn(1, *branch), retracted(2, all=True), turn(3, *branch), result(4, "c1", 1)
    )

    assert await left(stores) == ["e3#0", "e3#1", "e4#0"]


@pytest.mark.proves("G1", "L5")
async def test_a_call_retracted_with_its_result_takes_no_later_result(stores: Stores) -> None:
    branch = (user("look"), assistant(None, "c1"), tool("c1", "old"))
    await stores.ingest(turn(1, *branch))
    await stores.ingest(retracted(2, "e1#1", "e1#2"))

    await stores.ingest(result(3, "c1", "new"), turn(4, assistant(None, "c1")))

    told = await Asker(stores).told()
    assert [message["content"] for message in told["messages"]] == ["look", None, "new"]
    assert await gone(stores) == ["e1#1", "e1#2"]


# --- order


@pytest.mark.proves("G1", "L2", "L3", "C48")
@pytest.mark.parametrize(
    "events",
    [
        # A retraction before the message that it names; a message after which all is retracted.
        [turn(1, user("a")), turn(2, user("b")), retracted(3, "e1#0"), retracted(4, after="e1#0")],
        # A call, its retraction, its result, and the same call id again.
        [
            turn(1, assistant(None, "c1")),
            retracted(2, "e1#0"),
            turn(3, assistant(None, "c1")),
            result(4, "c1", "one"),
        ],
        # An event at two sequences, with a retraction between.
        [
            turn(1, user("a"), event_id="a"),
            retracted(2, all=True),
            turn(3, user("a"), event_id="a"),
            turn(4, user("b")),
        ],
        # An event at two sequences, both behind the retraction of another.
        [
            turn(1, user("a")),
            retracted(2, "e1#0"),
            turn(3, user("b"), event_id="b"),
            turn(4, user("b"), event_id="b"),
        ],
        # A retraction at two sequences, with a message between.
        [
            turn(1, user("a")),
            retracted(2, all=True, event_id="r"),
            turn(3, user("b")),
            retracted(4, all=True, event_id="r"),
        ],
        # A retracted result, and the next one.
        [
            turn(1, assistant(None, "c1")),
            result(2, "c1", "one"),
            retracted(3, "e2#0"),
            result(4, "c1", "two"),
        ],
        # A call retracted with its result, and the next result, which comes before its call.
        [
            turn(1, assistant(None, "c1"), tool("c1", "one")),
            retracted(2, "e1#0", "e1#1"),
            result(3, "c1", "two"),
            turn(4, assistant(None, "c1")),
        ],
    ],
)
async def test_every_order_of_arrival_ends_the_same(
    stores: Stores, events: list[DecodedEvent]
) -> None:
    # Each order in an agent of its own, because event ids belong to agents; a step of all orders is one batch.
    orders = list(permutations(events))
    agents = [
        SessionKey(AgentId(f"ada-{number}"), SessionId("s-1")) for number in range(len(orders))
    ]
    for step in zip(*orders, strict=True):
        moved = zip(step, agents, strict=True)
        await stores.ingest(*(event._replace(key=agent) for event, agent in moved))
    at_once = SessionKey(AgentId("bob"), SessionId("s-1"))
    await stores.ingest(*(event._replace(key=at_once) for event in events))

    # Read once: after each order, it would be all that the orders before have left.
    sessions = (await stores.seen()).sessions
    outcomes = {
        repr(
            (
                [(one.message, one.body) for one in session.messages],
                [(one.message.message_id, one.seq, one.named_seq) for one in session.retracted],
                session.counters.messages_total,
                session.counters.tokens_total,
                session.counters.live_tokens,
            )
        )
        for session in sessions.values()
    }

    assert len(sessions) == len(orders) + 1
    assert len(outcomes) == 1, outcomes


# --- evictions and versions


@pytest.mark.proves("G1", "L10", "L7")
async def test_a_version_that_covered_it_is_out_of_force_and_its_base_speaks(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7))
    await write(stores, "The first version.")
    await stores.ingest(*turns(11, 7))
    await write(stores, "The second version.", at_ms=NOON + 2_000)
    messages = [one.message for one in (await seen(stores)).messages]
    second = [message for message in messages if message.compaction_id == "2"]

    await stores.ingest(retracted(30, second[0].message_id, at_ms=NOON + 3_000))

    told = await Asker(stores).told()
    assert told["summary"]["text"] == "The first version."
    assert told["account"]["total"] == total_of(told) == 27
    assert told["account"]["pending_shown"] + told["account"]["pending_digested"] > 0

    assert await write(stores, "The third version.", at_ms=NOON + 9_000) == 3
    told = await Asker(stores).told()
    assert told["summary"]["text"] == "The third version."
    assert told["account"]["total"] == total_of(told) == 27


@pytest.mark.proves("G1", "L10")
async def test_what_is_written_anew_never_reads_what_was_retracted(stores: Stores) -> None:
    await stores.ingest(turn(1, user("the code is VIOLET")), *turns(2, 7))
    await write(stores, "VIOLET")

    await stores.ingest(retracted(30, "e1#0", at_ms=NOON + 3_000))

    assert "VIOLET" not in json.dumps(await Asker(stores).told())
    assert "VIOLET" not in repr((await stores.facts()).pending)
    (job,) = await stores.claim(NOON + 9_000)
    work = await stores.jobs.load(job, now_ms=NOON + 9_000)
    assert "VIOLET" not in repr(work)
    assert work.evicted


@pytest.mark.proves("G1", "L10")
async def test_a_withdrawn_version_cannot_be_promoted_or_extended(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    await write(stores, "The first version.")
    await stores.ingest(retracted(30, "e1#0", at_ms=NOON + 3_000))
    await write(stores, "The second version.", at_ms=NOON + 9_000)

    with pytest.raises(Conflict, match="retracted"):
        await stores.versions.promote(
            KEY, 1, over=None, installation=stores.installation, now_ms=NOON + 9_500
        )
    with pytest.raises(Conflict, match="retracted"):
        await stores.versions.regenerate(
            KEY,
            RegenerateOptions(from_version=1),
            installation=stores.installation,
            now_ms=NOON + 9_500,
        )


@pytest.mark.proves("G1", "C47", "C51")
@pytest.mark.parametrize("kind", ["next", "regenerated"])
async def test_a_job_that_read_a_retracted_message_commits_nothing(
    stores: Stores, kind: str
) -> None:
    await stores.ingest(*turns(1, 7))
    if kind == "regenerated":
        await write(stores, "The first version.")
        await stores.versions.regenerate(
            KEY, RegenerateOptions(), installation=stores.installation, now_ms=NOON + 2_000
        )
    (job,) = await stores.claim(NOON + 2_500)

    await stores.ingest(retracted(30, "e1#0", at_ms=NOON + 3_000))

    with pytest.raises(LostLease):
        await stores.jobs.commit(
            job, summary("It tells."), leaving=None, reason=None, now_ms=NOON + 4_000
        )
    assert all(version.text != "It tells." for version in (await seen(stores)).versions)
    while jobs := await stores.claim(NOON + 9_000):
        for due in jobs:
            work = await stores.jobs.load(due, now_ms=NOON + 9_000)
            assert "question 1" not in repr(work.evicted[:1])
            await stores.jobs.commit(
                due, summary("Anew."), leaving=work.leaving, reason=None, now_ms=NOON + 9_000
            )


@pytest.mark.proves("G1", "L10")
async def test_a_running_regeneration_starts_again_without_what_was_retracted(
    stores: Stores,
) -> None:
    await three_versions(stores)
    told = await ids(stores, State.COVERED)
    await regenerate(stores)
    (job,) = await stores.claim(NOON + 9_500)

    # Versions 1 and 2 do not cover it: the regeneration has something to write without it.
    await stores.ingest(retracted(90, told[-1], at_ms=NOON + 9_600))

    with pytest.raises(LostLease):
        await stores.jobs.commit(job, summary("It tells."), reason=None, now_ms=NOON + 9_700)
    in_force, versions = await stores.history.versions(KEY)
    assert in_force == 2
    assert all(version.text != "It tells." for version in versions)


@pytest.mark.proves("G1")
async def test_an_eviction_that_lost_all_its_messages_ends(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    evicted = [
        one.message.message_id
        for one in (await seen(stores)).messages
        if one.message.compaction_id is not None
    ]

    await stores.ingest(retracted(30, *evicted))

    assert [row.status for row in (await seen(stores)).rows] == ["stale"]
    assert await stores.claim(NOON + LEASE_MS) == []
    told = await Asker(stores).told()
    assert told["account"]["total"] == total_of(told) == 14 - len(evicted)


@pytest.mark.proves("G1", "A5")
async def test_a_restored_eviction_brings_back_what_is_not_retracted(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    await write(stores, "The first version.")
    await stores.ingest(retracted(30, "e1#0", at_ms=NOON + 3_000))
    await write(stores, "The second version.", at_ms=NOON + 9_000)

    await stores.versions.restore(
        KEY, CompactionId("1"), installation=stores.installation, now_ms=NOON + 9_500
    )

    told = await Asker(stores).told()
    assert told["summary"] is None
    assert "e1#0" not in told["message_ids"]
    assert told["account"]["total"] == told["account"]["shown"] + told["account"]["folded"] == 13


@pytest.mark.proves("G1", "A5", "L3")
@pytest.mark.parametrize("is_moved", [False, True])
async def test_a_retracted_event_that_moves_does_not_end_the_hold_of_a_restoration(
    stores: Stores, is_moved: bool
) -> None:
    policy = PolicyRequest(overrides={"min_gain_tokens": 400})
    await stores.changes.set_policy(KEY, policy, installation=stores.installation, now_ms=NOON)
    await stores.ingest(*turns(1, 7))
    await write(stores, "The first version.")
    await stores.versions.restore(
        KEY, CompactionId("1"), installation=stores.installation, now_ms=NOON + 3_000
    )
    # Three quarters of the tokens for which the restoration holds.
    moving = turn(40, user("x" * 1_200), event_id="moving")

    await stores.ingest(moving)
    await stores.ingest(retracted(41, "moving#0"))
    if is_moved:
        await stores.ingest(moving._replace(stream_seq=39))
    await stores.ingest(*turns(50, 1))

    assert [row.status for row in (await seen(stores)).rows] == ["restored"]


# --- the past


@pytest.mark.proves("G1", "W6")
async def test_a_window_of_before_shows_it(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    before = await Asker(stores).told(as_of="e7#1")
    version = await write(stores, "The first version.", at_ms=NOON + 1_000)
    covered = await Asker(stores).told(as_of=str(version))

    await stores.ingest(retracted(30, "e1#0", "e7#0", at_ms=NOON + 3_000))

    for as_of, then in (("e7#1", before), (str(version), covered)):
        now = await Asker(stores).told(as_of=as_of)
        for field in ("messages", "message_ids", "summary", "account"):
            assert now[field] == then[field], (as_of, field)
    shown = await Asker(stores).told(as_of="e7#0")
    assert shown["message_ids"][-1] == "e7#0"
    after = await Asker(stores).told(as_of="2027-01-15T08:00:04Z")
    assert "e7#0" not in after["message_ids"]
    assert after["account"]["total"] == total_of(after) == 12


# --- record and erasure


@pytest.mark.proves("A1", "A2")
async def test_an_eviction_that_a_retraction_makes_possible_has_its_time(stores: Stores) -> None:
    waiting = [turn(seq, user("go"), assistant(None, f"c{seq}")) for seq in range(1, 9)]
    await stores.ingest(*waiting)

    await stores.ingest(retracted(30, "e1#1"))

    (row,) = (await stores.seen()).sessions[KEY].rows
    assert (row.messages_evicted, row.evicted_at_ms) == (1, NOON + 30)
    audit = await stores.history.audit(KEY, after=0, limit=100)
    assert [(one.phase, one.at_ms) for one in audit if one.phase == "evicted"] == [
        ("evicted", NOON + 30)
    ]


@pytest.mark.proves("G1", "A1", "A7")
async def test_a_retraction_has_its_audit_row(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    await write(stores, "The first version.")
    await stores.ingest(retracted(30, "e1#0", at_ms=NOON + 3_000))

    rows = await stores.history.audit(KEY, after=0, limit=100)
    (row,) = [row for row in rows if row.phase == "retracted"]
    details = json.loads(row.details)
    assert (details["messages"], details["seq"], details["replaced"]) == (1, 30, 1)
    assert row.tokens_before is not None
    assert row.tokens_after is not None
    assert "e1" not in row.details


@pytest.mark.proves("G1", "A6")
async def test_an_erasure_takes_the_retracted_originals_as_well(stores: Stores) -> None:
    await stores.ingest(*turns(1, 3), retracted(5, "e1#0"))

    await stores.changes.erase(KEY, last_seq=9, now_ms=NOON)

    assert (await stores.seen()).sessions == {}


@pytest.mark.proves("G1", "O9", "S7")
async def test_evictions_that_lost_their_version_are_summarized_in_jobs_of_bounded_size(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seven_versions(stores)
    evicted = await ids(stores, State.COVERED)
    monkeypatch.setattr(rows, "MOST_MESSAGES", 20)

    await stores.ingest(retracted(43, evicted[0]))
    await stores.ingest(*turns(44, 6))
    jobs = await fold(stores)

    late = await ids(stores, State.COVERED)
    assert [one for job in jobs for one in job] == late
    assert len(late) > 40
    assert max(len(job) for job in jobs) <= 20
    assert not (await stores.facts()).pending
    assert (await phases(stores))[-1] == "summary_done"


@pytest.mark.proves("G1", "S4")
async def test_after_a_stand_in_the_rest_of_a_fold_waits_for_the_model(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seven_versions(stores)
    monkeypatch.setattr(rows, "MOST_MESSAGES", 20)
    await stores.ingest(retracted(43, "e1#0"))
    (job,) = await stores.claim(NOON + 1_000)

    stand_in = summary(kind="extractive")
    await stores.jobs.commit(job, stand_in, reason="timeout", now_ms=NOON + 1_000)

    assert await stores.claim(NOON + 1_000 + COOLDOWN_MS - 1) == []
    await fold(stores)
    assert await ids(stores, State.PENDING) == []
