"""Erasing, in every store: what is gone, what stays gone, and what begins afresh."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.compact.versions import phases
from tests.invariants import faults
from tests.store_fixtures import (
    KEY,
    NOON,
    SMALL,
    Stores,
    installation_of,
    retracted,
    summary,
    turn,
    turns,
    user,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.errors import LostLease, UnknownSession
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.operations.ingest.ingest import ingest
from turnfold.ports.ingest import DeadLetter, IngestResult
from turnfold.process.set_aside import SetAside
from turnfold.store.database.engine import Database
from turnfold.store.ingest.erase import EraseResult, SqlErasureStore
from turnfold.store.ingest.tombstones import digest_of

TWIN = SessionKey(AgentId("bob"), KEY.session_id)
SISTER = SessionKey(KEY.agent_id, SessionId("s-2"))
DAY_MS = 86_400_000


Erase = Callable[..., Awaitable[EraseResult]]


@pytest.fixture(params=["rows_left", "rows_deleted", "some_rows_deleted"])
def erase(request: pytest.FixtureRequest) -> Erase:
    """Erase something, and delete all of its rows, some, or none: nobody may see a difference."""

    async def erased(
        stores: Stores, key: SessionKey | AgentId = KEY, *, last_seq: int = 100
    ) -> EraseResult:
        done = await stores.changes.erase(key, last_seq=last_seq, now_ms=NOON + 9_000)
        if request.param == "rows_deleted":
            await stores.delete_rows()
        if request.param == "some_rows_deleted":
            # The first portions are compactions and reports of usage.
            for _ in range(4):
                await stores.erasures.delete_rows()
        return done

    return erased


async def positions(stores: Stores, key: SessionKey = KEY) -> list[int]:
    return [one.position for one in await stores.history.page(key, after_position=0, limit=1_000)]


async def is_unknown(stores: Stores, key: SessionKey = KEY) -> bool:
    try:
        await stores.history.counts(key)
    except UnknownSession:
        return (await stores.facts(key)).session is None
    return False


def letters(subject: str, *payloads: bytes, first_seq: int = 50) -> Sequence[DeadLetter]:
    """The dead letters that these payloads become."""
    deliveries = [
        Delivery(subject, payload, seq, NOON + seq)
        for seq, payload in enumerate(payloads, start=first_seq)
    ]
    return decode_batch(deliveries, count=len).dead


@pytest.mark.proves("A6", "L12")
async def test_an_erased_session_is_as_if_it_had_never_been_and_its_twins_are_as_they_were(
    stores: Stores, erase: Erase
) -> None:
    await stores.ingest(*turns(1, 8))
    await stores.ingest(
        *[turn(seq, user("q"), event_id=f"e{seq - 10}", key=TWIN) for seq in range(11, 20)]
    )
    await stores.ingest(turn(30, user("q"), key=SISTER))
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 5_000)
    await stores.ingest(*turns(40, 8))
    before = {key: (await stores.seen()).sessions[key] for key in (TWIN, SISTER)}

    done = await erase(stores)

    assert done == EraseResult(1, 32)
    assert await is_unknown(stores)
    assert {key: (await stores.seen()).sessions[key] for key in (TWIN, SISTER)} == before
    assert set((await stores.seen()).sessions) == {TWIN, SISTER}
    assert await stores.claim(NOON + 900_000) == []


@pytest.mark.proves("A6", "L2", "L12")
async def test_what_was_erased_does_not_come_back_by_redelivery_or_under_a_new_sequence(
    stores: Stores, erase: Erase
) -> None:
    first = turns(1, 4)
    await stores.ingest(*first)
    await erase(stores)

    await stores.ingest(*first)
    await stores.ingest(
        first[0]._replace(stream_seq=200), first[1]._replace(stream_seq=201, key=SISTER)
    )
    await stores.ingest(turn(3, user("another, from before"), event_id="new"))

    assert (await stores.seen()).sessions == {}
    assert (await stores.seen()).dead_letters == ()
    await stores.ingest(first[0]._replace(stream_seq=200, key=TWIN))
    assert set((await stores.seen()).sessions) == {TWIN}


@pytest.mark.proves("A6", "W5")
async def test_what_was_published_before_and_not_yet_stored_is_dropped_and_counts_as_ingested(
    stores: Stores, erase: Erase
) -> None:
    await stores.ingest(*turns(1, 2))
    await erase(stores, last_seq=5)

    done = await stores.intake.ingest(
        [*turns(3, 3), *turns(6, 1)], (), installation=stores.installation
    )

    assert done == IngestResult(events=1, messages=2, duplicates=3)
    assert (await stores.seen()).ingested == ((1, 6),)
    assert await positions(stores) == [6 * 1024, 6 * 1024 + 1]


@pytest.mark.proves("A6")
async def test_newer_events_begin_the_session_afresh_and_go_on_with_its_audit(
    stores: Stores, erase: Erase
) -> None:
    await stores.ingest(*turns(1, 8))
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 5_000)
    before = await stores.facts()
    await erase(stores)
    told = await phases(stores)

    await stores.ingest(*turns(101, 8))

    assert told == ["evicted", "summary_start", "summary_done", "erased"]
    after = await stores.facts()
    assert before.session is not None
    assert after.session is not None
    assert after.session.sid != before.session.sid
    assert (after.summary, after.session.version, after.session.messages_total) == (None, None, 16)
    assert await phases(stores) == [*told, "evicted"]
    assert faults(await stores.seen()) == []


@pytest.mark.proves("A6", "S1", "S8")
async def test_a_job_that_runs_while_its_session_is_erased_changes_nothing(
    stores: Stores, erase: Erase
) -> None:
    await stores.ingest(*turns(1, 8))
    (job,) = await stores.claim()
    await erase(stores)
    await stores.ingest(*turns(101, 2))
    before = await stores.seen()

    with pytest.raises(LostLease):
        await stores.jobs.load(job, now_ms=NOON + 10_000)
    with pytest.raises(LostLease):
        await stores.jobs.renew(job, lease_ms=60_000, now_ms=NOON + 10_000)
    with pytest.raises(LostLease):
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 10_000)
    with pytest.raises(LostLease):
        await stores.jobs.retry_later(
            job, reason="timeout", detail="", retry_at_ms=NOON, now_ms=NOON + 10_000
        )

    assert await stores.seen() == before


@pytest.mark.proves("A6")
async def test_erasing_twice_or_what_nobody_knows_leaves_a_record_and_nothing_else(
    stores: Stores, erase: Erase
) -> None:
    assert await erase(stores) == EraseResult()
    await stores.ingest(turn(7, user("on its way")))
    assert await is_unknown(stores)
    assert await erase(stores, last_seq=50) == EraseResult()

    await stores.ingest(turn(80, user("still before the first")))

    assert await is_unknown(stores)
    assert await phases(stores) == ["erased", "erased"]


@pytest.mark.proves("A6")
@pytest.mark.parametrize("key", [KEY, KEY.agent_id])
async def test_an_erasure_counts_a_policy_without_messages(
    stores: Stores, erase: Erase, key: SessionKey | AgentId
) -> None:
    await stores.changes.set_policy(
        key, PolicyRequest(mode="off"), installation=stores.installation, now_ms=NOON
    )

    done = await erase(stores, key)

    assert done == EraseResult(int(key == KEY), 0, policies=1)
    assert (await erase(stores, key)).policies == 0


@pytest.mark.proves("A6", "G1")
async def test_an_erasure_counts_a_session_without_messages_and_policy(
    stores: Stores, erase: Erase
) -> None:
    await stores.ingest(turn(1, user("take this back")), retracted(2, all=True))
    for value in (30, None):
        await stores.changes.set_policy(
            SISTER,
            PolicyRequest(overrides={"max_live_messages": value}),
            installation=stores.installation,
            now_ms=NOON,
        )

    erased = [await erase(stores, key) for key in (KEY, SISTER)]

    assert erased == [EraseResult(1), EraseResult(1)]
    assert [await erase(stores, key) for key in (KEY, SISTER)] == [EraseResult(), EraseResult()]


@pytest.mark.proves("A6", "X9")
async def test_an_erasure_counts_dead_letters_without_messages(
    stores: Stores, erase: Erase
) -> None:
    found = letters("turn.completed.ada.s-1", b"bad", b"worse")
    await stores.intake.ingest((), found, installation=stores.installation)

    assert await erase(stores) == EraseResult(dead_letters=2)
    assert await erase(stores) == EraseResult()


@pytest.mark.proves("A6", "L12")
async def test_an_erased_agent_takes_all_its_sessions_policy_and_letters_along(
    stores: Stores, erase: Erase
) -> None:
    await stores.ingest(*turns(1, 2), turn(3, user("q"), key=SISTER), turn(4, user("q"), key=TWIN))
    await stores.changes.set_policy(
        KEY.agent_id, PolicyRequest(mode="off"), installation=stores.installation, now_ms=NOON
    )
    mine, others = (
        letters("turn.completed.ada.s-1", b"bad"),
        letters("turn.completed.adamant.s-1", b"bad", first_seq=60),
    )
    await stores.intake.ingest((), [*mine, *others], installation=stores.installation)

    done = await erase(stores, KEY.agent_id)

    assert done == EraseResult(2, 5, policies=1, dead_letters=1)
    assert set((await stores.seen()).sessions) == {TWIN}
    assert [seq for seq, *_ in (await stores.seen()).dead_letters] == [60]
    third = SessionKey(KEY.agent_id, SessionId("s-3"))
    await stores.ingest(
        turn(90, user("from before"), key=third), turn(101, user("from after"), key=KEY)
    )
    assert set((await stores.seen()).sessions) == {KEY, TWIN}
    facts = await stores.facts()
    assert facts.session is not None
    assert facts.session.agent_wishes.mode is None


@pytest.mark.proves("A6", "I5")
async def test_dead_letters_of_an_erased_session_go_whatever_subject_they_came_on(
    stores: Stores, erase: Erase
) -> None:
    told = json.dumps({**KEY._asdict(), "messages": "none"}).encode()
    other = json.dumps({**TWIN._asdict(), "messages": "none"}).encode()
    await stores.ingest(turn(1, user("a"), event_id="known"))
    found = [
        *letters("turn.completed", told, told[:-3] + b"!", other),
        *letters("tool.result.ada.s-1", b"no json", first_seq=60),
    ]
    await stores.intake.ingest(
        [turn(2, user("another"), event_id="known")], found, installation=stores.installation
    )
    assert len((await stores.seen()).dead_letters) == 5

    done = await erase(stores)

    assert (done.messages, done.dead_letters) == (1, 4)
    await stores.intake.ingest(
        (), letters("turn.completed", told, first_seq=70), installation=stores.installation
    )

    assert [seq for seq, *_ in (await stores.seen()).dead_letters] == [52]
    await stores.delete_rows()
    assert [*await stores.erasures.to_purge(100)] == [1, 2, 50, 51, 60, 70]


@pytest.mark.proves("A6")
async def test_every_copy_in_the_stream_is_remembered_until_it_is_gone(
    stores: Stores, erase: Erase
) -> None:
    first = turn(5, user("a"), event_id="twice")
    await stores.ingest(first, turn(6, user("b")), turn(8, user("c"), key=TWIN))
    await stores.ingest(first._replace(stream_seq=7), first._replace(stream_seq=4))
    await erase(stores, last_seq=10)
    await stores.ingest(turn(9, user("late")), first._replace(stream_seq=11))

    await stores.delete_rows()
    found = [*await stores.erasures.to_purge(100)]
    await stores.erasures.purged(found[:4])

    assert found == [4, 5, 6, 7, 9, 11]
    assert [*await stores.erasures.to_purge(100)] == [9, 11]
    assert await stores.erasures.tidy()


@pytest.mark.proves("A6")
async def test_of_an_erased_event_the_latest_time_of_its_publication_is_remembered(
    stores: Stores,
) -> None:
    """An event that took its place in the stream after that time is another one."""
    later = NOON + 600_000
    gone = turn(5, user("a"), event_id="a", at_ms=NOON)
    await stores.ingest(gone)
    await stores.changes.erase(KEY, last_seq=10, now_ms=NOON)
    await stores.ingest(gone._replace(at_ms=later), turn(9, user("c"), at_ms=NOON))

    await stores.delete_rows()
    await stores.ingest(gone)

    assert await stores.erasures.to_purge(9) == {5: later, 9: NOON}


@pytest.mark.proves("A6", "L12")
def test_no_id_of_an_erased_event_is_taken_for_that_of_another_agent() -> None:
    assert digest_of("ab", "c") != digest_of("a", "bc")


@pytest.mark.proves("A6", "L1")
async def test_erasing_and_storing_at_once_come_out_as_one_after_the_other(stores: Stores) -> None:
    for number in range(12):
        first = 10 * number + 1
        key = SessionKey(KEY.agent_id, SessionId(f"race-{number}"))
        await asyncio.gather(
            stores.ingest(*turns(first, 3, key=key)),
            stores.changes.erase(key, last_seq=first + 1, now_ms=NOON),
            stores.ingest(*turns(first + 3, 2, key=key)),
        )
        left = (
            []
            if await is_unknown(stores, key)
            else sorted({position // 1024 for position in await positions(stores, key)})
        )
        assert set(left) <= {first + 2, first + 3, first + 4}
        assert faults(await stores.seen()) == []


@pytest.mark.proves("A6")
async def test_sessions_are_erased_when_they_have_been_silent_for_longer_than_their_policy_retains_them(
    stores: Stores,
) -> None:
    keeper, other = SessionKey(KEY.agent_id, SessionId("kept")), TWIN
    await stores.ingest(
        turn(1, user("a"), at_ms=NOON),
        turn(2, user("b"), key=keeper, at_ms=NOON),
        turn(3, user("c"), key=other, at_ms=NOON),
    )
    await stores.ingest(turn(4, user("d"), key=SISTER, at_ms=NOON + 2 * DAY_MS))
    for key, days in ((KEY.agent_id, 2), (keeper, 0)):
        await stores.changes.set_policy(
            key,
            PolicyRequest(overrides={"retain_days": days}),
            installation=stores.installation,
            now_ms=NOON,
        )

    async def expire(now_ms: int) -> None:
        after: int | None = 0
        while after is not None:
            after = await stores.erasures.erase_expired(
                after=after, limit=2, installation=stores.installation, now_ms=now_ms
            )

    await expire(NOON + 2 * DAY_MS)
    assert len((await stores.seen()).sessions) == 4
    await expire(NOON + 2 * DAY_MS + 1)

    assert set((await stores.seen()).sessions) == {keeper, other, SISTER}
    (row,) = await stores.history.audit(KEY, after=0, limit=10)
    assert (row.phase, row.reason) == ("erased", "retention")
    await stores.ingest(turn(5, user("back again")))
    assert await positions(stores) == [5 * 1024]


@pytest.mark.proves("A6")
async def test_dead_letters_of_a_session_without_events_are_erased_when_retention_is_over(
    stores: Stores,
) -> None:
    """A6: of one that is unknown, and of one that has a policy only."""
    for key, seq in ((KEY, 50), (SISTER, 60), (TWIN, 70)):
        subject = f"turn.completed.{key.agent_id}.{key.session_id}"
        mine = letters(subject, b"[]", first_seq=seq)
        await stores.intake.ingest((), mine, installation=stores.installation)
    for asked, days in ((KEY.agent_id, 3), (SISTER, 2)):
        await stores.changes.set_policy(
            asked,
            PolicyRequest(overrides={"retain_days": days}),
            installation=stores.installation,
            now_ms=NOON,
        )

    async def left_at(now_ms: int) -> list[int]:
        await stores.erasures.expire_letters(installation=stores.installation, now_ms=now_ms)
        return [one.stream_seq for one in await stores.history.dead_letters(after=0, limit=9)]

    assert await left_at(NOON + 2 * DAY_MS) == [50, 60, 70]
    assert await left_at(NOON + 2 * DAY_MS + 100) == [50, 70]
    assert await left_at(NOON + 3 * DAY_MS + 100) == [70]


@pytest.mark.proves("A6")
async def test_dead_letters_that_name_no_session_are_erased_when_retention_is_over(
    stores: Stores,
) -> None:
    """A6: by the policy of the agent that the subject names, or else by the default."""
    for seq, subject in ((50, f"turn.completed.{KEY.agent_id}"), (60, "turn.completed")):
        refused = letters(subject, b"no JSON", first_seq=seq)
        await stores.intake.ingest((), refused, installation=stores.installation)
    await stores.changes.set_policy(
        KEY.agent_id,
        PolicyRequest(overrides={"retain_days": 2}),
        installation=stores.installation,
        now_ms=NOON,
    )
    default, _ = installation_of(replace(SMALL, retain_days=3))

    async def left_at(now_ms: int) -> list[int]:
        await stores.erasures.expire_letters(installation=default, now_ms=now_ms)
        return [one.stream_seq for one in await stores.history.dead_letters(after=0, limit=9)]

    assert await left_at(NOON + 2 * DAY_MS) == [50, 60]
    assert await left_at(NOON + 2 * DAY_MS + 100) == [60]
    assert await left_at(NOON + 3 * DAY_MS + 100) == []


@pytest.mark.proves("A6")
async def test_an_event_that_is_refused_while_letters_expire_keeps_those_of_its_session(
    stores: Stores, database: Database
) -> None:
    async def refuse(*seqs: int, at_ms: int) -> None:
        mine = [DeadLetter(seq, at_ms, "turn.completed", "", "", 1, b"x", KEY) for seq in seqs]
        await stores.intake.ingest((), mine, installation=stores.installation)

    class Overtaken(SetAside[int]):
        async def each(self, keys: Iterable[int], work: Callable[..., Awaitable[Any]]) -> list[Any]:
            done = await super().each(keys, work)
            await refuse(3, at_ms=NOON + 2 * DAY_MS)
            return done

    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"retain_days": 1}),
        installation=stores.installation,
        now_ms=NOON,
    )
    await refuse(1, 2, at_ms=NOON)
    erasures = SqlErasureStore(database, aside=Overtaken())
    await erasures.expire_letters(installation=stores.installation, now_ms=NOON + 2 * DAY_MS)

    kept = await stores.history.dead_letters(after=0, limit=9)
    assert [one.stream_seq for one in kept] == [1, 2, 3]


@pytest.mark.proves("X9", "A6")
@pytest.mark.parametrize("erased", [KEY, KEY.agent_id])
async def test_a_dead_letter_that_only_its_payload_names_is_erased_and_does_not_come_back(
    stores: Stores, erase: Erase, erased: SessionKey | AgentId
) -> None:
    """X9: the subject names another session than the payload; whole or cut off, with letters of others beside it."""
    said = {"event_id": "e-1", **KEY._asdict(), "messages": [{"role": "user", "content": "secret"}]}
    mine = letters(f"turn.completed.{TWIN.agent_id}.{TWIN.session_id}", json.dumps(said).encode())
    others = letters(
        f"turn.completed.{SISTER.agent_id}.x",
        json.dumps(said | TWIN._asdict()).encode(),
        first_seq=60,
    )
    assert {one.reason for one in (*mine, *others)} == {"subject_mismatch"}
    await stores.ingest(turn(1, user("q")))
    await stores.intake.ingest((), (*mine, *others), installation=stores.installation)

    await erase(stores, erased)
    await stores.intake.ingest((), mine, installation=stores.installation)

    assert "secret" not in str(
        [one for one in await stores.letters.letters([1, 2, 3]) if one.row.stream_seq == 50]
    )
    left = [one.stream_seq for one in await stores.history.dead_letters(after=0, limit=9)]
    assert 50 not in left
    if isinstance(erased, SessionKey):
        assert left == [60]
    assert 50 in await stores.erasures.to_purge(10)


SAID = {"messages": [{"role": "user", "content": "secret"}]}
LONG = {"messages": [{"role": "user", "content": "secret" * 20_000}]}


@pytest.mark.proves("X9", "A6")
@pytest.mark.parametrize("erased", [KEY, KEY.agent_id])
@pytest.mark.parametrize(
    "payload",
    [
        # The letter keeps the beginning of it alone, in which no session stands.
        json.dumps({"event_id": "e-1", **LONG, **KEY._asdict()}),
        json.dumps({**KEY._asdict(), **SAID}),
        json.dumps({**KEY._asdict(), **SAID})[:-1],
    ],
)
async def test_an_erasure_reaches_the_letters_that_name_a_session_anywhere_and_for_any_reason(
    stores: Stores, erase: Erase, erased: SessionKey | AgentId, payload: str
) -> None:
    mine = letters(f"turn.completed.{TWIN.agent_id}.x", payload.encode())
    others = payload.replace(KEY.agent_id, "eve").encode()
    await stores.ingest(turn(1, user("q")))
    both = (*mine, *letters(f"turn.completed.{TWIN.agent_id}.x", others, first_seq=60))
    await stores.intake.ingest((), both, installation=stores.installation)

    await erase(stores, erased)
    await stores.intake.ingest((), mine, installation=stores.installation)

    left = [one.stream_seq for one in await stores.history.dead_letters(after=0, limit=9)]
    assert left == [60]
    assert 50 in await stores.erasures.to_purge(10)


@pytest.mark.proves("A6", "I5", "L12")
async def test_letters_whose_subjects_name_an_agent_without_a_session_go_with_it(
    stores: Stores, erase: Erase
) -> None:
    """A6: by the erasure, and published again after it; those of other agents stay and come."""
    mine = ("turn.completed.ada", "turn.completed.ada.%zz", "tool.result.ada.s-1.more")
    others = ("turn.completed.Ada.%zz", "turn.completed.adamant", "turn.completed.%zz.ada")
    found = [
        letter
        for seq, subject in enumerate((*mine, *others), start=50)
        for letter in letters(subject, b"secret", first_seq=seq)
    ]
    assert [letter.key for letter in found] == [None] * 6
    await stores.ingest(turn(1, user("q")))
    await stores.intake.ingest((), found, installation=stores.installation)

    await erase(stores, KEY.agent_id)
    left = [one.stream_seq for one in await stores.history.dead_letters(after=0, limit=9)]
    assert left == [53, 54, 55]

    again = [letter._replace(stream_seq=letter.stream_seq + 100) for letter in found]
    replays = {letter.stream_seq: letter.stream_seq - 100 for letter in again}
    await stores.intake.ingest((), again, replays=replays, installation=stores.installation)
    left = [one.stream_seq for one in await stores.history.dead_letters(after=0, limit=9)]
    assert left == [53, 54, 55, 153, 154, 155]


@pytest.mark.proves("A6", "I5")
@pytest.mark.parametrize("erased", [KEY, KEY.agent_id])
async def test_a_replay_that_read_a_letter_before_its_erasure_brings_nothing_back(
    stores: Stores, erase: Erase, erased: SessionKey | AgentId
) -> None:
    """A6: each letter is published again after the erasure, as an event that is good by now and as one that is not."""
    said = {"event_id": "e-1", **KEY._asdict(), "messages": [{"role": "user", "content": "secret"}]}
    good, bad = json.dumps(said).encode(), json.dumps(said | {"messages": "secret"}).encode()
    await stores.ingest(turn(1, user("q")))
    await stores.intake.ingest((), letters("turn.completed", bad), installation=stores.installation)
    await erase(stores, erased)

    async def store(*deliveries: Delivery) -> None:
        batch = decode_batch(deliveries, count=len)
        await ingest(batch, store=stores.intake, installation=stores.installation)

    await store(
        Delivery("turn.completed", good, 101, NOON, replay_of=50),
        Delivery("turn.completed", bad, 102, NOON, replay_of=50),
    )
    assert await is_unknown(stores)
    assert await stores.history.dead_letters(after=0, limit=9) == []
    assert {101, 102} <= set(await stores.erasures.to_purge(10))

    # The replay of one that came after the erasure.
    await store(Delivery("turn.completed", good, 104, NOON, replay_of=103))
    assert await positions(stores) == [104 * 1024]
