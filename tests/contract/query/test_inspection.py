"""Totals of an installation and the timeline of a session, in every store."""

from dataclasses import replace
from typing import Any

import pytest

from tests.store_fixtures import NOON, Stores, retracted, summary, turns, user
from tests.store_fixtures import turn as one_turn
from turnfold.contracts.history_requests import AuditRequest
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.operations.query.history import audit
from turnfold.operations.query.inspection import (
    audit_check,
    compactions,
    compactions_of,
    erasures,
    stats,
    timeline,
)
from turnfold.ports.compact import JobStatus

ADA = SessionKey(AgentId("ada"), SessionId("s-1"))
BOB = SessionKey(AgentId("bob"), SessionId("s-1"))


async def with_letters(stores: Stores, *agents: SessionKey) -> None:
    """Store a dead letter of each session."""
    deliveries = [Delivery("turn.completed", b"{", 900 + n, NOON) for n in range(len(agents))]
    dead = decode_batch(deliveries, count=len).dead
    named = [letter._replace(key=key) for letter, key in zip(dead, agents, strict=True)]
    await stores.intake.ingest([], named, installation=stores.installation)


async def worked_on(stores: Stores) -> None:
    """Give ada a version, bob a job that failed and an open one, and both dead letters."""
    await stores.ingest(*turns(1, 7, key=ADA), *turns(101, 7, key=BOB))
    for job in await stores.claim():
        if job.key == ADA:
            await stores.jobs.commit(job, summary("Short."), reason=None, now_ms=NOON + 1_000)
        else:
            await stores.jobs.retry_later(
                job,
                reason="timeout",
                detail="no answer",
                retry_at_ms=NOON + 60_000,
                now_ms=NOON + 1_000,
            )
    await with_letters(stores, ADA, BOB, BOB)
    await stores.letters.replayed(2, now_ms=NOON)


@pytest.mark.proves("V1")
async def test_totals_add_up_what_is_open_failed_and_refused(stores: Stores) -> None:
    await worked_on(stores)
    await stores.ingest(*turns(201, 7, key=ADA), *turns(301, 7, key=BOB))
    (job,) = await stores.claim(NOON + 2_000)
    stand_in = summary("Shorter than it was.", kind="extractive")
    await stores.jobs.commit(job, stand_in, reason="timeout", now_ms=NOON + 3_000)
    seen = (await stores.seen()).sessions

    every = await stores.inspections.totals(None)
    of_ada = await stores.inspections.totals({"ada"})
    of_bob = await stores.inspections.totals({"bob"})

    assert (every.agents, every.sessions, every.messages) == (2, 2, 56)
    assert (of_ada.summaries, of_ada.compactions_open, of_ada.compactions_failed) == (2, 1, 0)
    assert (of_bob.summaries, of_bob.compactions_open, of_bob.compactions_failed) == (0, 2, 1)
    assert (of_ada.sessions_cooling_down, of_bob.sessions_cooling_down) == (1, 0)
    assert (every.dead_letters, of_ada.dead_letters, of_bob.dead_letters) == (2, 1, 1)
    assert (of_ada.summary_tokens, of_bob.summary_tokens) == (stand_in.tokens, 0)
    for one, key in ((of_ada, ADA), (of_bob, BOB)):
        assert one.messages == len(seen[key].messages) == 28
    for ofall, ada, bob in zip(every, of_ada, of_bob, strict=True):
        assert ofall == ada + bob


@pytest.mark.proves("V1")
async def test_what_summaries_save_is_what_neither_they_nor_live_messages_hold(
    stores: Stores,
) -> None:
    await worked_on(stores)

    told = await stats({"ada"}, windows=3, store=stores.inspections)
    unsaved = await stats({"nobody"}, windows=3, store=stores.inspections)

    assert told["windows"] == 3
    held = told["live_tokens"] + told["summary_tokens"]
    assert told["tokens_saved"] == told["tokens"] - held > 0
    assert unsaved["tokens_saved"] == unsaved["sessions"] == unsaved["dead_letters"] == 0


@pytest.mark.proves("V1")
async def test_open_and_failed_compactions_are_listed_with_their_sessions(stores: Stores) -> None:
    await worked_on(stores)

    async def listed(chosen: Any, agents: set[str] | None = None) -> list[tuple[str, str]]:
        told = await compactions(chosen, agent_ids=agents, limit=9, store=stores.inspections)
        return [(one["agent_id"], one["status"]) for one in told["compactions"]]

    assert await listed("open") == await listed("failed") == [("bob", "pending")]
    assert await listed("open", {"ada"}) == []


@pytest.mark.proves("V1")
async def test_a_compaction_that_ended_without_a_version_counts_as_failed(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7, key=ADA))
    (job,) = await stores.claim()
    await stores.jobs.fail(
        job, ending=JobStatus.FAILED, reason="refused", detail="no", now_ms=NOON + 1_000
    )

    totals = await stores.inspections.totals(None)

    assert (totals.compactions_failed, totals.sessions_cooling_down) == (1, 1)


@pytest.mark.proves("V1")
async def test_a_timeline_shows_states_evictions_and_versions_in_order(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7, key=ADA))
    (job,) = await stores.claim()
    version = summary("Short.")
    draft = replace(version.draft, kind="extractive")
    await stores.jobs.commit(
        job, replace(version, draft=draft), reason="timeout", now_ms=NOON + 1_000
    )
    await stores.ingest(one_turn(20, user("more"), key=ADA), one_turn(21, user("again"), key=ADA))
    await stores.ingest(retracted(22, "e21#0", key=ADA))
    seen = (await stores.seen()).sessions[ADA]

    told = await timeline(ADA, parts=9, store=stores.inspections)
    newest = await compactions_of(ADA, before=None, limit=1, store=stores.inspections)
    rest = await compactions_of(
        ADA, before=newest["next_before"], limit=9, store=stores.inspections
    )

    states = [(part["state"], part["messages"]) for part in told["parts"]]
    covered = states[0][1]
    assert [state for state, _ in states[:1]] == ["covered"]
    assert {state for state, _ in states[1:-1]} == {"live"}
    assert states[-1] == ("retracted", 1)
    assert told["messages"] == len(seen.messages) + 1
    assert told["versions"] == [
        {
            "version": 1,
            "kind": "extractive",
            "tokens": version.tokens,
            "messages_covered": covered,
            "last_position": told["parts"][0]["last_position"],
            "created_at": "2027-01-15T08:00:01.000Z",
        }
    ]
    assert told["in_force"] == 1
    assert [*rest["compactions"], *newest["compactions"]] == told["compactions"]
    assert (len(newest["compactions"]), rest["next_before"]) == (1, None)


# --- erasures


@pytest.mark.proves("A1", "A6")
async def test_an_erasure_names_the_end_of_the_chain_until_the_session_comes_back(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 7, key=ADA))
    assert await stores.history.chain_end(BOB) is None

    for last_seq, number in ((50, 2), (150, 5)):
        await stores.changes.erase(ADA, last_seq=last_seq, now_ms=NOON)
        rows = await stores.history.audit(ADA, after=0, limit=100)
        assert await stores.history.chain_end(ADA) == (number, rows[-1].hash)
        # Evictions of the new session and its erasure continue the chain.
        told = await audit(ADA, AuditRequest(limit=1), store=stores.history)
        assert told["end"] == {"rows": number, "hash": rows[-1].hash}
        await stores.ingest(*turns(last_seq + 1, 13, key=ADA))
        (*_, newest) = await stores.history.audit(ADA, after=0, limit=100)
        assert await stores.history.chain_end(ADA) == (newest.ordinal, newest.hash)
    assert (await audit_check(ADA, store=stores.history))["is_intact"]


@pytest.mark.proves("V3", "A6")
async def test_erasures_are_listed_in_pages_newest_first(stores: Stores) -> None:
    names = ["a.b", "é / 語", "z", "%2E", "A"]
    for number, name in enumerate(names):
        key = SessionKey(AgentId("ada" if number % 2 else "b.o"), SessionId(name))
        # Several of one time.
        await stores.changes.erase(key, last_seq=9, now_ms=NOON + number // 3)
    await stores.changes.erase(AgentId("ada"), last_seq=9, now_ms=NOON)
    whole = await erasures(agent_ids=None, after=None, limit=100, store=stores.inspections)
    assert whole["next_after"] is None
    assert len(whole["erasures"]) == 6

    for limit in (1, 2, 4):
        paged, after = [], None
        while True:
            page = await erasures(
                agent_ids=None, after=after, limit=limit, store=stores.inspections
            )
            paged += page["erasures"]
            if (after := page["next_after"]) is None:
                break
        assert paged == whole["erasures"]


@pytest.mark.proves("A7")
@pytest.mark.parametrize("after", ["", "1", "1.a", "x.a.b", "1..b", "1.a.b.c", "1.a.%zz"])
async def test_a_page_of_erasures_begins_where_another_ended(stores: Stores, after: str) -> None:
    with pytest.raises(BadRequest, match="next_after"):
        await erasures(agent_ids=None, after=after, limit=9, store=stores.inspections)


@pytest.mark.proves("L12")
async def test_the_counters_of_a_session_are_its_own(stores: Stores) -> None:
    other = SessionKey(ADA.agent_id, SessionId("s-2"))
    for number, key in enumerate((other, BOB, ADA), 1):
        await stores.ingest(*turns(100 * number, number, key=key))

    marks = [await stores.inspections.mark(key) for key in (other, BOB, ADA)]

    assert [mark.messages for mark in marks] == [2, 4, 6]
