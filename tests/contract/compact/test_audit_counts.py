"""The figures of the audit, in every store: before and after of each row are of one moment, and a row counts what was there then."""

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from tests.store_fixtures import KEY, NOON, Stores, assistant, result, summary, turn, turns, user
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.ports.compact import Job, JobStatus
from turnfold.ports.query import (
    AuditRow,
)

COUNTS = (
    "evicted",
    "kept",
    "blocks_kept",
    "blocks_dropped",
    "calls",
    "calls_kept",
    "results",
    "results_kept",
)


async def by_phase(stores: Stores) -> dict[str, AuditRow]:
    return {row.phase: row for row in await stores.history.audit(KEY, after=0, limit=100)}


def tokens(row: AuditRow) -> tuple[int | None, int | None]:
    return row.tokens_before, row.tokens_after


def details(row: AuditRow) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(row.details)
    return said


async def window(stores: Stores) -> int:
    """What live messages and the summary in force count now."""
    facts = await stores.facts()
    assert facts.session is not None
    return facts.session.live_tokens + (facts.summary.tokens if facts.summary else 0)


async def the_job(stores: Stores) -> Job:
    (job,) = await stores.claim()
    return job


async def commit_on_summary(stores: Stores) -> None:
    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"commit": "on_summary"}),
        installation=stores.installation,
        now_ms=NOON,
    )


@pytest.mark.proves("A1", "A7")
async def test_messages_that_come_while_a_summary_is_written_count_on_both_sides_or_on_none(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7))
    found = (await stores.facts()).session
    assert found is not None
    all_tokens = found.tokens_total
    left = await window(stores)
    job = await the_job(stores)
    await stores.ingest(*turns(8, 2))
    grown = await window(stores)

    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 5_000)

    rows = await by_phase(stores)
    assert tokens(rows["evicted"]) == (all_tokens, left)
    assert (
        tokens(rows["summary_done"])
        == (grown, await window(stores))
        == (grown, grown + summary().tokens)
    )
    notice = json.loads((await stores.outbox.unsent(9))[-1].payload)
    assert (notice["tokens_before"], notice["tokens_after"]) == (all_tokens, await window(stores))


@pytest.mark.proves("A1", "A7", "E7")
async def test_what_leaves_with_its_summary_is_counted_as_it_leaves(stores: Stores) -> None:
    await commit_on_summary(stores)
    calls = [
        turn(1, user("go on"), assistant(None, "a", "b")),
        result(2, "a", "found"),
        result(3, "b", "found"),
    ]
    newest = [turn(20, user("and now"), assistant(None, "c", "d")), result(21, "c", "found")]
    await stores.ingest(*calls, *turns(4, 6))
    job = await the_job(stores)
    given = await stores.jobs.load(job, now_ms=NOON + 2_000)
    assert given.leaving is not None
    await stores.ingest(*newest)
    before = await window(stores)

    await stores.jobs.commit(
        job, summary(), leaving=given.leaving, reason=None, now_ms=NOON + 5_000
    )

    rows = await by_phase(stores)
    after = await window(stores)
    assert tokens(rows["evicted"]) == (before, after - summary().tokens)
    assert tokens(rows["summary_done"]) == (after - summary().tokens, after)
    assert tokens(rows["selective_done"]) == (before, after)
    assert [details(rows["evicted"])[name] for name in COUNTS] == [12, 7, 6, 10, 2, 2, 2, 1]
    assert rows["evicted"].at_ms == NOON + 5_000
    assert {
        details(rows[phase])["model"] for phase in ("evicted", "summary_done", "selective_done")
    } == {summary().draft.model}


@pytest.mark.proves("A1", "A7")
async def test_each_eviction_of_a_batch_counts_what_was_there_at_its_event(stores: Stores) -> None:
    await stores.ingest(*turns(1, 14))

    evicted = [
        row for row in await stores.history.audit(KEY, after=0, limit=100) if row.phase == "evicted"
    ]

    assert [[details(row)[name] for name in COUNTS] for row in evicted] == [
        [10, 4, 4, 10, 0, 0, 0, 0]
    ] * 2
    assert [details(row)["model"] for row in evicted] == [None, None]


@pytest.mark.proves("A1", "A7")
async def test_an_attempt_that_failed_names_the_model_that_was_to_write(stores: Stores) -> None:
    await commit_on_summary(stores)
    await stores.ingest(*turns(1, 7))
    job = await the_job(stores)
    await stores.jobs.retry_later(
        job,
        reason="timeout",
        detail="",
        retry_at_ms=NOON + 900,
        now_ms=NOON + 900,
        model="test/writer",
    )
    job = await the_job(stores)

    await stores.jobs.fail(
        job,
        ending=JobStatus.FAILED,
        reason="timeout",
        detail="",
        now_ms=NOON + 3_000,
        model="test/writer",
    )

    rows = await by_phase(stores)
    assert [details(rows[phase])["model"] for phase in ("attempt_failed", "rollback")] == [
        "test/writer"
    ] * 2


@pytest.mark.proves("A1")
async def test_of_a_page_that_a_provider_returns_as_its_error_the_audit_keeps_the_first_300_characters(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7))
    page = "<html>" + "".join(f"<p>Error {number}.</p>" for number in range(100))

    await stores.jobs.retry_later(
        await the_job(stores),
        reason="provider_error",
        detail=page,
        retry_at_ms=NOON + 900,
        now_ms=NOON + 900,
    )

    rows = await by_phase(stores)
    assert details(rows["attempt_failed"])["detail"] == page[:300]


async def waiting_for_locks(database: asyncpg.Connection, number: int) -> None:
    """Return when so many transactions wait for a locked row."""
    waiting = (
        f"SELECT count(*) >= {number} FROM pg_locks"
        " WHERE locktype IN ('transactionid', 'tuple') AND NOT granted"
    )
    async with asyncio.timeout(20):
        while not await database.fetchval(waiting):  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.proves("A1", "A7")
@pytest.mark.parametrize("shared_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("versions", [0, 1])
async def test_an_eviction_that_waited_for_a_new_version_counts_its_summary(
    stores: Stores, store_url: str, versions: int
) -> None:
    await stores.ingest(*turns(1, 7))
    for _ in range(versions):
        await stores.jobs.commit(await the_job(stores), summary(), reason=None, now_ms=NOON + 2_000)
        await stores.ingest(*turns(8, 5))
    job = await the_job(stores)
    database = await asyncpg.connect(store_url.replace("+asyncpg", ""))
    async with database.transaction():
        await database.execute("SELECT 1 FROM sessions FOR UPDATE")
        committing = asyncio.create_task(
            stores.jobs.commit(job, summary("A longer text."), reason=None, now_ms=NOON + 5_000)
        )
        await waiting_for_locks(database, 1)
        evicting = asyncio.create_task(stores.ingest(*turns(20, 5)))
        await waiting_for_locks(database, 2)
    await asyncio.gather(committing, evicting)
    await database.close()

    evicted = [
        row for row in await stores.history.audit(KEY, after=0, limit=100) if row.phase == "evicted"
    ][-1]
    after = await window(stores)
    job = await the_job(stores)
    assert tokens(evicted) == (after + job.tokens_evicted, after)
    assert job.summary_tokens == summary("A longer text.").tokens
