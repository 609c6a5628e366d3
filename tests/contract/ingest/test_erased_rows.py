"""What nobody may see of an erased session while its rows are deleted, in every store."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.ingest.test_erase import DAY_MS, letters
from tests.contract.ingest.test_usage import MODEL, factor, reporting
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
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.compact.jobs.claim import DUE
from turnfold.store.database import statements
from turnfold.store.ingest import erased_letters
from turnfold.store.ingest.erase import SESSIONS_AT_ONCE, EraseResult

TWIN = SessionKey(AgentId("bob"), KEY.session_id)


async def erase(
    stores: Stores, key: SessionKey | AgentId = KEY, *, prefix: str | None = None
) -> EraseResult:
    return await stores.changes.erase(key, last_seq=100, now_ms=NOON + 9_000, prefix=prefix)


def again(events: Sequence[DecodedEvent], first_seq: int) -> list[DecodedEvent]:
    """The same events, published once more."""
    return [one._replace(stream_seq=seq) for seq, one in enumerate(events, start=first_seq)]


@pytest.mark.proves("A6", "L1", "L2")
async def test_a_session_that_begins_anew_stays_while_the_rows_of_the_erased_one_are_deleted(
    stores: Stores,
) -> None:
    old = [*turns(1, 16), retracted(17, "e1#0")]
    await stores.ingest(*old)
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 5_000)
    await erase(stores)
    await stores.ingest(*turns(101, 8))
    before = await stores.seen()

    seq, portions = 200, 0
    while await stores.erasures.delete_rows():
        portions += 1
        await stores.ingest(*old, *again(old, seq))
        seq += len(old)
        now = await stores.seen()
        assert now.sessions == before.sessions
        assert now.dead_letters == ()
        assert faults(now) == []

    assert portions > len(old) / 10
    assert set(before.sessions) == {KEY}
    purged = [*await stores.erasures.to_purge(10_000)]
    assert purged == [*range(1, 18), *range(200, seq)]


@pytest.mark.proves("A6", "L12")
async def test_no_list_no_sum_and_no_queue_counts_an_erased_session(stores: Stores) -> None:
    await stores.ingest(*turns(1, 16), turn(17, user("q"), key=TWIN))
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 5_000)
    await stores.ingest(*turns(18, 8))
    assert await stores.jobs.next_due_ms() is not None

    await erase(stores)

    while True:
        known = await stores.lists.known_events(KEY.agent_id, ["e1", "e2", "e999"])
        assert known == (frozenset(), frozenset({"e1", "e2"}))
        assert await stores.lists.sessions(KEY.agent_id, prefix="", after=None, limit=9) == []
        listed = await stores.history.sessions(agent_ids=None, limit=9)
        assert [(one.agent_id, one.session_id) for one in listed] == [TWIN]
        totals = await stores.inspections.totals(None)
        assert (totals.agents, totals.sessions, totals.messages) == (1, 1, 1)
        assert (totals.summaries, totals.compactions_open) == (0, 0)
        agents = await stores.inspections.agents(None, after=None, limit=9)
        assert [one.agent_id for one in agents] == [TWIN.agent_id]
        assert await stores.inspections.compactions("open", agent_ids=None, limit=9) == []
        costs = await stores.inspections.costs(None, since_day=0, agents=9)
        assert costs.models == []
        assert await stores.jobs.next_due_ms() is None
        assert await stores.claim(NOON + 900_000) == []
        # Else sessions that nobody may claim would take the places of others.
        due = await stores.database.snapshot(lambda sql: DUE.rows(sql, NOON + 900_000, 9))
        assert due == []
        if not await stores.erasures.delete_rows():
            break


@pytest.mark.proves("A6", "I3", "L1")
async def test_a_copy_that_comes_after_an_erasure_takes_no_stored_event_along(
    stores: Stores,
) -> None:
    """A6: the event was published anew after the erasure, and an older copy of it is dropped."""
    await stores.ingest(*turns(1, 2))
    await erase(stores)
    anew = turn(120, user("published anew"))
    await stores.ingest(anew)

    await stores.ingest(anew._replace(stream_seq=50))
    await stores.ingest(anew)

    known = await stores.lists.known_events(KEY.agent_id, [anew.event_id])
    assert known == (frozenset({anew.event_id}), frozenset())
    assert 120 not in await stores.erasures.to_purge(1_000)


@pytest.mark.proves("A6", "T4")
async def test_reports_of_an_erased_session_teach_no_other(stores: Stores) -> None:
    await stores.ingest(*reporting(12))
    third, fourth = (SessionKey(KEY.agent_id, SessionId(name)) for name in ("third", "fourth"))
    await stores.ingest(turn(50, user("q"), key=third, model=MODEL))
    assert await factor(stores, third) == 1.25

    await erase(stores)
    await stores.ingest(turn(101, user("q"), key=fourth, model=MODEL))

    assert await factor(stores, fourth) == 1.0


@pytest.mark.proves("A6", "L12")
@pytest.mark.parametrize("prefix", [None, "many-"])
async def test_many_sessions_of_an_agent_go_in_several_transactions(
    stores: Stores, prefix: str | None
) -> None:
    number = SESSIONS_AT_ONCE + 20
    keys = [SessionKey(KEY.agent_id, SessionId(f"many-{each}")) for each in range(number)]
    await stores.ingest(*(turn(seq, user("q"), key=key) for seq, key in enumerate(keys, start=1)))
    other = SessionKey(KEY.agent_id, SessionId("other"))
    await stores.ingest(turn(number + 1, user("q"), key=other), turn(500, user("q"), key=TWIN))

    done = await stores.changes.erase(
        KEY.agent_id, last_seq=number, now_ms=NOON + 9_000, prefix=prefix
    )

    left = {TWIN} if prefix is None else {TWIN, other}
    assert done == EraseResult(*[number + (prefix is None)] * 2)
    assert set((await stores.seen()).sessions) == left
    await stores.delete_rows()
    assert set((await stores.seen()).sessions) == left
    (row,) = await stores.history.audit(keys[-1], after=0, limit=9)
    assert (row.phase, row.reason) == ("erased", "agent" if prefix is None else "prefix")


@pytest.mark.proves("A6", "X6")
@pytest.mark.parametrize("session", ["", ".ada.s-{}"], ids=["no_session", "one_each"])
async def test_any_number_of_dead_letters_expire_page_by_page(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    subjects = [f"turn.completed{session.format(number)}" for number in range(2_500)]
    refused = [letters(subject, b"[]", first_seq=1 + n)[0] for n, subject in enumerate(subjects)]
    await stores.intake.ingest((), refused, installation=stores.installation)
    default, _ = installation_of(replace(SMALL, retain_days=3))
    snapshot, sizes = stores.database.snapshot, list[int]()

    async def counted(read: Callable[..., Any]) -> Any:
        found = await snapshot(read)
        sizes.append(len(found))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(stores.database, "snapshot", counted)
        at_ms = NOON + 4 * DAY_MS
        erased = await stores.erasures.expire_letters(installation=default, now_ms=at_ms)

    assert erased == 2_500
    assert max(sizes) <= 1_000


@pytest.mark.proves("A6", "X6")
@pytest.mark.parametrize("subject", ["eve.s-1", "bob.%41"])
@pytest.mark.parametrize("is_valid", [False, True])
async def test_an_erasure_reads_no_bytes_of_events_that_named_other_sessions_than_their_subjects(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, subject: str, *, is_valid: bool
) -> None:
    """X6: any agent may have had gigabytes of them refused, also under subjects of no session."""
    rest = {"event_id": "e", "messages": [user("x" * 60_000)]} if is_valid else {"x": "x" * 60_000}
    named = json.dumps({**TWIN._asdict(), **rest}).encode()
    refused = letters(f"turn.completed.{subject}", *[named] * 60)
    await stores.ingest(turn(1, user("hello")))
    await stores.intake.ingest((), refused, installation=stores.installation)
    fetched, sizes = statements._fetched, list[int]()

    def measured(*asked: Any) -> Any:
        rows = fetched(*asked)
        sizes.append(sum(len(bytes(v)) for row in rows for v in row if isinstance(v, bytes)))
        return rows

    monkeypatch.setattr(statements, "_fetched", measured)
    await erase(stores)

    assert sum(sizes) < 1_000
    assert (await erase(stores, TWIN)).dead_letters == 60


@pytest.mark.proves("A6")
async def test_an_erasure_passes_over_a_letter_that_another_worker_deletes_meanwhile(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A6: on PostgreSQL, each statement of a transaction sees what others have committed."""
    named = json.dumps(KEY._asdict()).encode()
    refused = letters("turn.completed.eve.s-1", named, named)
    # As workers of an earlier release store them: the payload alone names the session.
    refused = [letter._replace(detail="", reason="subject_mismatch") for letter in refused]
    await stores.intake.ingest((), refused, installation=stores.installation)
    rows = erased_letters._PAYLOAD.rows

    def deleted(connection: Any, letter_id: int) -> Any:
        return rows(connection, letter_id) if letter_id % 2 else ()

    monkeypatch.setattr(erased_letters._PAYLOAD, "rows", deleted)

    assert (await erase(stores)).dead_letters == 1
