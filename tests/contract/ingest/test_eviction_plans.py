"""Compactions that let messages go only when their summary stands, in every store; and those that time and rounds bring about."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.contract.compact.versions import override, phases
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    retracted,
    summary,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.eviction.triggers import SUMMARY_DELAY_MS, FiredTrigger, Trigger
from turnfold.core.summary.cooldown import COOLDOWN_MS
from turnfold.errors import LostLease
from turnfold.messages import AgentId, State
from turnfold.ports.compact import FailureStatus, Job, JobStatus
from turnfold.store.database.session_rows import SessionRow
from turnfold.store.ingest import evict

MINUTE_MS = 60_000


async def change_mode(stores: Stores, mode: Any, key: Any) -> None:
    await stores.changes.set_policy(
        key, PolicyRequest(mode=mode), installation=stores.installation, now_ms=NOON + 3_000
    )


async def restore(stores: Stores, job: Job) -> None:
    await stores.versions.restore(
        KEY, job.compaction_ids[-1], installation=stores.installation, now_ms=NOON + 7_000
    )


async def states(stores: Stores) -> list[State]:
    return [one.state for one in await stores.history.page(KEY, after_position=0, limit=1_000)]


async def planned(stores: Stores, now_ms: int = NOON + 1_000) -> Job:
    """The only job that is due; nothing has left for it."""
    (job,) = await stores.claim(now_ms)
    assert job.planned is not None
    return job


async def carry_out(stores: Stores, job: Job) -> int:
    given = await stores.jobs.load(job, now_ms=NOON + 2_000)
    return await stores.jobs.commit(
        job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 5_000
    )


@pytest.mark.proves("E7")
async def test_with_commit_on_summary_nothing_leaves_before_its_summary_stands(
    stores: Stores,
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))

    job = await planned(stores)
    given = await stores.jobs.load(job, now_ms=NOON + 2_000)

    assert set(await states(stores)) == {State.LIVE}
    assert (await stores.facts()).pending == ()
    assert [one.message.message_id for one in given.evicted][:2] == ["e1#0", "e1#1"]
    assert len(given.evicted) == 10

    await stores.jobs.commit(
        job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 5_000
    )

    assert (await states(stores)).count(State.COVERED) == 10
    assert await phases(stores) == [
        "policy",
        "selective_start",
        "summary_start",
        "evicted",
        "summary_done",
        "selective_done",
    ]
    found = await stores.facts()
    assert found.session is not None
    assert (found.session.live_messages, found.session.version) == (4, 1)


@pytest.mark.proves("E7", "C47")
async def test_what_comes_while_the_summary_is_written_stays(stores: Stores) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    job = await planned(stores)
    given = await stores.jobs.load(job, now_ms=NOON + 2_000)
    await stores.ingest(*turns(8, 3))

    await stores.jobs.commit(
        job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 5_000
    )

    live = [
        one.message_id
        for one in await stores.history.page(KEY, after_position=0, limit=99)
        if one.state is State.LIVE
    ]
    assert live == [f"e{seq}#{index}" for seq in (6, 7, 8, 9, 10) for index in (0, 1)]


@pytest.mark.proves("E7", "X6")
async def test_thousands_of_messages_that_must_stay_are_not_read_for_each_event(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: their trigger fires at each event, and no plan can be opened."""
    await override(stores, commit="on_summary", keep_messages=5_000)
    await stores.ingest(*turns(1, 600))
    read, asked = evict._live, list[int]()

    def counted(connection: Connection, sessions: Sequence[SessionRow]) -> Any:
        asked.append(len(sessions))
        return read(connection, sessions)

    monkeypatch.setattr(evict, "_live", counted)
    for seq in range(601, 617):
        await stores.ingest(turn(seq, user("another")))

    assert sum(asked) <= 8


@pytest.mark.proves("E7", "C28")
async def test_no_second_plan_is_opened_meanwhile(stores: Stores) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    first = await stores.changes.compact_now(
        KEY, installation=stores.installation, now_ms=NOON + 10
    )
    await stores.ingest(*turns(8, 7))

    again = await stores.changes.compact_now(
        KEY, installation=stores.installation, now_ms=NOON + 20
    )

    assert first == again
    assert (await phases(stores)).count("selective_start") == 1


@pytest.mark.proves("E7")
@pytest.mark.parametrize(
    ("ending", "phase"), [(JobStatus.REJECTED, "rejected"), (JobStatus.FAILED, "rollback")]
)
async def test_a_plan_that_fails_leaves_everything_as_it_was(
    stores: Stores, ending: FailureStatus, phase: str
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    before = await stores.facts()
    job = await planned(stores)

    await stores.jobs.fail(job, ending=ending, reason="refused", detail="", now_ms=NOON + 3_000)

    after = await stores.facts()
    assert after.messages == before.messages
    assert (after.summary, after.pending) == (None, ())
    assert phase in (await phases(stores))[-2:]
    notice = json.loads((await stores.outbox.unsent(9))[-1].payload)
    assert (notice["compaction_id"], notice["reason"], notice["next_attempt_at"]) == (
        job.compaction_ids[-1],
        "refused",
        None,
    )


@pytest.mark.proves("E7", "S7", "C31")
async def test_after_failures_a_session_is_left_alone_longer_each_time(stores: Stores) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    waits = []
    for number in range(3):
        due_ms = await stores.jobs.next_due_ms()
        assert due_ms is not None
        job = await planned(stores, due_ms)
        await stores.jobs.fail(
            job, ending=JobStatus.FAILED, reason="timeout", detail="", now_ms=due_ms
        )
        if number:
            await stores.ingest(turn(20 + number, user("still there?"), assistant("yes")))
        again_ms = await stores.jobs.next_due_ms()
        assert again_ms is not None
        waits.append(again_ms - due_ms)

    assert waits == [COOLDOWN_MS, 2 * COOLDOWN_MS, 4 * COOLDOWN_MS]


@pytest.mark.proves("S7", "E7")
async def test_when_the_provider_is_back_a_plan_is_carried_out_without_a_new_turn(
    stores: Stores,
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    asked = await stores.changes.compact_now(
        KEY, installation=stores.installation, now_ms=NOON + 10, actor="key:ALICE"
    )
    first = await planned(stores)
    await stores.jobs.fail(
        first, ending=JobStatus.FAILED, reason="timeout", detail="", now_ms=NOON + 1_000
    )

    assert await stores.jobs.next_due_ms() == NOON + 1_000 + COOLDOWN_MS
    job = await planned(stores, NOON + 1_000 + COOLDOWN_MS)
    assert (job.planned, first.compaction_ids) == (first.planned, (asked,))
    given = await stores.jobs.load(job, now_ms=NOON + 10_000)
    await stores.jobs.commit(
        job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 10_000
    )
    facts = await stores.facts()
    assert (facts.summary is not None, facts.pending) == (True, ())


async def fail(stores: Stores, job: Job, now_ms: int) -> int:
    """Have the provider fail a job; return when its plan is tried again."""
    await stores.jobs.fail(job, ending=JobStatus.FAILED, reason="timeout", detail="", now_ms=now_ms)
    again_ms = await stores.jobs.next_due_ms()
    assert again_ms is not None
    return again_ms


@pytest.mark.proves("E1", "E7")
@pytest.mark.parametrize("change", ["policy", "retraction"])
@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_plan_whose_trigger_fires_no_more_evicts_nothing(
    stores: Stores, change: str, has_failed: bool
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    due_ms = NOON + 1_000
    if has_failed:
        due_ms = await fail(stores, await planned(stores), due_ms)

    if change == "policy":
        await override(stores, max_live_messages=1_000)
    else:
        await stores.ingest(retracted(8, "e6#0", "e6#1", "e7#0", "e7#1"))

    assert await stores.claim(due_ms) == []
    assert await stores.jobs.next_due_ms() is None
    assert (await phases(stores))[-1] == "stale"
    assert set(await states(stores)) == {State.LIVE}
    await override(stores, max_live_messages=4)
    assert (await planned(stores, due_ms)).compaction_ids == ("3" if has_failed else "2",)


@pytest.mark.proves("E1", "E7", "A7")
async def test_a_plan_is_carried_out_by_the_trigger_that_fires_by_then(stores: Stores) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    due_ms = await fail(stores, await planned(stores), NOON + 1_000)

    await override(stores, max_live_messages=0, every_rounds=5)
    job = await planned(stores, due_ms)
    await carry_out(stores, job)

    assert job.planned == FiredTrigger(Trigger.ROUNDS, 0)
    audit = await stores.history.audit(KEY, after=0, limit=100)
    (evicted,) = [json.loads(row.details) for row in audit if row.phase == "evicted"]
    assert (evicted["trigger"], evicted["evicted"]) == ("rounds", 10)
    newest, _ = await stores.inspections.compactions_of(KEY, before=None, limit=9)
    assert newest.trigger == "rounds"


@pytest.mark.proves("E1", "E7")
@pytest.mark.parametrize("is_back", [False, True])
async def test_a_plan_of_an_idle_session_is_tried_again_as_long_as_it_is_idle(
    stores: Stores, is_back: bool
) -> None:
    await override(stores, commit="on_summary", max_live_messages=0, idle_seconds=60)
    await stores.ingest(*turns(1, 7))
    idle_ms = NOON + 7 + MINUTE_MS
    await stores.idle.evict_idle(limit=5, installation=stores.installation, now_ms=idle_ms)
    job = await planned(stores, idle_ms + SUMMARY_DELAY_MS)
    due_ms = await fail(stores, job, idle_ms + SUMMARY_DELAY_MS)

    if is_back:
        await stores.ingest(turn(50, user("back again"), at_ms=due_ms))

    assert [again.planned for again in await stores.claim(due_ms)] == [job.planned] * (not is_back)


@pytest.mark.proves("E7", "C51")
async def test_a_plan_whose_messages_left_otherwise_commits_nothing(stores: Stores) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    job = await planned(stores)
    given = await stores.jobs.load(job, now_ms=NOON + 2_000)
    await override(stores, commit="immediate")

    with pytest.raises(LostLease):
        await stores.jobs.commit(
            job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 5_000
        )

    assert "evicted" in await phases(stores)
    assert (await stores.facts()).summary is None


@pytest.mark.proves("E7", "S1")
async def test_what_has_left_already_is_summarised_before_what_is_only_planned(
    stores: Stores,
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 10)
    await override(stores, commit="immediate")
    (left,) = await stores.claim(NOON + 1_000)
    assert left.planned is None
    await stores.jobs.commit(left, summary(), reason=None, now_ms=NOON + 2_000)

    plan = await planned(stores, NOON + 3_000)

    given = await stores.jobs.load(plan, now_ms=NOON + 3_000)
    assert given.leaving is None
    await stores.jobs.fail(
        plan, ending=JobStatus.STALE, reason=None, detail="", now_ms=NOON + 4_000
    )
    assert (await phases(stores))[-1] == "stale"
    assert await stores.claim(NOON + 10 * MINUTE_MS) == []


@pytest.mark.proves("E6", "E7")
@pytest.mark.parametrize("mode", ["off", "manual"])
@pytest.mark.parametrize("key", [KEY, KEY.agent_id])
@pytest.mark.parametrize("is_running", [False, True])
async def test_a_plan_of_a_session_that_evicts_no_more_by_itself_comes_to_nothing(
    stores: Stores, mode: str, key: Any, is_running: bool
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    job = await planned(stores) if is_running else None
    given = await stores.jobs.load(job, now_ms=NOON + 2_000) if job else None

    await change_mode(stores, mode, key)

    if job and given:
        with pytest.raises(LostLease):
            await stores.jobs.commit(
                job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 5_000
            )
        await stores.jobs.discard(job, now_ms=NOON + 5_000)
    assert await stores.claim(NOON + 6_000) == []
    assert await stores.jobs.next_due_ms() is None
    assert set(await states(stores)) == {State.LIVE}
    assert (await phases(stores))[-1] == "stale"


@pytest.mark.proves("E6", "E7")
@pytest.mark.parametrize("mode", ["off", "manual"])
async def test_a_requested_plan_is_carried_out_unless_the_mode_is_off(
    stores: Stores, mode: str
) -> None:
    await override(stores, commit="on_summary", max_live_messages=0)
    await stores.ingest(*turns(1, 7))
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 10)

    await change_mode(stores, mode, KEY)

    if mode == "off":
        assert await stores.claim() == []
    else:
        await carry_out(stores, await planned(stores))
    assert (State.COVERED in await states(stores)) == (mode == "manual")


@pytest.mark.proves("E7", "A5")
@pytest.mark.parametrize("is_running", [False, True])
async def test_a_plan_does_not_evict_again_what_is_restored(
    stores: Stores, is_running: bool
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(1, 7))
    first = await planned(stores)
    await carry_out(stores, first)
    await stores.ingest(*turns(8, 7))
    job = await planned(stores, NOON + 6_000) if is_running else None
    given = await stores.jobs.load(job, now_ms=NOON + 6_000) if job else None

    await restore(stores, first)

    if job and given:
        with pytest.raises(LostLease):
            await stores.jobs.commit(
                job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 7_500
            )
    assert await stores.claim(NOON + 10 * MINUTE_MS) == []
    assert set(await states(stores)) == {State.LIVE}
    assert "stale" in await phases(stores)
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 8_000)
    await carry_out(stores, await planned(stores, NOON + 9_000))
    assert State.COVERED in await states(stores)


@pytest.mark.proves("E7", "A5")
async def test_a_requested_plan_survives_a_restore(stores: Stores) -> None:
    await override(stores, commit="on_summary", max_live_messages=0)
    jobs = []
    for first_seq in (1, 8):
        await stores.ingest(*turns(first_seq, 7))
        await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 10)
        jobs.append(await planned(stores))
        if first_seq == 1:
            await carry_out(stores, jobs[0])

    await restore(stores, jobs[0])

    again = await planned(stores, NOON + 9_000)
    assert again.compaction_ids == jobs[1].compaction_ids
    await carry_out(stores, again)
    assert State.COVERED in await states(stores)


# --- rounds and silence


@pytest.mark.proves("E1", "C33")
async def test_every_so_many_rounds_the_old_ones_leave(stores: Stores) -> None:
    await override(stores, max_live_messages=0, every_rounds=5)

    await stores.ingest(*turns(1, 20))

    found = await stores.facts()
    assert len(found.pending) == 4
    assert [row.requested_at_ms for row in found.pending] == [NOON + seq for seq in (5, 10, 15, 20)]


@pytest.mark.proves("E1", "I6")
async def test_steps_and_what_machines_say_are_no_rounds(stores: Stores) -> None:
    await override(stores, max_live_messages=0, every_rounds=3)
    steps = [
        message
        for number in range(4)
        for message in (assistant(None, f"c{number}"), tool(f"c{number}"))
    ]
    await stores.ingest(turn(1, user("first"), *steps), turn(2, user("second")))
    await stores.ingest(
        *[turn(seq, user("made by a machine"), is_meta=True) for seq in range(3, 9)]
    )
    assert (await stores.facts()).pending == ()

    await stores.ingest(turn(9, user("third")))

    assert len((await stores.facts()).pending) == 1


@pytest.mark.proves("E1", "C34")
async def test_an_idle_session_is_compacted_and_an_active_one_is_not(stores: Stores) -> None:
    await override(stores, max_live_messages=0, idle_seconds=60)
    await stores.ingest(*turns(1, 7))
    due_ms = NOON + 7 + MINUTE_MS
    assert await stores.idle.next_idle_ms() == due_ms

    assert (
        await stores.idle.evict_idle(limit=5, installation=stores.installation, now_ms=due_ms - 1)
        == 0
    )
    assert (await stores.facts()).pending == ()
    assert (
        await stores.idle.evict_idle(limit=5, installation=stores.installation, now_ms=due_ms) == 1
    )

    (pending,) = (await stores.facts()).pending
    assert pending.requested_at_ms == due_ms
    assert await stores.jobs.next_due_ms() == due_ms + SUMMARY_DELAY_MS
    # Once, until somebody speaks again.
    assert await stores.idle.next_idle_ms() is None
    await stores.ingest(turn(50, user("back again")))
    assert await stores.idle.next_idle_ms() == NOON + 50 + MINUTE_MS


@pytest.mark.proves("E1", "E5", "C34")
async def test_an_idle_session_with_little_to_win_is_left_as_it_is(stores: Stores) -> None:
    await override(stores, max_live_messages=0, idle_seconds=60, min_gain_tokens=100_000)
    await stores.ingest(*turns(1, 7))

    assert (
        await stores.idle.evict_idle(
            limit=5, installation=stores.installation, now_ms=NOON + 10 * MINUTE_MS
        )
        == 1
    )

    assert (await stores.facts()).pending == ()
    assert await stores.idle.next_idle_ms() is None


@pytest.mark.proves("E1")
@pytest.mark.parametrize("key", [KEY, KEY.agent_id])
async def test_a_session_is_idle_by_the_policy_in_force(stores: Stores, key: Any) -> None:
    async def examined(minutes: int) -> int:
        installation, now_ms = stores.installation, NOON + minutes * MINUTE_MS
        return await stores.idle.evict_idle(limit=5, installation=installation, now_ms=now_ms)

    async def change(idle_seconds: int) -> None:
        request = PolicyRequest(overrides={"idle_seconds": idle_seconds})
        await stores.changes.set_policy(
            key, request, installation=stores.installation, now_ms=NOON + MINUTE_MS
        )

    await override(stores, max_live_messages=0)
    await stores.ingest(*turns(1, 7))

    await change(idle_seconds=60)
    await change(idle_seconds=600)
    await examined(minutes=9)
    assert (await stores.facts()).pending == ()
    assert await stores.idle.next_idle_ms() == NOON + 7 + 10 * MINUTE_MS

    await change(idle_seconds=0)
    await examined(minutes=11)
    assert (await stores.facts()).pending == ()
    assert await stores.idle.next_idle_ms() is None

    await change(idle_seconds=300)
    await examined(minutes=11)
    assert len((await stores.facts()).pending) == 1


@pytest.mark.proves("E1")
async def test_the_idle_time_of_an_agent_concerns_a_session_with_a_mode_of_its_own(
    stores: Stores,
) -> None:
    await change_mode(stores, "manual", AgentId("ada"))
    await stores.ingest(*turns(1, 7))
    await override(stores, max_live_messages=0)
    await change_mode(stores, "auto", KEY)

    await stores.changes.set_policy(
        AgentId("ada"),
        PolicyRequest(overrides={"idle_seconds": 60}),
        installation=stores.installation,
        now_ms=NOON + MINUTE_MS,
    )
    await stores.idle.evict_idle(
        limit=5, installation=stores.installation, now_ms=NOON + 3 * MINUTE_MS
    )

    assert len((await stores.facts()).pending) == 1


# --- from the originals again


@pytest.mark.proves("S9", "P5")
async def test_every_so_many_versions_the_originals_are_read_again(stores: Stores) -> None:
    await override(stores, rebuild_every_versions=3)
    depths, read, covered = [], [], []
    for number in range(7):
        await stores.ingest(*turns(1 + 10 * number, 7))
        (job,) = await stores.claim(NOON + 1_000)
        given = await stores.jobs.load(job, now_ms=NOON + 1_000)
        depths.append(given.depth)
        read.append(len(given.evicted))
        assert (given.previous is None) == (given.depth == 1)
        await stores.jobs.commit(
            job, replace(summary(), depth=given.depth), reason=None, now_ms=NOON + 2_000
        )
        covered.append((await states(stores)).count(State.COVERED))

    assert depths == [1, 2, 3, 1, 2, 3, 1]
    assert [read[3], read[6]] == [covered[3], covered[6]]
    assert all(read[number] < covered[number] for number in (1, 2, 4, 5))


@pytest.mark.proves("S9")
async def test_originals_that_are_too_many_are_not_read_again(stores: Stores) -> None:
    # As many as the first version covers: what waits for the second does not count.
    await override(stores, rebuild_every_versions=1, rebuild_max_tokens=65)
    depths = []
    for number in range(3):
        await stores.ingest(*turns(1 + 10 * number, 7))
        (job,) = await stores.claim(NOON + 1_000)
        given = await stores.jobs.load(job, now_ms=NOON + 1_000)
        depths.append(given.depth)
        await stores.jobs.commit(
            job, replace(summary(), depth=given.depth), reason=None, now_ms=NOON + 2_000
        )

    assert depths == [1, 1, 2]
