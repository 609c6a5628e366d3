"""Attempts that an error which nobody expected ends: recorded, and not paid for without limit."""

from typing import Any

import pytest

from tests.contract.compact.versions import claimed, override, phases, regenerate, states, write
from tests.store_fixtures import KEY, LEASE_MS, NOON, Stores, summary, turns, words
from turnfold.core.policy.retention import DAY_MS
from turnfold.core.summary.cooldown import COOLDOWN_MS
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import Draft, SummaryJob
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Committed, Outcome, Retry, RolledBack, compact
from turnfold.ports.compact import JobKind

WRITING = SummaryConfig(model="openai/x")
CRASHED = Retry("crashed")


class CrashingModel:
    """A summarizer that crashes after its model was paid; its extracts crash `extracts` times."""

    def __init__(self, *, extracts: int = 0) -> None:
        self.calls = 0
        self._extracts = extracts

    async def summarize(self, job: SummaryJob, *, keep: Any = None) -> Draft:  # noqa: ARG002  # it never writes in parts
        if job.model is not None:
            self.calls += 1
            raise ValueError("nobody thought of this")
        if self._extracts:
            self._extracts -= 1
            raise ValueError("nor of this")
        return extract(job, count=words)


async def attempt(stores: Stores, summarizer: Any, due_ms: int) -> Outcome:
    return await compact(
        await claimed(stores, due_ms),
        store=stores.jobs,
        summarizer=summarizer,
        config=WRITING,
        count=words,
        now_ms=lambda: due_ms,
    )


async def attempts(stores: Stores, summarizer: Any, most: int) -> tuple[list[Outcome], list[int]]:
    """Make attempts when they are due; return their outcomes and the pauses before them, in ms."""
    outcomes: list[Outcome] = []
    pauses: list[int] = []
    before_ms = NOON
    while len(outcomes) < most and (due_ms := await stores.jobs.next_due_ms()) is not None:
        outcomes.append(await attempt(stores, summarizer, due_ms))
        pauses.append(due_ms - before_ms)
        before_ms = due_ms
    return outcomes, pauses


async def crashes_in_audit(stores: Stores) -> int:
    rows = await stores.history.audit(KEY, after=0, limit=1_000)
    return sum(row.reason == "crashed" and row.phase == "attempt_failed" for row in rows)


@pytest.mark.proves("L10", "S7")
async def test_after_three_crashes_a_stand_in_is_written_and_no_model_is_paid_for_it(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    summarizer = CrashingModel()

    outcomes, _ = await attempts(stores, summarizer, 4)

    assert outcomes == [CRASHED, CRASHED, CRASHED, Committed(1, "crashed")]
    assert summarizer.calls == await crashes_in_audit(stores) == 3
    facts = await stores.facts()
    assert facts.summary is not None
    assert facts.summary.kind == "extractive"


@pytest.mark.proves("L10", "S7")
async def test_a_model_that_always_crashes_is_given_up_until_the_next_eviction(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    summarizer = CrashingModel()

    outcomes, _ = await attempts(stores, summarizer, 100)

    # The stand-in, and three jobs of three attempts to replace it.
    assert outcomes[3:] == [
        Committed(1, "crashed"),
        *3 * [CRASHED, CRASHED, RolledBack("crashed")],
    ]
    assert summarizer.calls == 12
    await stores.ingest(*turns(20, 7))
    assert (await claimed(stores, NOON + 100 * LEASE_MS)).cooling is None


@pytest.mark.proves("L10", "S7")
async def test_where_extracts_crash_as_well_the_job_stays_and_rests_for_up_to_an_hour(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    summarizer = CrashingModel(extracts=20)

    outcomes, pauses = await attempts(stores, summarizer, 23)

    assert outcomes == 23 * [CRASHED]
    assert summarizer.calls == 3
    assert 1_800_000 <= pauses[-1] <= 3_600_000
    assert await crashes_in_audit(stores) == 23
    outcomes, _ = await attempts(stores, summarizer, 1)
    assert outcomes == [Committed(1, "crashed")]
    assert "summary_done" in await phases(stores)


@pytest.mark.proves("S7")
async def test_a_model_whose_workers_die_with_its_answers_is_not_paid_a_fourth_time(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    for number in range(3):
        await claimed(stores, NOON + 1_000 + number * LEASE_MS)
    summarizer = CrashingModel()

    outcome = await attempt(stores, summarizer, NOON + 1_000 + 3 * LEASE_MS)

    assert (outcome, summarizer.calls) == (Committed(1, "crashed"), 0)


@pytest.mark.proves("S7", "L10")
@pytest.mark.parametrize("kind", ["planned", "regeneration", "stand-in"])
async def test_other_jobs_whose_workers_die_end_after_three_attempts(
    stores: Stores, kind: str
) -> None:
    if kind == "planned":
        await override(stores, commit="on_summary")
    await stores.ingest(*turns(10, 7))
    if kind == "regeneration":
        await write(stores)
        await regenerate(stores)
    if kind == "stand-in":
        await write(stores, kind="extractive", reason="provider_error")
    now_ms = NOON + 60_000
    for number in range(3):
        await claimed(stores, now_ms + number * LEASE_MS)
    summarizer = CrashingModel()

    outcome = await attempt(stores, summarizer, now_ms + 3 * LEASE_MS)

    assert (outcome, summarizer.calls) == (RolledBack("crashed"), 0)
    assert (await phases(stores))[-1] in {"rejected", "opened"}


@pytest.mark.proves("S7")
async def test_days_whose_tokens_are_spent_use_up_no_attempt(stores: Stores) -> None:
    await override(stores, commit="on_summary", summary_tokens_per_day=10)
    await stores.ingest(*turns(10, 7))
    summarizer = CrashingModel()
    for _ in range(3):
        due_ms = await stores.jobs.next_due_ms() or 0
        await stores.jobs.spend(KEY.agent_id, due_ms // DAY_MS, 50)
        assert await attempt(stores, summarizer, due_ms) == Retry("rate_limited")

    outcomes, _ = await attempts(stores, summarizer, 3)

    assert outcomes == [CRASHED, CRASHED, RolledBack("crashed")]
    assert summarizer.calls == 3


@pytest.mark.proves("L10", "S8")
async def test_a_planned_eviction_whose_summary_crashes_does_not_take_place(
    stores: Stores,
) -> None:
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(10, 7))
    before = await states(stores)

    outcomes, _ = await attempts(stores, CrashingModel(), 3)

    assert outcomes == [CRASHED, CRASHED, RolledBack("crashed")]
    assert await states(stores) == before


@pytest.mark.proves("L10")
async def test_a_regeneration_that_crashes_ends_and_leaves_the_version_in_force(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores)
    await regenerate(stores)

    outcomes, _ = await attempts(stores, CrashingModel(), 3)

    assert outcomes == [CRASHED, CRASHED, RolledBack("crashed")]
    assert (await stores.history.versions(KEY))[0] == 1


@pytest.mark.proves("S4", "S7")
async def test_the_model_replaces_a_stand_in_that_crashes_made_necessary(stores: Stores) -> None:
    await stores.ingest(*turns(10, 7))
    outcomes, _ = await attempts(stores, CrashingModel(), 4)
    assert outcomes[-1] == Committed(1, "crashed")
    due_ms = await stores.jobs.next_due_ms()
    assert due_ms is not None

    job = await claimed(stores, due_ms)
    await stores.jobs.commit(job, summary("by the model"), reason=None, now_ms=due_ms)

    assert due_ms >= NOON + COOLDOWN_MS
    in_force, versions = await stores.history.versions(KEY)
    assert (in_force, versions[1].kind) == (2, "llm")


@pytest.mark.proves("S1", "S7")
async def test_after_a_clock_that_was_ahead_nothing_waits_for_its_times(stores: Stores) -> None:
    ahead_ms = NOON + 30 * DAY_MS
    await stores.ingest(*turns(10, 7))
    left = await claimed(stores, ahead_ms)

    again = await claimed(stores, NOON + 2_000)

    assert (again.compaction_ids, again.attempt) == (left.compaction_ids, 2)
    await stores.jobs.retry_later(
        again, reason="timeout", detail="", retry_at_ms=ahead_ms, now_ms=NOON + 3_000
    )
    last = await claimed(stores, NOON + 4_000)
    stand_in = summary("picked", kind="extractive")
    await stores.jobs.commit(last, stand_in, reason="timeout", now_ms=ahead_ms)
    await stores.ingest(*turns(20, 7))
    evicted = await claimed(stores, NOON + 5_000)
    assert (evicted.writes, evicted.cooling) == (JobKind.NEXT, None)
    await stores.jobs.commit(evicted, stand_in, reason="timeout", now_ms=ahead_ms)
    assert (await claimed(stores, NOON + 6_000)).writes is JobKind.STAND_IN


@pytest.mark.proves("S1", "C49")
async def test_a_job_whose_lease_was_ended_is_due_though_the_clock_was_set_back(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7))
    await stores.jobs.retry_later(
        await claimed(stores), reason="timeout", detail="", retry_at_ms=NOON + 50_000, now_ms=NOON
    )
    first = await claimed(stores, NOON + 50_000)

    await stores.jobs.end_leases()

    assert (await claimed(stores, NOON + 20_000)).fence > first.fence
