"""Versions that change places, in every store: promoted, undone, written again, and rewritten when the model is back."""

import asyncio
import json
from typing import Any

import pytest

from tests.contract.compact.versions import (
    OTHER,
    STRANGER,
    claimed,
    compaction_of,
    ids,
    override,
    phases,
    promote,
    read,
    regenerate,
    restore,
    states,
    three_versions,
    write,
)
from tests.store_fixtures import KEY, LEASE_MS, NOON, Stores, summary, turn, turns, user
from turnfold.core.history.as_of import AtTime, AtVersion
from turnfold.errors import BadRequest, Conflict, LostLease, UnknownSession
from turnfold.messages import State
from turnfold.ports.admin import ActiveVersion


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
    _, (newest,) = await stores.history.versions(KEY, 4)
    assert (in_force, versions[-1].base_version, newest.text) == (4, 1, "Folded again.")
    assert await states(stores) == before
    assert versions[-1].messages_covered == versions[2].messages_covered


@pytest.mark.proves("L1", "L7", "L10")
async def test_a_compaction_of_a_single_message_is_covered_by_its_version(stores: Stores) -> None:
    await override(stores, keep_messages=12)
    await stores.ingest(*(turn(number, user(f"Lantern {number}.")) for number in range(1, 14)))
    pending = await ids(stores, State.PENDING)

    await write(stores)

    assert len(pending) == 1
    assert await ids(stores, State.COVERED) == pending


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

    with pytest.raises(BadRequest, match=r"^there is no version"):
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
    for unknown in ("1234567", "no number", str(1 << 63), "9" * 40):
        with pytest.raises(BadRequest, match=rf"^this session has no compaction {unknown!r}"):
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
    await override(stores, min_gain_tokens=60)
    await stores.ingest(*turns(10, 7))
    await restore(stores, (await stores.facts()).pending[-1].compaction_id)

    await stores.ingest(*turns(20, 4))
    held = await states(stores)
    await stores.ingest(*turns(30, 10))

    assert held == {State.LIVE: 22}
    assert (await states(stores))[State.PENDING] > 0


@pytest.mark.proves("A5", "E1")
async def test_a_request_evicts_what_was_restored(stores: Stores) -> None:
    await override(stores, min_gain_tokens=5_000)
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
    await override(stores, commit="on_summary")
    for number in (1, 2):
        await stores.ingest(*turns(10 * number, 7))
        await write(stores, f"Version {number}.", at_ms=NOON + 1_000 * number)

    await promote(stores, 1)

    facts = await stores.facts()
    assert len(facts.pending) == 1
    assert facts.pending[0].digest
    assert facts.pending[0].digest_tokens > 0


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
