"""Compactions as durable jobs, in every store."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import pytest

from tests.contract.compact.versions import claimed
from tests.store_fixtures import (
    KEY,
    LEASE_MS,
    NOON,
    Stores,
    assistant,
    places,
    result,
    summary,
    tool,
    turn,
    turns,
    user,
    words,
)
from turnfold.core.eviction.triggers import SUMMARY_DELAY_MS
from turnfold.core.summary.source_messages import sources_of
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.errors import LostLease
from turnfold.messages import AgentId, SessionId, SessionKey, State
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Committed, compact
from turnfold.ports.compact import Job
from turnfold.store.compact.jobs import rows

LATER = NOON + LEASE_MS + 1


async def commit(stores: Stores, job: Job, text: str = "They spoke.", *ledger: str) -> int:
    return await stores.jobs.commit(job, summary(text, *ledger), reason=None, now_ms=NOON + 5_000)


async def give_back(stores: Stores, job: Job, retry_at_ms: int = LATER) -> None:
    await stores.jobs.retry_later(
        job, reason="timeout", detail="no answer", retry_at_ms=retry_at_ms, now_ms=NOON + 5_000
    )


async def kept_nowhere(_: ChunkSummary) -> None:
    """Keep no part of a version."""


# --- claims


@pytest.mark.proves("S1")
async def test_a_claimed_job_is_nobody_elses(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))

    job = await claimed(stores)

    assert (job.key, job.attempt, job.base_version, len(job.compaction_ids)) == (KEY, 1, None, 1)
    assert await stores.claim(NOON + 2_000) == []


@pytest.mark.proves("O4")
async def test_a_job_says_which_events_set_it_off_and_what_left_for_it(stores: Stores) -> None:
    traces = [f"00-{seq:032x}-{seq:016x}-01" for seq in range(1, 15)]
    await stores.ingest(
        *[
            arrival._replace(trace=trace)
            for arrival, trace in zip(turns(1, 14), traces, strict=True)
        ]
    )

    job = await claimed(stores)

    given = await stores.jobs.load(job, now_ms=NOON + 1_000)
    assert len(job.traces) == len(job.compaction_ids) > 1
    assert [one for one in traces if one in job.traces] == list(job.traces)
    assert job.tokens_evicted == sum(one.message.tokens for one in given.evicted)
    assert job.summary_tokens == 0
    await commit(stores, job)
    await stores.ingest(*turns(15, 14))
    assert (again := await claimed(stores, LATER)).summary_tokens == summary("They spoke.").tokens
    assert again.traces == ()


@pytest.mark.proves("S1", "C48")
async def test_workers_that_claim_at_once_get_each_job_once(stores: Stores) -> None:
    for number in range(3):
        key = SessionKey(KEY.agent_id, SessionId(f"s-{number}"))
        await stores.ingest(
            *[turn(100 * number + seq, user("q"), assistant("a"), key=key) for seq in range(1, 8)]
        )

    found = await asyncio.gather(*(stores.claim(NOON + 1_000) for _ in range(4)))

    assert sorted(job.key.session_id for jobs in found for job in jobs) == ["s-0", "s-1", "s-2"]


@pytest.mark.proves("S1")
async def test_a_job_takes_all_pending_rows_of_its_session_in_order(stores: Stores) -> None:
    await stores.ingest(*turns(1, 20))
    pending = [row.compaction_id for row in (await stores.facts()).pending]

    job = await claimed(stores)

    assert list(job.compaction_ids) == pending
    assert len(pending) > 1


@pytest.mark.proves("S1", "O9")
async def test_a_backlog_is_summarized_in_jobs_of_bounded_size(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stores.ingest(*turns(1, 20))
    pending = [row.compaction_id for row in (await stores.facts()).pending]
    monkeypatch.setattr(rows, "MOST_MESSAGES", 1)

    jobs: list[Job] = []
    for number in range(len(pending)):
        jobs.append(await claimed(stores, NOON + 1_000))
        await commit(stores, jobs[-1], f"Version {number}.")

    assert [job.compaction_ids for job in jobs] == [(row,) for row in pending]
    assert len(pending) > 1
    assert not (await stores.facts()).pending


@pytest.mark.proves("S7", "O9")
async def test_a_failed_part_of_a_backlog_delays_the_rest(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stores.ingest(*turns(1, 20))
    monkeypatch.setattr(rows, "MOST_TOKENS", 1)

    await give_back(stores, await claimed(stores), NOON + 9_000)

    assert await stores.jobs.next_due_ms() == NOON + 9_000
    assert await stores.claim(NOON + 8_999) == []
    again = await claimed(stores, NOON + 9_000)
    assert (again.attempt, len(again.compaction_ids)) == (2, 1)


@pytest.mark.proves("S1", "S7", "X6")
async def test_no_more_jobs_are_taken_than_asked_for_and_the_oldest_of_each_agent_first(
    stores: Stores,
) -> None:
    for agent, number in (("bob", 3), ("ada", 2), ("ada", 1)):
        await stores.ingest(
            *turns(100 * number, 7, key=SessionKey(AgentId(agent), SessionId(f"s-{number}")))
        )

    taken = [
        await stores.jobs.claim(
            places(most), lease_ms=LEASE_MS, now_ms=NOON + 1_000, installation=stores.installation
        )
        for most in (2, 1, 1)
    ]

    # A session that a worker holds takes the place of no other.
    sessions = [[job.key.session_id for job in jobs] for jobs in taken]
    assert sessions == [["s-1", "s-3"], ["s-2"], []]


@pytest.mark.proves("S1", "C49")
async def test_a_dead_workers_job_is_continued_when_its_lease_ends(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    first = await claimed(stores, NOON + 1_000)
    assert await stores.claim(NOON + 1_000 + LEASE_MS - 1) == []

    second = await claimed(stores, NOON + 1_000 + LEASE_MS)

    assert second.compaction_ids == first.compaction_ids
    assert (second.attempt, second.fence > first.fence) == (2, True)


@pytest.mark.proves("S1")
async def test_a_renewed_lease_holds_longer(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    job = await claimed(stores, NOON + 1_000)

    await stores.jobs.renew(job, lease_ms=LEASE_MS, now_ms=NOON + 50_000)

    assert await stores.claim(NOON + 1_000 + LEASE_MS) == []
    assert await stores.jobs.next_due_ms() == NOON + 50_000 + LEASE_MS


@pytest.mark.proves("S1", "O10")
async def test_the_lease_is_renewed_for_as_long_as_the_model_writes(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    leased = await claimed(stores)
    clock = count(NOON + 2_000, 1_000)

    class SlowSummarizer:
        """Writes until the lease was renewed twice."""

        due: list[int | None]

        async def summarize(
            self, job: SummaryJob, *, keep: Callable[[ChunkSummary], Awaitable[None]] = kept_nowhere
        ) -> Draft:
            assert (job.model, keep) == (None, kept_nowhere)
            self.due = [await stores.jobs.next_due_ms()]
            async with asyncio.timeout(20):
                while len(self.due) < 3:
                    await asyncio.sleep(0.01)
                    if (due := await stores.jobs.next_due_ms()) != self.due[-1]:
                        self.due.append(due)
            return summary().draft

    slow = SlowSummarizer()
    outcome = await compact(
        leased,
        store=stores.jobs,
        summarizer=slow,
        config=SummaryConfig(lease_seconds=0.3),
        count=words,
        now_ms=lambda: next(clock),
    )

    first, second, third = slow.due
    assert first == NOON + 1_000 + LEASE_MS
    # A renewed lease ends 300 ms after a time of this clock, which is asked once per renewal.
    assert second is not None
    assert (second - NOON) % 1_000 == 300
    assert third == second + 1_000
    assert outcome == Committed(1, None)


# --- what is summarised


@pytest.mark.proves("S2", "O10")
async def test_a_summarizer_reads_which_tool_gave_a_result_and_whether_it_failed(
    stores: Stores,
) -> None:
    await stores.ingest(
        turn(1, user("look"), assistant(None, "a", "b"), {**tool("a", "42"), "name": "lies"}),
        result(2, "b", "no such city", is_error=True),
        *turns(3, 6),
    )
    given = await stores.jobs.load(await claimed(stores), now_ms=NOON + 1_000)

    sources = sources_of((one.message, one.body, one.message.is_error) for one in given.evicted)

    assert [
        (one.message_id, one.role, one.text, one.tool_name, one.is_error, one.is_late)
        for one in sources
    ][:5] == [
        ("e1#0", "user", "look", None, False, False),
        ("e1#1", "assistant", "", None, False, False),
        ("e1#2", "tool", "42", "look_up", False, False),
        ("e2#0", "tool", "no such city", "look_up", True, False),
        ("e3#0", "user", "question 3", None, False, False),
    ]
    assert [one.calls for one in sources][1:2] == [(("look_up", "{}"), ("look_up", "{}"))]


@pytest.mark.proves("S2", "O10")
async def test_a_result_whose_call_is_in_no_message_read_is_late_and_has_the_name_it_came_with(
    stores: Stores,
) -> None:
    await stores.ingest(
        turn(1, user("look"), assistant(None, "a"), {**tool("a", "42"), "name": "weather"}),
        *turns(2, 6),
    )
    given = await stores.jobs.load(await claimed(stores), now_ms=NOON + 1_000)
    row = given.evicted[2]

    (alone,) = sources_of([(row.message, row.body, row.message.is_error)])

    assert (alone.tool_name, alone.is_late, alone.role) == ("weather", True, "tool")


@pytest.mark.proves("S2")
async def test_a_job_is_given_its_evicted_messages_in_order_and_those_that_stay(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("look"), assistant(None, "c"), tool("c", "42")), *turns(2, 6))
    await stores.ingest(
        turn(8, user("made by a machine"), is_meta=True),
        turn(9, assistant("done"), user("reflect") | {"is_meta": True}),
    )

    given = await stores.jobs.load(await claimed(stores), now_ms=NOON + 1_000)

    assert [one.message.message_id for one in given.evicted][:4] == ["e1#0", "e1#1", "e1#2", "e2#0"]
    assert json.loads(given.evicted[2].body)["content"] == "42"
    live = [json.loads(body)["content"] for body in given.following]
    assert live[-3:] == ["made by a machine", "done", "reflect"]
    assert not {json.loads(one.body)["content"] for one in given.evicted} & set(live)
    assert given.previous is None


@pytest.mark.proves("S2", "S3")
async def test_a_later_job_is_given_the_summary_in_force(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    await commit(stores, await claimed(stores), "First part.", "port 8443")
    await stores.ingest(*turns(8, 7))

    job = await claimed(stores)
    given = await stores.jobs.load(job, now_ms=NOON + 1_000)

    assert job.base_version == 1
    assert given.previous is not None
    assert (given.previous.text, given.previous.ledger) == ("First part.", ("port 8443",))
    assert not {one.message.event_id for one in given.evicted} & {"e1", "e2", "e3"}


@pytest.mark.proves("L3", "S2")
async def test_an_evicted_message_that_moves_up_the_stream_is_still_summarised(
    stores: Stores,
) -> None:
    first = turn(50, user("moved"), assistant("too"), event_id="moved")
    await stores.ingest(first, *turns(51, 7))

    await stores.ingest(turn(3, user("moved"), assistant("too"), event_id="moved"))

    given = await stores.jobs.load(await claimed(stores), now_ms=NOON + 1_000)
    assert [one.message.message_id for one in given.evicted][:2] == ["moved#0", "moved#1"]


# --- commits


@pytest.mark.proves("S8", "L7", "A1")
async def test_a_committed_version_is_in_force_and_speaks_for_its_messages(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    job = await claimed(stores)

    number = await commit(stores, job, "They spoke of ports.", "port 8443")

    facts = await stores.facts()
    assert (number, facts.pending, len(facts.messages)) == (1, (), 4)
    assert facts.summary is not None
    assert (facts.summary.text, json.loads(facts.summary.ledger)) == (
        "They spoke of ports.",
        ["port 8443"],
    )
    assert (
        facts.summary.covers_first,
        facts.summary.covers_last,
        facts.summary.messages_covered,
    ) == ("e1#0", "e5#1", 10)
    assert facts.summary.compaction_id == job.compaction_ids[-1]
    page = await stores.history.page(KEY, after_position=0, limit=100)
    assert [one.state for one in page] == [State.COVERED] * 10 + [State.LIVE] * 4


@pytest.mark.proves("A1", "A3")
async def test_every_arrow_of_a_job_leaves_an_audit_row_and_what_matters_to_others_a_notice(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7))
    await give_back(stores, await claimed(stores), NOON + 6_000)
    await commit(stores, await claimed(stores, NOON + 6_000))

    rows = await stores.history.audit(KEY, after=0, limit=100)
    notices = await stores.outbox.unsent(9)
    assert [row.phase for row in rows] == [
        "evicted",
        "summary_start",
        "attempt_failed",
        "summary_start",
        "summary_done",
    ]
    assert [row.reason for row in rows] == [None, None, "timeout", None, None]
    assert [one.subject.split(".ada.")[0] for one in notices] == [
        "context.compressed",
        "compaction.failed",
        "summary.updated",
    ]
    told = json.loads(notices[-1].payload)
    assert (told["version"], told["kind"], told["audit"]["rows"]) == (1, "llm", 5)
    assert rows[0].tokens_before == told["tokens_before"]
    assert rows[0].tokens_after == rows[-1].tokens_before
    assert rows[-1].tokens_after == told["tokens_after"]


@pytest.mark.proves("C50", "L10")
async def test_versions_build_on_each_other_and_their_coverage_adds_up(stores: Stores) -> None:
    for first_seq in (1, 8, 15):
        await stores.ingest(*turns(first_seq, 7))
        await commit(stores, await claimed(stores), f"Up to {first_seq}.")

    in_force, versions = await stores.history.versions(KEY)
    texts = [
        one.text for number in (1, 2, 3) for one in (await stores.history.versions(KEY, number))[1]
    ]

    live = len((await stores.facts()).messages)
    assert in_force == 3
    assert [(one.version, one.base_version) for one in versions] == [(1, None), (2, 1), (3, 2)]
    assert texts == ["Up to 1.", "Up to 8.", "Up to 15."]
    assert versions[-1].messages_covered + live == 42


@pytest.mark.proves("C28", "C47")
async def test_what_is_evicted_while_a_job_runs_waits_for_the_next(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    job = await claimed(stores)
    await stores.ingest(*turns(8, 7))
    assert await stores.claim(NOON + 2_000) == []

    await commit(stores, job)

    assert len((await stores.facts()).pending) == 1
    second = await claimed(stores)
    assert not set(second.compaction_ids) & set(job.compaction_ids)
    await commit(stores, second)
    assert (await stores.facts()).pending == ()


@pytest.mark.proves("S8", "C51")
async def test_a_worker_that_lost_its_lease_changes_nothing(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    zombie = await claimed(stores, NOON + 1_000)
    job = await claimed(stores, NOON + 1_000 + LEASE_MS)
    before = await stores.seen()

    with pytest.raises(LostLease):
        await commit(stores, zombie, "from the grave")
    with pytest.raises(LostLease):
        await give_back(stores, zombie)
    with pytest.raises(LostLease):
        await stores.jobs.renew(zombie, lease_ms=LEASE_MS, now_ms=LATER)

    assert await stores.seen() == before
    assert await commit(stores, job) == 1
    with pytest.raises(LostLease):
        await commit(stores, zombie, "from the grave")


@pytest.mark.proves("S8", "L10")
async def test_a_version_takes_force_only_over_its_base(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    job = await claimed(stores)
    before = await stores.seen()

    with pytest.raises(LostLease):
        await commit(stores, replace(job, base_version=7))

    assert await stores.seen() == before


@pytest.mark.proves("L2", "C49")
async def test_a_commit_that_is_made_again_is_refused(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    job = await claimed(stores)
    await commit(stores, job)

    with pytest.raises(LostLease):
        await commit(stores, job)

    assert (await stores.history.versions(KEY))[0] == 1


@pytest.mark.proves("S8", "C51")
async def test_two_workers_that_commit_at_once_make_one_version(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    job = await claimed(stores)

    done = await asyncio.gather(
        *(commit(stores, job, f"text {number}") for number in range(4)), return_exceptions=True
    )

    assert sorted(type(one).__name__ for one in done) == [
        "LostLease",
        "LostLease",
        "LostLease",
        "int",
    ]
    assert len((await stores.history.versions(KEY))[1]) == 1


# --- failed attempts


@pytest.mark.proves("S7")
async def test_a_job_given_back_is_due_at_its_time_and_not_before(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))

    await give_back(stores, await claimed(stores), NOON + 9_000)

    assert await stores.jobs.next_due_ms() == NOON + 9_000
    assert await stores.claim(NOON + 8_999) == []
    again = await claimed(stores, NOON + 9_000)
    assert again.attempt == 2


@pytest.mark.proves("S7")
@pytest.mark.parametrize("comes", ["while it runs", "while it waits", "by a request"])
async def test_new_evictions_wait_with_a_failed_attempt(stores: Stores, comes: str) -> None:
    await stores.ingest(*turns(1, 7))
    job = await claimed(stores)
    if comes == "while it runs":
        await stores.ingest(*turns(8, 7))
    await give_back(stores, job, NOON + 9_000)
    if comes == "while it waits":
        await stores.ingest(*turns(8, 7))
    elif comes == "by a request":
        await stores.ingest(*turns(8, 3))
        assert await stores.changes.compact_now(
            KEY, installation=stores.installation, now_ms=NOON + 6_000
        )

    assert await stores.jobs.next_due_ms() == NOON + 9_000
    assert await stores.claim(NOON + 8_999) == []
    again = await claimed(stores, NOON + 9_000)
    assert (again.attempt, len(again.compaction_ids)) == (2, 2)


@pytest.mark.proves("S7")
async def test_evictions_that_lose_their_version_wait_with_a_failed_attempt(
    stores: Stores,
) -> None:
    for first_seq in (1, 8):
        await stores.ingest(*turns(first_seq, 7))
        await commit(stores, await claimed(stores))
    await stores.ingest(*turns(15, 7))
    await give_back(stores, await claimed(stores), NOON + 9_000)

    await stores.versions.promote(
        KEY, 1, over=None, installation=stores.installation, now_ms=NOON + 6_000
    )

    assert await stores.claim(NOON + 8_999) == []
    assert (await claimed(stores, NOON + 9_000)).attempt == 2


@pytest.mark.proves("S1", "S7")
@pytest.mark.parametrize("ended", ["by a stop", "too late", "by another version"])
async def test_what_did_not_fail_is_no_attempt_and_nothing_waits_for_it(
    stores: Stores, ended: str
) -> None:
    for first_seq in (1, 8):
        await stores.ingest(*turns(first_seq, 7))
        await commit(stores, await claimed(stores))
    await stores.ingest(*turns(15, 7))
    job = await claimed(stores)
    match ended:
        case "by a stop":
            await stores.jobs.give_back(job, now_ms=NOON + 2_000)
        case "too late":
            await stores.jobs.discard(job, now_ms=NOON + 2_000)
        case _:
            await stores.versions.promote(
                KEY, 1, over=None, installation=stores.installation, now_ms=NOON + 2_000
            )

    again = await claimed(stores, NOON + 2_000)

    assert (again.attempt, again.fence) == (1, job.fence + 1)
    assert set(again.compaction_ids) >= set(job.compaction_ids)


@pytest.mark.proves("S7", "L1")
async def test_a_failed_attempt_leaves_the_window_as_it_was(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    before = await stores.facts()

    await give_back(stores, await claimed(stores))

    after = await stores.facts()
    assert (after.messages, after.pending, after.summary) == (before.messages, before.pending, None)


# --- when to look again


@pytest.mark.proves("S1")
async def test_where_nothing_is_open_nothing_is_due(stores: Stores) -> None:
    assert await stores.jobs.next_due_ms() is None

    await stores.ingest(*turns(1, 7))
    assert await stores.jobs.next_due_ms() == NOON + 7 + SUMMARY_DELAY_MS

    await commit(stores, await claimed(stores))
    assert await stores.jobs.next_due_ms() is None


@pytest.mark.proves("S1", "S7")
async def test_what_waits_for_a_running_job_is_due_when_that_one_may_be_taken(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7))
    await claimed(stores, NOON + 1_000)

    await stores.ingest(*turns(8, 7))

    assert await stores.jobs.next_due_ms() == NOON + 1_000 + LEASE_MS
