"""What calls of models leave behind, in every store."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.compact.versions import override, phases, regenerate, three_versions
from tests.store_fixtures import KEY, LEASE_MS, NOON, Stores, summary, turns, words
from turnfold.core.policy.retention import DAY_MS
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.errors import LostLease
from turnfold.messages import AgentId
from turnfold.operations.compact.attempt import SummaryConfig, summary_job, write_version
from turnfold.operations.compact.compact import Committed, compact
from turnfold.ports.compact import Job, JobStatus
from turnfold.store.compact.jobs import rows
from turnfold_worker.loops.compact import Compactor
from turnfold_worker.loops.wakeups import Wakeups
from turnfold_worker.metrics import WorkerMetrics

LATER = NOON + LEASE_MS + 1_001
DAY = 20_000


async def claimed(stores: Stores, now_ms: int = NOON + 1_000) -> Job:
    await stores.ingest(*turns(1, 7))
    (job,) = await stores.claim(now_ms)
    return job


@pytest.mark.proves("S2", "C39")
async def test_an_answer_outlives_the_attempt_that_had_it_with_its_reason(stores: Stores) -> None:
    job = await claimed(stores)
    await stores.jobs.keep(job, ChunkSummary("d1", "An answer.", 5), now_ms=NOON)
    await stores.jobs.keep(job, ChunkSummary("d2", "", 0), now_ms=NOON)
    await stores.jobs.retry_later(job, reason="timeout", detail="", retry_at_ms=NOON, now_ms=NOON)

    await stores.ingest(*turns(8, 7))
    (again,) = await stores.claim(LATER)
    begun = await stores.jobs.begun(again)

    assert len(again.compaction_ids) > len(job.compaction_ids)
    assert dict(begun.parts) == {"d1": "An answer.", "d2": ""}
    assert begun.last_reason == "timeout"


@pytest.mark.proves("S2")
async def test_a_job_begins_with_nothing(stores: Stores) -> None:
    begun = await stores.jobs.begun(await claimed(stores))

    assert (dict(begun.parts), begun.last_reason) == ({}, None)


@pytest.mark.proves("S2")
async def test_answers_go_when_their_version_is_committed(stores: Stores) -> None:
    job = await claimed(stores)
    await stores.jobs.keep(job, ChunkSummary("d1", "An answer.", 5), now_ms=NOON)

    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)

    assert dict((await stores.jobs.begun(job)).parts) == {}


@pytest.mark.proves("S2", "S7")
@pytest.mark.parametrize("kind", ["planned", "stand-in"])
async def test_answers_outlive_a_job_that_is_tried_again_by_another(
    stores: Stores, kind: str
) -> None:
    if kind == "planned":
        await override(stores, commit="on_summary")
    job = await claimed(stores)
    await stores.jobs.keep(job, ChunkSummary("d1", "An answer.", 5), now_ms=NOON)
    if kind == "stand-in":
        stand_in = summary(kind="extractive")
        await stores.jobs.commit(job, stand_in, reason="timeout", now_ms=NOON + 1_000)
        (job,) = await stores.claim(await stores.jobs.next_due_ms() or 0)
    await stores.jobs.fail(
        job, ending=JobStatus.FAILED, reason="timeout", detail="", now_ms=NOON + 1_000
    )

    (again,) = await stores.claim(await stores.jobs.next_due_ms() or 0)

    assert again.compaction_ids != job.compaction_ids
    assert dict((await stores.jobs.begun(again)).parts) == {"d1": "An answer."}
    await stores.jobs.fail(again, ending=JobStatus.STALE, reason=None, detail="", now_ms=LATER)
    assert dict((await stores.jobs.begun(again)).parts) == {}


@pytest.mark.proves("S2")
async def test_answers_for_a_part_of_a_regeneration_go_with_the_part(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_versions(stores)
    await regenerate(stores)
    monkeypatch.setattr(rows, "MOST_MESSAGES", 1)
    (job,) = await stores.claim(NOON + 9_000)
    await stores.jobs.keep(job, ChunkSummary("d1", "An answer.", 5), now_ms=NOON + 9_000)

    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 9_000)

    (following,) = await stores.claim(NOON + 9_000)
    assert following.compaction_ids == job.compaction_ids
    assert dict((await stores.jobs.begun(following)).parts) == {}


@pytest.mark.proves("S1", "S2", "C49")
async def test_nobody_keeps_an_answer_for_a_job_that_is_somebody_elses(stores: Stores) -> None:
    job = await claimed(stores)
    (other,) = await stores.claim(LATER)

    with pytest.raises(LostLease):
        await stores.jobs.keep(job, ChunkSummary("d1", "An answer.", 5), now_ms=NOON)

    assert dict((await stores.jobs.begun(other)).parts) == {}


@pytest.mark.proves("S7", "L12")
async def test_tokens_add_up_for_one_agent_and_one_day(stores: Stores) -> None:
    ada, bob = AgentId("ada"), AgentId("bob")

    assert await stores.jobs.spent(ada, DAY) == 0
    assert await stores.jobs.spend(ada, DAY, 40) == 40
    assert await stores.jobs.spend(ada, DAY, 2) == 42
    await stores.jobs.spend(bob, DAY, 7)
    await stores.jobs.spend(ada, DAY + 1, 1)

    assert await stores.jobs.spent(ada, DAY) == 42
    assert await stores.jobs.spent(bob, DAY) == 7


@pytest.mark.proves("A6", "S2")
async def test_an_erased_session_leaves_no_answers_and_takes_none(stores: Stores) -> None:
    job = await claimed(stores)
    await stores.jobs.keep(job, ChunkSummary("d1", "An answer.", 5), now_ms=NOON)

    await stores.changes.erase(KEY, last_seq=100, now_ms=NOON)

    assert dict((await stores.jobs.begun(job)).parts) == {}
    with pytest.raises(LostLease):
        await stores.jobs.keep(job, ChunkSummary("d2", "Another.", 5), now_ms=NOON)


@pytest.mark.proves("A6")
async def test_an_erased_agent_has_spent_nothing(stores: Stores) -> None:
    await claimed(stores)
    await stores.jobs.spend(KEY.agent_id, DAY, 7)
    await stores.jobs.spend(AgentId("bob"), DAY, 8)

    await stores.changes.erase(KEY.agent_id, last_seq=100, now_ms=NOON)

    assert await stores.jobs.spent(KEY.agent_id, DAY) == 0
    assert await stores.jobs.spent(AgentId("bob"), DAY) == 8


async def kept_nowhere(_: ChunkSummary) -> None:
    """Nobody keeps parts."""


class OnePart:
    """A summarizer whose model has answered one part of a long input."""

    async def summarize(
        self, job: SummaryJob, *, keep: Callable[[ChunkSummary], Awaitable[None]] = kept_nowhere
    ) -> Draft:
        assert job.model == "openai/x"
        await keep(ChunkSummary("d1", "An answer.", 7))
        raise AssertionError("the lease was lost")


@pytest.mark.proves("S2", "C49")
async def test_an_answer_that_nobody_may_keep_was_paid_for_all_the_same(stores: Stores) -> None:
    job = await claimed(stores)
    asked = summary_job(
        job, await stores.jobs.load(job, now_ms=NOON), "openai/x", SummaryConfig(model="openai/x")
    )
    await stores.claim(LATER)

    with pytest.raises(LostLease):
        await write_version(
            asked, job, store=stores.jobs, summarizer=OnePart(), now_ms=lambda: DAY * DAY_MS
        )

    assert await stores.jobs.spent(KEY.agent_id, DAY) == 7


@pytest.mark.proves("S1", "S7")
async def test_a_machine_that_slept_while_a_model_writes_does_not_call_it_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, calls = [NOON + 1_000], 0
    has_begun, may_end = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr("turnfold_worker.loops.compact.now_ms", lambda: now[0])

    class SlowModel:
        async def summarize(self, job: SummaryJob, *, keep: Any = None) -> Draft:  # noqa: ARG002  # it never writes in parts
            nonlocal calls
            calls += 1
            has_begun.set()
            await may_end.wait()
            return summary().draft

    context: Any = SimpleNamespace(
        summarizer=SlowModel(),
        summary_config=SummaryConfig(model="openai/x"),
        installation=stores.installation,
        settings=SimpleNamespace(summary_concurrency=4),
        telemetry=SimpleNamespace(metrics=WorkerMetrics()),
    )
    wakeups = Wakeups()
    compactor = Compactor(context, store=stores.jobs, wakeups=wakeups, is_busy=lambda: False)
    await stores.ingest(*turns(10, 7))

    await compactor.work()
    async with asyncio.timeout(20):
        await has_begun.wait()
    now[0] += 7 * DAY_MS
    await compactor.work()

    wakeups.compactor.clear()
    may_end.set()
    async with asyncio.timeout(20):
        await wakeups.compactor.wait()
    said = await phases(stores)
    assert (said.count("summary_start"), said.count("summary_done"), calls) == (1, 1, 1)


@pytest.mark.proves("A1")
async def test_the_latency_of_a_version_is_no_difference_of_clocks_that_may_jump(
    stores: Stores,
) -> None:
    now = [NOON + 9 * DAY_MS]

    class Model:
        async def summarize(self, job: SummaryJob, *, keep: Any = None) -> Draft:  # noqa: ARG002  # it never writes in parts
            now[0] = NOON + 2_000
            return summary().draft

    outcome = await compact(
        await claimed(stores, now[0]),
        store=stores.jobs,
        summarizer=Model(),
        config=SummaryConfig(model="openai/x"),
        count=words,
        now_ms=lambda: now[0],
    )

    assert isinstance(outcome, Committed)
    assert outcome.made is not None
    assert outcome.made.seconds is not None
    assert 0 <= outcome.made.seconds < DAY_MS
