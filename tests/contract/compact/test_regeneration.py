"""A summary that is written again from the originals."""

import json

import pytest

from tests.contract.compact.versions import (
    claimed,
    compaction_of,
    ids,
    phases,
    promote,
    regenerate,
    restore,
    states,
    three_versions,
    write,
)
from tests.store_fixtures import KEY, LEASE_MS, NOON, Stores, retracted, summary, turns
from turnfold.errors import BadRequest, Conflict, LostLease, UnknownSession
from turnfold.messages import State
from turnfold.ports.compact import JobKind, JobStatus, RegenerateOptions
from turnfold.store.compact.jobs import rows


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


@pytest.mark.proves("X6", "A4")
async def test_a_session_has_a_hundred_open_regenerations_at_most(stores: Stores) -> None:
    """X6: each request and each job reads all of them, in a transaction that others wait for."""
    await three_versions(stores)
    opened = [await regenerate(stores, prompt=f"task {number}") for number in range(100)]

    with pytest.raises(Conflict, match="100 versions of this session wait to be written"):
        await regenerate(stores, prompt="another task")

    assert await regenerate(stores, prompt="task 7") == opened[7]
    begun = await stores.campaigns.begin(
        None, RegenerateOptions(), at_once=1, installation=stores.installation, now_ms=NOON
    )
    for _ in range(2):
        assert await stores.campaigns.advance(installation=stores.installation, now_ms=NOON) == 0
    done = await stores.campaigns.progress(begun.campaign_id)
    assert done is not None
    assert (done.sessions, done.opened, done.finished_at_ms) == (1, 0, NOON)


@pytest.mark.proves("A4", "O9")
async def test_a_long_history_is_written_again_in_parts_that_build_on_each_other(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_versions(stores)
    covered = await ids(stores, State.COVERED)
    work = await regenerate(stores, style="narrative")
    monkeypatch.setattr(rows, "MOST_MESSAGES", 1)

    was_read: list[str] = []
    for number in (4, 5, 6):
        job = await claimed(stores, NOON + 9_000)
        assert (job.compaction_ids, job.attempt, job.wanted.style) == ((work,), 1, "narrative")
        # A client that repeats its request between two parts has not asked for another one.
        assert await regenerate(stores, style="narrative") == work
        given = await stores.jobs.load(job, now_ms=NOON + 9_000)
        assert (given.previous and given.previous.text) == (
            None if number == 4 else f"Part {number - 1}."
        )
        was_read += [str(one.message.message_id) for one in given.evicted]
        await stores.jobs.commit(job, summary(f"Part {number}."), reason=None, now_ms=NOON + 9_000)

    assert was_read == covered
    audit = await stores.history.audit(KEY, after=0, limit=1_000)
    done = [json.loads(row.details) for row in audit if row.phase == "summary_done"]
    assert ["is_part" in details for details in done] == [False] * 3 + [True, True, False]
    assert await stores.jobs.next_due_ms() is None
    in_force, versions = await stores.history.versions(KEY)
    assert (in_force, [one.base_version for one in versions[3:]]) == (3, [None, 4, 5])
    assert versions[-1].messages_covered == versions[2].messages_covered
    await promote(stores, 6)
    assert await ids(stores, State.COVERED) == covered


@pytest.mark.proves("A4", "L12")
@pytest.mark.parametrize(
    ("change", "goes_on_from"),
    [("retraction", 4), ("promotion", 5), ("retraction of the oldest", None)],
)
async def test_a_regeneration_goes_on_once_what_lost_its_version_has_one_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, change: str, goes_on_from: int | None
) -> None:
    await three_versions(stores)
    work = await regenerate(stores)
    monkeypatch.setattr(rows, "MOST_MESSAGES", 1)
    for number in (4, 5):
        job = await claimed(stores, NOON + 9_000)
        await stores.jobs.commit(job, summary(f"Part {number}."), reason=None, now_ms=NOON + 9_000)

    if change == "retraction":
        # It takes back only the parts that hold its messages.
        await stores.ingest(retracted(60, "e20#1", at_ms=NOON + 9_000))
    elif change == "retraction of the oldest":
        await stores.ingest(retracted(60, "e10#0", at_ms=NOON + 9_000))
    else:
        await promote(stores, 1)

    assert await stores.claim(NOON + 9_000) == []
    based_on: list[int | None] = []
    while (due := await stores.jobs.next_due_ms()) is not None:
        assert due > NOON + 9_000
        for job in await stores.claim(due):
            if job.writes is JobKind.REGENERATED:
                assert job.compaction_ids == (work,)
                based_on.append(job.extends)
            await stores.jobs.commit(job, summary("Afterwards."), reason=None, now_ms=due)
    in_force, versions = await stores.history.versions(KEY)
    assert based_on[0] == goes_on_from
    assert versions[-1].base_version == based_on[-1]
    assert versions[-1].messages_covered == versions[(in_force or 0) - 1].messages_covered


@pytest.mark.proves("A4", "A5", "L2")
@pytest.mark.parametrize("from_version", [None, 2])
async def test_a_regeneration_extends_no_version_that_covers_restored_messages(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, from_version: int | None
) -> None:
    await three_versions(stores)
    third, second = await compaction_of(stores, 3), await compaction_of(stores, 2)
    await regenerate(stores, from_version=from_version)
    monkeypatch.setattr(rows, "MOST_MESSAGES", 1)
    for number in (4, 5) if from_version is None else ():
        job = await claimed(stores, NOON + 9_000)
        await stores.jobs.commit(job, summary(f"Part {number}."), reason=None, now_ms=NOON + 9_000)

    await restore(stores, third)
    await restore(stores, second)
    await stores.ingest(*turns(40, 30))

    extended: list[int | None] = []
    while (due := await stores.jobs.next_due_ms()) is not None:
        job = await claimed(stores, due)
        if job.writes is JobKind.REGENERATED:
            extended.append(job.extends)
        given = await stores.jobs.load(job, now_ms=due)
        assert given.evicted
        await stores.jobs.commit(job, summary("After."), reason=None, now_ms=due)
    _, versions = await stores.history.versions(KEY)
    # The second version covers what is live again, so nothing may be built on it.
    assert extended[:1] == ([4] if from_version is None else [])
    if extended:
        await promote(stores, versions[-1].version)


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
    # What is written may be asked for anew.
    await stores.jobs.commit(job, summary("Again."), reason=None, now_ms=NOON + 9_000)
    assert await regenerate(stores) not in (first, other)


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
        job, ending=JobStatus.REJECTED, reason="refused", detail="", now_ms=NOON + 9_500
    )

    after = await stores.facts()
    assert (after.summary, after.pending, after.messages) == (
        before.summary,
        before.pending,
        before.messages,
    )
    assert (await phases(stores))[-1] == "rejected"
    assert await stores.claim(NOON + 10 * LEASE_MS) == []
    # It was an offer: summaries that windows need do not wait for it.
    await stores.ingest(*turns(200, 7))
    assert [job.cooling for job in await stores.claim(NOON + 9_600)] == [None]


@pytest.mark.proves("A4", "S8")
async def test_a_regeneration_is_written_although_another_version_took_force_meanwhile(
    stores: Stores,
) -> None:
    await three_versions(stores)
    await regenerate(stores)
    job = await claimed(stores, NOON + 10_000)

    await promote(stores, 2)

    written = await stores.jobs.commit(job, summary("Anew."), reason=None, now_ms=NOON + 11_000)
    assert (written, (await stores.history.versions(KEY, None))[0]) == (4, 2)
