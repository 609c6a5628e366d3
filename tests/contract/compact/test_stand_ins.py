"""Extractive summaries that stand in for a model's until it is back."""

import asyncio
from typing import Any

import pytest

from tests.contract.compact.versions import (
    OTHER,
    claimed,
    compaction_of,
    ids,
    phases,
    read,
    restore,
    three_versions,
    write,
)
from tests.store_fixtures import KEY, LEASE_MS, NOON, Stores, retracted, summary, turns, words
from turnfold.core.summary.cooldown import COOLDOWN_MS
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import Draft, SummaryJob
from turnfold.errors import LostLease, SummarizerError
from turnfold.messages import State
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Committed, Outcome, Retry, compact
from turnfold.ports.compact import JobKind, JobStatus


@pytest.mark.proves("S4", "S7", "C33")
async def test_a_stand_in_is_written_by_the_model_when_it_is_back_without_a_new_turn(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason="timeout")

    assert await stores.jobs.next_due_ms() == NOON + 1_000 + COOLDOWN_MS
    job = await claimed(stores, NOON + 1_000 + COOLDOWN_MS)

    assert (job.writes, job.base_version) == (JobKind.STAND_IN, 1)
    given = await stores.jobs.load(job, now_ms=NOON + 10_000)
    assert given.previous is None
    assert len(given.evicted) == 10
    number = await stores.jobs.commit(job, summary("written"), reason=None, now_ms=NOON + 10_000)
    in_force, versions = await stores.history.versions(KEY)
    assert (number, in_force, versions[1].kind, versions[1].messages_covered) == (2, 2, "llm", 10)
    assert await stores.claim(NOON + 100 * LEASE_MS) == []


@pytest.mark.proves("S7", "A1")
async def test_while_the_model_rests_it_is_not_asked_and_nobody_waits_for_it(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason="timeout")
    await stores.ingest(*turns(20, 7))

    counts = await stores.history.counts(KEY)
    assert (counts.failures, counts.cooldown_until_ms, counts.cooldown_reason) == (
        1,
        NOON + 1_000 + COOLDOWN_MS,
        "timeout",
    )
    job = await claimed(stores, NOON + 2_000)

    assert (job.writes, job.cooling) == (JobKind.NEXT, "timeout")
    assert await read(stores, job, by_model=False) == await ids(stores, State.PENDING) != []
    await stores.jobs.commit(
        job, summary("picked too", kind="extractive"), reason="timeout", now_ms=NOON + 2_000
    )
    # The pause is the same: nothing was tried. What was to rewrite the first stand-in rewrites the second.
    assert await stores.jobs.next_due_ms() == NOON + 1_000 + COOLDOWN_MS
    again = await claimed(stores, NOON + 1_000 + COOLDOWN_MS)
    assert (again.writes, again.base_version) == (JobKind.STAND_IN, 2)
    assert await read(stores, again) == await ids(stores, State.COVERED)


@pytest.mark.proves("S4", "S7")
async def test_what_lost_its_version_waits_for_the_model_also_when_more_is_evicted_meanwhile(
    stores: Stores,
) -> None:
    await three_versions(stores)
    await stores.ingest(*turns(40, 7))
    await write(stores, "picked", at_ms=NOON + 4_000, kind="extractive", reason="timeout")
    back_ms = NOON + 4_000 + COOLDOWN_MS
    await stores.ingest(retracted(50, "e10#0", at_ms=NOON + 5_000))
    lost = await ids(stores, State.PENDING)
    await stores.ingest(*turns(60, 7))
    evicted = [one for one in await ids(stores, State.PENDING) if one not in lost]

    job = await claimed(stores, NOON + 6_000)
    assert await read(stores, job, by_model=False) == evicted != []
    await stores.jobs.commit(
        job, summary("picked", kind="extractive"), reason=job.cooling, now_ms=NOON + 6_000
    )

    assert await stores.claim(back_ms - 1) == []
    job = await claimed(stores, back_ms)
    assert await read(stores, job) == [*lost, *evicted]
    await stores.jobs.commit(job, summary("by the model"), reason=None, now_ms=back_ms)
    assert await ids(stores, State.PENDING) == []
    assert await stores.jobs.next_due_ms() is None


@pytest.mark.proves("S7", "S4")
async def test_the_pauses_double_while_the_model_stays_away(stores: Stores) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason="provider_error")
    waits = []
    now_ms = NOON + 1_000
    for _ in range(8):
        due_ms = await stores.jobs.next_due_ms()
        assert due_ms is not None
        waits.append((due_ms - now_ms) // 1_000)
        now_ms = due_ms
        job = await claimed(stores, now_ms)
        await stores.jobs.fail(
            job, ending=JobStatus.FAILED, reason="provider_error", detail="", now_ms=now_ms
        )

    assert waits == [8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.proves("S7", "S5")
@pytest.mark.parametrize("is_away_first", [False, True])
async def test_a_model_whose_answers_are_refused_is_not_asked_for_ever(
    stores: Stores, is_away_first: bool
) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason="refused")
    asked = 0
    away = 5 if is_away_first else 0
    while (due_ms := await stores.jobs.next_due_ms()) is not None:
        asked += 1
        await stores.jobs.fail(
            await claimed(stores, due_ms),
            ending=JobStatus.FAILED if asked <= away else JobStatus.REJECTED,
            reason="timeout" if asked <= away else "refused",
            detail="",
            now_ms=due_ms,
        )

    assert asked - away == 3
    await stores.ingest(*turns(20, 7))
    assert (await claimed(stores, NOON + 100 * LEASE_MS)).cooling is None


@pytest.mark.proves("S4", "S9")
async def test_a_model_builds_on_originals_where_only_stand_ins_speak_and_on_the_last_version_of_a_model(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "by the model", at_ms=NOON + 1_000)
    for number in (2, 3):
        await stores.ingest(*turns(10 * number, 7))
        await write(
            stores,
            f"picked {number}",
            at_ms=NOON + 1_000 * number,
            kind="extractive",
            reason="timeout",
        )
    await stores.ingest(*turns(40, 7))

    job = await claimed(stores, NOON + 9_000 + COOLDOWN_MS)

    assert (job.writes, job.base_version, job.cooling) == (JobKind.NEXT, 3, None)
    given = await stores.jobs.load(job, now_ms=NOON + 9_000)
    assert given.previous is not None
    assert given.previous.text == "by the model"
    assert (
        given.evicted[0].message.message_id,
        given.evicted[-1].message.message_id,
        given.depth,
    ) == (
        "e15#0",
        (await ids(stores, State.PENDING))[-1],
        2,
    )
    picked = await stores.jobs.load(job, now_ms=NOON + 9_000, by_model=False)
    assert picked.previous is not None
    assert picked.previous.text == "picked 3"


@pytest.mark.proves("S8", "L10")
async def test_a_stand_in_is_not_rewritten_when_another_version_took_force(stores: Stores) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason="timeout")
    slow = await claimed(stores, NOON + 1_000 + COOLDOWN_MS)
    await stores.ingest(*turns(20, 7))
    assert await stores.claim(NOON + 1_000 + COOLDOWN_MS) == []
    newer = await claimed(stores, NOON + 1_000 + COOLDOWN_MS + LEASE_MS)
    await stores.jobs.commit(newer, summary("by another worker"), reason=None, now_ms=NOON + 90_000)

    with pytest.raises(LostLease):
        await stores.jobs.commit(slow, summary("too late"), reason=None, now_ms=NOON + 90_001)
    await stores.jobs.discard(slow, now_ms=NOON + 90_001)

    assert (await stores.history.versions(KEY))[0] == 2
    assert (await phases(stores))[-1] == "stale"


@pytest.mark.proves("S4", "A5")
@pytest.mark.parametrize("is_retracted", [False, True])
@pytest.mark.parametrize("reason", ["timeout", None])
async def test_a_stand_in_that_takes_force_again_is_written_by_the_model(
    stores: Stores, is_retracted: bool, reason: str | None
) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason=reason)
    first = await ids(stores, State.COVERED)
    await stores.ingest(*turns(20, 7))
    await write(stores, "by the model", at_ms=NOON + 2_000 + COOLDOWN_MS)
    later_ms = NOON + 5_000 + COOLDOWN_MS
    if is_retracted:
        second = [one for one in await ids(stores, State.COVERED) if one not in first]
        await stores.ingest(retracted(40, *second, at_ms=later_ms))
    else:
        await restore(stores, await compaction_of(stores, 2), now_ms=later_ms)

    assert (await stores.history.versions(KEY))[0] == 1
    # Where no model is to write, an extractive version stands in for nothing.
    assert await stores.jobs.next_due_ms() == (later_ms if reason else None)
    if reason is not None:
        job = await claimed(stores, later_ms)
        assert (job.writes, await read(stores, job)) == (JobKind.STAND_IN, first)


class DiesThrice:
    """A summariser whose process dies at its first three jobs."""

    def __init__(self) -> None:
        self.jobs = 0

    async def summarize(self, job: SummaryJob, *, keep: Any = None) -> Draft:  # noqa: ARG002  # it never writes in parts
        self.jobs += 1
        if self.jobs <= 3:
            raise SummarizerError("provider_error", "the summariser ended")
        return extract(job, count=words)


class NeverEnds:
    """A summariser that begins, and writes for ever."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    async def summarize(self, job: SummaryJob, *, keep: Any = None) -> Draft:  # noqa: ARG002  # it never writes in parts
        self.has_begun.set()
        await asyncio.Event().wait()
        raise AssertionError(job)


@pytest.mark.proves("S1", "O2")
async def test_an_attempt_that_is_cancelled_is_due_again_at_once(stores: Stores) -> None:
    await stores.ingest(*turns(10, 7))
    (job,) = await stores.claim(now_ms := await stores.jobs.next_due_ms() or 0)
    summarizer = NeverEnds()
    writing = asyncio.create_task(
        compact(
            job,
            store=stores.jobs,
            summarizer=summarizer,
            config=SummaryConfig(),
            count=words,
            now_ms=lambda: now_ms,
        )
    )
    await summarizer.has_begun.wait()
    assert await stores.claim(now_ms) == []

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    (again,) = await stores.claim(now_ms)
    assert (again.compaction_ids, again.fence > job.fence) == (job.compaction_ids, True)


@pytest.mark.proves("S4", "S7")
async def test_where_no_model_writes_nothing_stands_in_for_one(stores: Stores) -> None:
    await stores.ingest(*turns(10, 7))
    summarizer = DiesThrice()

    async def attempt() -> Outcome:
        due_ms = await stores.jobs.next_due_ms() or 0
        (job,) = await stores.claim(due_ms)
        return await compact(
            job,
            store=stores.jobs,
            summarizer=summarizer,
            config=SummaryConfig(),
            count=words,
            now_ms=lambda: due_ms,
        )

    outcomes = [await attempt() for _ in range(3)]

    assert outcomes == [
        Retry("provider_error"),
        Retry("provider_error"),
        Committed(1, None),
    ]
    assert await stores.jobs.next_due_ms() is None
    assert (await stores.history.counts(KEY)).failures == 0


@pytest.mark.proves("S7", "V1")
async def test_an_outage_counts_as_one_failure_however_often_a_stand_in_is_tried_again(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason="timeout")
    due_ms: int | None = NOON + 1_000 + COOLDOWN_MS
    for _ in range(3):
        assert due_ms is not None
        job = await claimed(stores, due_ms)
        await stores.jobs.fail(
            job, ending=JobStatus.FAILED, reason="timeout", detail="no", now_ms=due_ms
        )
        due_ms = await stores.jobs.next_due_ms()

    totals = await stores.inspections.totals(None)
    listed = await stores.inspections.compactions("failed", agent_ids=None, limit=9)

    assert (totals.compactions_failed, len(listed)) == (1, 1)
    assert due_ms is not None
    job = await claimed(stores, due_ms)
    await stores.jobs.commit(job, summary("written"), reason=None, now_ms=due_ms)
    assert (await stores.inspections.totals(None)).compactions_failed == 0


@pytest.mark.proves("S7", "V1")
async def test_only_another_stand_in_of_its_session_takes_the_place_of_a_failed_one(
    stores: Stores,
) -> None:
    async def fail_all(now_ms: int) -> None:
        for job in await stores.claim(now_ms):
            await stores.jobs.fail(
                job, ending=JobStatus.FAILED, reason="refused", detail="no", now_ms=now_ms
            )

    # An eviction fails before the stand-in of one session, and one after that of the other, whose
    # compactions have smaller numbers.
    await stores.ingest(*turns(10, 7, key=OTHER))
    await fail_all(NOON + 1_000)
    await stores.ingest(*turns(20, 7, key=OTHER), *turns(30, 7))
    for job in await stores.claim(NOON + 2_000):
        draft = summary("picked", kind="extractive")
        await stores.jobs.commit(job, draft, reason="timeout", now_ms=NOON + 2_000)
    await fail_all(NOON + 2_000 + COOLDOWN_MS)
    await stores.ingest(*turns(40, 7))
    await fail_all(NOON + 3_000 + COOLDOWN_MS)

    listed = await stores.inspections.compactions("failed", agent_ids=None, limit=9)

    assert sorted((row.session_id, row.ordinal, row.trigger) for row in listed) == [
        ("s-1", 2, "stand_in"),
        ("s-1", 4, "messages"),
        ("s-2", 1, "messages"),
        ("s-2", 3, "stand_in"),
    ]
    assert (await stores.inspections.totals(None)).compactions_failed == len(listed)
