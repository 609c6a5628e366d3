"""Versions that change places, in every store: promoted, undone, written again, and rewritten when the model is back."""

import asyncio
import json
from typing import Any

import pytest

from tests.store_fixtures import KEY, LEASE_MS, NOON, Stores, summary, turn, turns, user, words
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.eviction.triggers import COOLDOWN_MS
from turnfold.core.history.as_of import AtTime, AtVersion
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import Draft, SummaryJob
from turnfold.errors import BadRequest, Conflict, LostLease, SummarizerError, UnknownSession
from turnfold.messages import AgentId, CompactionId, SessionId, SessionKey, State
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Committed, Outcome, Retry, compact
from turnfold.ports.admin import ActiveVersion
from turnfold.ports.compact import FailureStatus, Job, JobKind, RegenerateOptions

OTHER = SessionKey(AgentId("ada"), SessionId("s-2"))
STRANGER = SessionKey(AgentId("bob"), SessionId("s-1"))


async def claimed(stores: Stores, now_ms: int = NOON + 1_000) -> Job:
    """The only job that is due."""
    (job,) = await stores.claim(now_ms)
    return job


async def write(
    stores: Stores,
    text: str = "They spoke.",
    *,
    at_ms: int = NOON + 1_000,
    kind: str = "llm",
    reason: str | None = None,
) -> int:
    """Have the one job that is due written."""
    job = await claimed(stores, at_ms)
    leaving = (await stores.jobs.load(job, now_ms=at_ms)).leaving
    return await stores.jobs.commit(
        job, summary(text, kind=kind), leaving=leaving, reason=reason, now_ms=at_ms
    )


async def three_versions(stores: Stores) -> None:
    """Seven turns thrice, and a version for each time: at 1,000, 2,000 and 3,000 ms after noon."""
    for number in (1, 2, 3):
        await stores.ingest(*turns(10 * number, 7))
        await write(stores, f"Version {number}.", at_ms=NOON + 1_000 * number)


async def promote(
    stores: Stores, version: int, *, over: int | None = None, now_ms: int = NOON + 9_000
) -> ActiveVersion:
    return await stores.versions.promote(
        KEY, version, over=over, installation=stores.installation, now_ms=now_ms
    )


async def restore(
    stores: Stores, compaction_id: str, *, now_ms: int = NOON + 9_000
) -> ActiveVersion:
    return await stores.versions.restore(
        KEY, CompactionId(compaction_id), installation=stores.installation, now_ms=now_ms
    )


async def regenerate(stores: Stores, *, now_ms: int = NOON + 9_000, **wanted: Any) -> CompactionId:
    return await stores.versions.regenerate(
        KEY, RegenerateOptions(**wanted), installation=stores.installation, now_ms=now_ms
    )


async def states(stores: Stores) -> dict[State, int]:
    found = [one.state for one in await stores.history.page(KEY, after_position=0, limit=1_000)]
    return {state: found.count(state) for state in State if state in found}


async def ids(stores: Stores, *wanted: State) -> list[str]:
    """The messages that are in one of these states, in order."""
    return [
        one.message_id
        for one in await stores.history.page(KEY, after_position=0, limit=1_000)
        if one.state in wanted
    ]


async def phases(stores: Stores) -> list[str]:
    return [row.phase for row in await stores.history.audit(KEY, after=0, limit=1_000)]


async def compaction_of(stores: Stores, version: int) -> str:
    """The compaction that a version was written for."""
    _, (found,) = await stores.history.versions(KEY, version)
    return found.compaction_id


async def read(stores: Stores, job: Job, *, by_model: bool = True) -> list[str]:
    given = await stores.jobs.load(job, now_ms=NOON + 9_000, by_model=by_model)
    return [str(one.message.message_id) for one in given.evicted]


# --- promote


@pytest.mark.proves("L10", "A4")
async def test_promoting_what_covers_less_leaves_the_difference_pending_and_has_it_folded(
    stores: Stores,
) -> None:
    await three_versions(stores)
    before = await states(stores)

    now = await promote(stores, 1)

    assert now.version == 1
    assert now.messages_pending == (await states(stores))[State.PENDING] > 0
    facts = await stores.facts()
    assert facts.summary is not None
    assert facts.summary.text == "Version 1."
    assert sum(one.messages for one in facts.pending) == now.messages_pending
    assert all(one.digest for one in facts.pending)
    await write(stores, "Folded again.", at_ms=NOON + 10_000)
    in_force, versions = await stores.history.versions(KEY)
    assert (in_force, versions[-1].base_version, versions[-1].text) == (4, 1, "Folded again.")
    assert await states(stores) == before
    assert versions[-1].messages_covered == versions[2].messages_covered


@pytest.mark.proves("L10", "A4", "A1")
async def test_promoting_what_covers_more_only_moves_the_pointer(stores: Stores) -> None:
    await three_versions(stores)
    before = await states(stores)
    await promote(stores, 1)

    now = await promote(stores, 3, now_ms=NOON + 9_500)

    assert now == ActiveVersion(3, 0)
    assert await states(stores) == before
    # What was to fold the difference has nothing to do any more.
    assert await stores.claim(NOON + 60_000) == []
    assert (await phases(stores))[-4:] == ["promoted", "opened", "promoted", "stale"]
    told = [
        one for one in await stores.outbox.unsent(100) if one.subject.startswith("summary.updated")
    ]
    assert [json.loads(one.payload)["version"] for one in told] == [1, 2, 3, 1, 3]


@pytest.mark.proves("L10")
async def test_promoting_the_version_in_force_changes_nothing(stores: Stores) -> None:
    await three_versions(stores)
    before = await stores.seen()

    assert await promote(stores, 3) == ActiveVersion(3, 0)

    assert await stores.seen() == before


@pytest.mark.proves("L10", "A4")
async def test_a_version_is_promoted_only_over_the_one_that_was_named(stores: Stores) -> None:
    await three_versions(stores)
    await promote(stores, 2, over=3)
    before = await stores.seen()

    with pytest.raises(Conflict, match="2 is in force"):
        await promote(stores, 1, over=3)

    assert await stores.seen() == before


@pytest.mark.proves("L10")
async def test_of_two_that_promote_over_the_same_version_one_succeeds(stores: Stores) -> None:
    await three_versions(stores)

    done = await asyncio.gather(
        promote(stores, 1, over=3), promote(stores, 2, over=3), return_exceptions=True
    )

    assert sorted(type(one).__name__ for one in done) == ["ActiveVersion", "Conflict"]


@pytest.mark.proves("L10", "L12")
@pytest.mark.parametrize("version", [4, 99])
async def test_a_version_the_session_never_had_is_not_promoted(
    stores: Stores, version: int
) -> None:
    await three_versions(stores)
    await stores.ingest(*turns(100, 7, key=OTHER))
    await write(stores, "Another's.")
    before = await stores.seen()

    with pytest.raises(BadRequest, match="no version"):
        await promote(stores, version)
    with pytest.raises(UnknownSession):
        await stores.versions.promote(
            STRANGER, 1, over=None, installation=stores.installation, now_ms=NOON
        )

    assert await stores.seen() == before


@pytest.mark.proves("S8", "C51", "L10")
async def test_a_job_that_was_written_on_a_version_no_longer_in_force_is_stale_and_begins_again(
    stores: Stores,
) -> None:
    await three_versions(stores)
    await stores.ingest(*turns(40, 7))
    slow = await claimed(stores, NOON + 4_000)

    await promote(stores, 1)

    with pytest.raises(LostLease):
        await stores.jobs.commit(slow, summary("too late"), reason=None, now_ms=NOON + 9_500)
    await stores.jobs.discard(slow, now_ms=NOON + 9_500)
    assert (await phases(stores))[-1] == "stale"
    last = (await stores.history.audit(KEY, after=0, limit=100))[-1]
    assert json.loads(last.details)["detail"] == "written too late"
    # At once, and for all that no version speaks for: what it would have covered, and what lost its version.
    again = await claimed(stores, NOON + 9_600)
    assert again.base_version == 1
    lost = await ids(stores, State.PENDING)
    assert await read(stores, again) == lost
    assert {"e20#0", "e40#0"} <= set(lost)


# --- restore


@pytest.mark.proves("A5", "L1")
async def test_a_restored_compaction_is_as_if_it_had_never_been(stores: Stores) -> None:
    await stores.ingest(*turns(10, 7))
    before = await stores.facts()
    await stores.ingest(*turns(20, 2))
    live = await states(stores)
    compaction_id = (await stores.facts()).pending[-1].compaction_id
    await write(stores, "Version 1.")

    now = await restore(stores, await compaction_of(stores, 1))

    assert before.session is not None
    assert now.version is None
    assert compaction_id
    facts = await stores.facts()
    assert facts.summary is None
    assert sum((await states(stores)).values()) == sum(live.values())
    assert (await phases(stores)).count("restored") == 1


@pytest.mark.proves("A5", "L1", "A1")
async def test_the_newest_compaction_is_undone_first_and_the_version_before_takes_force_again(
    stores: Stores,
) -> None:
    await three_versions(stores)
    with pytest.raises(Conflict, match="later compaction"):
        await restore(stores, await compaction_of(stores, 1))
    was = (await states(stores))[State.LIVE]

    assert (await restore(stores, await compaction_of(stores, 3))).version == 2
    assert (await restore(stores, await compaction_of(stores, 2), now_ms=NOON + 9_100)).version == 1

    found = await states(stores)
    assert found[State.LIVE] > was
    assert State.PENDING not in found
    originals = await stores.history.page(KEY, after_position=0, limit=1_000)
    assert [json.loads(one.body)["content"] for one in originals if one.message_id == "e20#0"] == [
        "question 20"
    ]
    with pytest.raises(Conflict, match="restored"):
        await promote(stores, 3)


@pytest.mark.proves("A5")
async def test_undoing_again_changes_nothing_and_what_evicted_nothing_cannot_be_undone(
    stores: Stores,
) -> None:
    await three_versions(stores)
    await restore(stores, await compaction_of(stores, 3))
    before = await stores.seen()

    assert (await restore(stores, await compaction_of(stores, 3))).version == 2
    for unknown in ("1234567", "no number", "9" * 40):
        with pytest.raises(BadRequest, match="no compaction"):
            await restore(stores, unknown)
    assert await stores.seen() == before

    work = await regenerate(stores)
    with pytest.raises(Conflict, match="nothing"):
        await restore(stores, work)


@pytest.mark.proves("A5", "S8")
async def test_a_compaction_that_is_being_summarised_is_fenced_off_and_undone(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 7))
    job = await claimed(stores)

    await restore(stores, job.compaction_ids[-1])

    assert await states(stores) == {State.LIVE: 14}
    with pytest.raises(LostLease):
        await stores.jobs.commit(job, summary("too late"), reason=None, now_ms=NOON + 9_500)
    await stores.jobs.discard(job, now_ms=NOON + 9_500)
    assert await stores.claim(NOON + LEASE_MS) == []


@pytest.mark.proves("A5", "E5")
async def test_what_was_restored_stays_until_enough_has_come_or_somebody_asks(
    stores: Stores,
) -> None:
    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"min_gain_tokens": 60}),
        installation=stores.installation,
        now_ms=NOON,
    )
    await stores.ingest(*turns(10, 7))
    await restore(stores, (await stores.facts()).pending[-1].compaction_id)

    await stores.ingest(*turns(20, 4))
    held = await states(stores)
    await stores.ingest(*turns(30, 10))

    assert held == {State.LIVE: 22}
    assert (await states(stores))[State.PENDING] > 0


@pytest.mark.proves("A5", "E1")
async def test_a_request_evicts_what_was_restored(stores: Stores) -> None:
    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"min_gain_tokens": 5_000}),
        installation=stores.installation,
        now_ms=NOON,
    )
    await stores.ingest(*turns(10, 7))
    await restore(stores, (await stores.facts()).pending[-1].compaction_id)

    assert (
        await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 9_500)
        is not None
    )

    assert (await states(stores))[State.PENDING] == 10


@pytest.mark.proves("A5", "E7")
async def test_what_left_with_its_summary_is_shown_by_a_digest_when_its_version_is_not_in_force(
    stores: Stores,
) -> None:
    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"commit": "on_summary"}),
        installation=stores.installation,
        now_ms=NOON,
    )
    for number in (1, 2):
        await stores.ingest(*turns(10 * number, 7))
        await write(stores, f"Version {number}.", at_ms=NOON + 1_000 * number)

    await promote(stores, 1)

    facts = await stores.facts()
    assert len(facts.pending) == 1
    assert facts.pending[0].digest
    assert facts.pending[0].digest_tokens > 0


# --- regenerate


@pytest.mark.proves("A4", "L10")
async def test_a_summary_is_written_again_from_the_originals_and_takes_no_force(
    stores: Stores,
) -> None:
    await three_versions(stores)
    before = await stores.facts()

    work = await regenerate(stores, model="other/model", style="narrative")
    job = await claimed(stores, NOON + 9_000)

    assert (job.compaction_ids, job.writes) == ((work,), JobKind.REGENERATED)
    assert (job.wanted.model, job.wanted.style) == ("other/model", "narrative")
    given = await stores.jobs.load(job, now_ms=NOON + 9_000)
    assert (given.previous, given.depth) == (None, 1)
    assert len(given.evicted) == (await states(stores))[State.COVERED]
    number = await stores.jobs.commit(job, summary("Better."), reason=None, now_ms=NOON + 9_500)
    in_force, versions = await stores.history.versions(KEY)
    assert (number, in_force, versions[-1].base_version) == (4, 3, None)
    assert versions[-1].messages_covered == versions[2].messages_covered
    after = await stores.facts()
    assert (after.summary, after.messages, after.pending) == (before.summary, before.messages, ())
    await promote(stores, 4, over=3)
    assert (await stores.history.versions(KEY))[0] == 4


@pytest.mark.proves("A4")
async def test_a_range_is_written_again_on_the_version_before_it(stores: Stores) -> None:
    await three_versions(stores)

    await regenerate(stores, from_version=2)

    job = await claimed(stores, NOON + 9_000)
    given = await stores.jobs.load(job, now_ms=NOON + 9_000)
    assert given.previous is not None
    assert given.previous.text == "Version 2."
    _, (second,) = await stores.history.versions(KEY, 2)
    covered = await ids(stores, State.COVERED)
    assert (
        [one.message.message_id for one in given.evicted]
        == covered[covered.index(second.covers_last) + 1 :]
        != []
    )
    await stores.jobs.commit(job, summary("Other."), reason=None, now_ms=NOON + 9_500)
    _, versions = await stores.history.versions(KEY)
    assert (versions[-1].base_version, versions[-1].messages_covered) == (
        2,
        versions[2].messages_covered,
    )


@pytest.mark.proves("A4")
async def test_an_empty_range_and_a_session_without_a_version_are_refused(stores: Stores) -> None:
    with pytest.raises(UnknownSession):
        await regenerate(stores)
    await stores.ingest(*turns(10, 7))
    with pytest.raises(Conflict, match="no version"):
        await regenerate(stores)
    await write(stores)

    with pytest.raises(BadRequest, match="from_version"):
        await regenerate(stores, from_version=1)
    with pytest.raises(BadRequest, match="no version 7"):
        await regenerate(stores, from_version=7)


@pytest.mark.proves("A4", "L2")
async def test_the_same_work_is_not_opened_twice(stores: Stores) -> None:
    await three_versions(stores)

    first, again, other = (
        await regenerate(stores),
        await regenerate(stores),
        await regenerate(stores, style="narrative"),
    )

    assert first == again != other
    # One after the other.
    job = await claimed(stores, NOON + 9_000)
    assert job.compaction_ids == (first,)
    assert await stores.claim(NOON + 9_000) == []


@pytest.mark.proves("A4", "S1")
async def test_what_was_evicted_meanwhile_is_summarised_before_anything_is_written_again(
    stores: Stores,
) -> None:
    await three_versions(stores)
    await regenerate(stores)
    await stores.ingest(*turns(40, 7))

    assert (await claimed(stores, NOON + 9_000)).writes is JobKind.NEXT


@pytest.mark.proves("A4", "A5", "S8")
async def test_a_regeneration_of_what_was_restored_meanwhile_changes_nothing(
    stores: Stores,
) -> None:
    await three_versions(stores)
    await regenerate(stores)
    job = await claimed(stores, NOON + 9_000)

    await restore(stores, await compaction_of(stores, 3))

    with pytest.raises(LostLease):
        await stores.jobs.commit(job, summary("of what is live"), reason=None, now_ms=NOON + 9_500)
    await stores.jobs.discard(job, now_ms=NOON + 9_500)
    again = await claimed(stores, NOON + 9_500)
    assert again.base_version == 2
    assert (
        await stores.jobs.commit(again, summary("of the rest"), reason=None, now_ms=NOON + 9_600)
        == 4
    )


@pytest.mark.proves("A4", "L10", "A1")
async def test_a_regeneration_that_fails_ends_and_leaves_everything_as_it_was(
    stores: Stores,
) -> None:
    await three_versions(stores)
    await regenerate(stores)
    before = await stores.facts()

    job = await claimed(stores, NOON + 9_000)
    await stores.jobs.fail(
        job, ending=FailureStatus.REJECTED, reason="refused", detail="", now_ms=NOON + 9_500
    )

    after = await stores.facts()
    assert (after.summary, after.pending, after.messages) == (
        before.summary,
        before.pending,
        before.messages,
    )
    assert (await phases(stores))[-1] == "rejected"
    assert await stores.claim(NOON + 10 * LEASE_MS) == []


# --- stand-ins


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
            job, ending=FailureStatus.FAILED, reason="provider_error", detail="", now_ms=now_ms
        )

    assert waits == [8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.proves("S7", "S5")
async def test_a_model_whose_answers_are_refused_is_not_asked_for_ever(stores: Stores) -> None:
    await stores.ingest(*turns(10, 7))
    await write(stores, "picked", kind="extractive", reason="refused")
    asked = 0
    while (due_ms := await stores.jobs.next_due_ms()) is not None:
        asked += 1
        await stores.jobs.fail(
            await claimed(stores, due_ms),
            ending=FailureStatus.REJECTED,
            reason="refused",
            detail="",
            now_ms=due_ms,
        )

    assert asked == 3
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


# --- the past of it


@pytest.mark.proves("W6", "A2", "L7")
async def test_every_moment_is_seen_as_it_was_whatever_changed_places_since(stores: Stores) -> None:
    seen: list[tuple[int, Any]] = []

    async def look(at_ms: int) -> None:
        facts = await stores.facts()
        assert facts.session is not None
        seen.append((at_ms, (facts.session.version, facts.summary, facts.pending, facts.messages)))

    for number in (1, 2, 3):
        await stores.ingest(
            *[
                turn(seq, user(f"question {seq}"), user("and?"), at_ms=NOON + 1_000 * number - 500)
                for seq in range(10 * number, 10 * number + 7)
            ]
        )
        await look(NOON + 1_000 * number - 400)
        await write(stores, f"Version {number}.", at_ms=NOON + 1_000 * number)
        await look(NOON + 1_000 * number)
    await promote(stores, 1, now_ms=NOON + 4_000)
    await look(NOON + 4_000)
    await write(stores, "Folded.", at_ms=NOON + 5_000)
    await look(NOON + 5_000)
    await restore(stores, await compaction_of(stores, 3), now_ms=NOON + 6_000)
    await look(NOON + 6_000)
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 7_000)
    await look(NOON + 7_000)

    for at_ms, was in seen:
        then, _ = await stores.windows.window_as_of(
            KEY, AtTime(at_ms), on_session=lambda _: None, on_messages=lambda facts: (facts, ())
        )
        assert then.session is not None
        assert (then.session.version, then.summary, then.pending, then.messages) == was, (
            at_ms - NOON
        )
    newest, _ = await stores.windows.window_as_of(
        KEY, AtVersion(2), on_session=lambda _: None, on_messages=lambda facts: (facts, ())
    )
    assert newest.summary is not None
    assert newest.summary.text == "Version 2."


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
            writing=SummaryConfig(),
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
            writing=SummaryConfig(),
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
