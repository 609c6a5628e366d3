"""Dead letters in every store: kept as they were published, found again, and replayed once."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.store_fixtures import KEY, NOON, Stores, turn, user
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.errors import Conflict
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.operations.query.history import dead_letters
from turnfold.ports.ingest import PAYLOAD_KEPT_BYTES, DeadLetter, Installation


def letters(*payloads: bytes, first_seq: int = 1) -> Sequence[DeadLetter]:
    """The dead letters that these payloads become."""
    deliveries = [
        Delivery("turn.completed", payload, seq, NOON + seq)
        for seq, payload in enumerate(payloads, start=first_seq)
    ]
    return decode_batch(deliveries, count=len).dead


def limited(stores: Stores, most: int) -> Installation:
    """The rules of an installation where an agent may have so many sessions."""
    return replace(stores.installation, max_sessions=most)


def session(number: int, agent: str = "ada") -> SessionKey:
    return SessionKey(AgentId(agent), SessionId(f"new-{number}"))


@pytest.mark.proves("I5")
async def test_a_letter_keeps_its_bytes_and_says_when_they_are_not_all(stores: Stores) -> None:
    long = b"x" * (PAYLOAD_KEPT_BYTES + 1)
    await stores.intake.ingest(
        [], letters(b"\x00\xffno json", long), installation=stores.installation
    )

    short, cut = await stores.letters.letters([1, 2, 77])

    assert (short.payload, short.is_whole) == (b"\x00\xffno json", True)
    assert (cut.payload, cut.is_whole, cut.row.size_bytes) == (long[:-1], False, len(long))


@pytest.mark.proves("I5")
async def test_what_the_store_refuses_is_kept_as_it_was_published(stores: Stores) -> None:
    await stores.ingest(turn(1, user("first"), event_id="e"))
    await stores.intake.ingest(
        [turn(2, user("other"), event_id="e")],
        (),
        installation=stores.installation,
        payloads={2: b"as published"},
    )

    (refused,) = await stores.letters.letters([1])

    assert (refused.payload, refused.row.reason, refused.is_whole) == (
        b"as published",
        "event_id_reused",
        True,
    )


@pytest.mark.proves("I5")
async def test_letters_that_were_not_replayed_come_in_pages_up_to_a_bound(stores: Stores) -> None:
    await stores.intake.ingest(
        [], letters(b"{", b"[]", b"{", b"{", b"{"), installation=stores.installation
    )
    await stores.letters.replayed(3, now_ms=NOON)

    every = await stores.letters.unreplayed(reason=None, after=1, until=4, limit=9)
    of_one = await stores.letters.unreplayed(
        reason="not_json", after=0, until=await stores.letters.newest_id(), limit=2
    )

    assert [one.row.dead_letter_id for one in every] == [2, 4]
    assert [one.row.dead_letter_id for one in of_one] == [1, 4]
    assert [row.replayed_at_ms for row in await stores.history.dead_letters(after=0, limit=9)] == [
        None,
        None,
        NOON,
        None,
        None,
    ]


@pytest.mark.proves("I5", "O10")
async def test_a_letter_is_listed_with_the_time_of_its_replay(stores: Stores) -> None:
    await stores.intake.ingest([], letters(b"{", b"{"), installation=stores.installation)
    await stores.letters.replayed(2, now_ms=NOON)

    listed = (await dead_letters(after=0, limit=9, store=stores.history))["dead_letters"]

    assert [one["replayed_at"] for one in listed] == [None, "2027-01-15T08:00:00.000Z"]
    assert [one["at"] for one in listed] == ["2027-01-15T08:00:00.001Z", "2027-01-15T08:00:00.002Z"]


@pytest.mark.proves("I5", "X3", "O10")
async def test_the_subject_of_a_letter_is_kept_without_what_no_database_takes(
    stores: Stores,
) -> None:
    dead = decode_batch([Delivery("turn.\0completed.\ud800", b"{", 1, NOON)], count=len).dead
    await stores.intake.ingest([], dead, installation=stores.installation)

    (kept,) = await stores.letters.letters([1])

    assert kept.row.subject == "turn.completed.?"


@pytest.mark.proves("I5")
async def test_it_is_told_what_a_sequence_came_to(stores: Stores) -> None:
    await stores.intake.ingest(
        [turn(1, user("fine"))], letters(b"{", first_seq=2), installation=stores.installation
    )

    came = await stores.letters.replay_outcomes([1, 2, 3])

    assert came[1] is None
    assert came[2] is not None
    assert came[2].reason == "not_json"
    assert 3 not in came


# --- how many sessions an agent may have


@pytest.mark.proves("X4")
async def test_beyond_its_limit_an_agent_begins_no_session_and_goes_on_in_those_it_has(
    stores: Stores,
) -> None:
    installation = limited(stores, 3)
    batch = [turn(number, user("hello"), key=session(number)) for number in range(1, 6)]
    done = await stores.intake.ingest(
        batch, (), installation=installation, payloads=dict.fromkeys(range(1, 6), b"published")
    )

    again = await stores.intake.ingest(
        [turn(10, user("more"), key=session(2)), turn(11, user("new"), key=session(9))],
        (),
        installation=installation,
    )

    assert (done.events, done.dead_letters) == (3, 2)
    assert (again.events, again.dead_letters) == (1, 1)
    found = await stores.history.sessions(agent_ids={"ada"}, limit=9)
    assert sorted((one.session_id, one.messages_total) for one in found) == [
        ("new-1", 1),
        ("new-2", 2),
        ("new-3", 1),
    ]
    told = await stores.history.dead_letters(after=0, limit=9)
    assert [(row.stream_seq, row.reason) for row in told] == [
        (4, "too_many_sessions"),
        (5, "too_many_sessions"),
        (11, "too_many_sessions"),
    ]
    assert (await stores.letters.letters([1]))[0].payload == b"published"


@pytest.mark.proves("X4", "L12")
async def test_the_limit_of_one_agent_is_nothing_to_another(stores: Stores) -> None:
    installation = limited(stores, 1)
    mine = [turn(number, user("hello"), key=session(number)) for number in (1, 2)]
    theirs = [
        turn(number, user("hello"), key=session(number, "bob"), event_id=f"b{number}")
        for number in (3, 4)
    ]

    done = await stores.intake.ingest([*mine, *theirs], (), installation=installation)

    assert (done.events, done.dead_letters) == (2, 2)


@pytest.mark.proves("X4", "A6")
async def test_what_is_erased_makes_room(stores: Stores) -> None:
    installation = limited(stores, 2)
    await stores.intake.ingest(
        [turn(1, user("q"), key=session(1)), turn(2, user("q"), key=session(2))],
        (),
        installation=installation,
    )
    await stores.changes.erase(session(1), last_seq=2, now_ms=NOON)
    # One that nobody knows leaves a tombstone, and no more room than there was.
    await stores.changes.erase(session(7), last_seq=2, now_ms=NOON)

    after_one = await stores.intake.ingest(
        [turn(seq, user("q"), key=session(seq)) for seq in (3, 4)], (), installation=installation
    )
    await stores.changes.erase(AgentId("ada"), last_seq=4, now_ms=NOON)
    after_all = await stores.intake.ingest(
        [turn(seq, user("q"), key=session(seq)) for seq in (5, 6, 7)], (), installation=installation
    )

    assert (after_one.events, after_one.dead_letters) == (1, 1)
    assert (after_all.events, after_all.dead_letters) == (2, 1)


@pytest.mark.proves("X4")
async def test_a_policy_begins_no_session_beyond_the_limit_either(stores: Stores) -> None:
    await stores.ingest(turn(1, user("q")))

    with pytest.raises(Conflict):
        await stores.changes.set_policy(
            session(1), PolicyRequest(mode="manual"), installation=limited(stores, 1), now_ms=NOON
        )

    told = await stores.changes.set_policy(
        KEY, PolicyRequest(mode="manual"), installation=limited(stores, 1), now_ms=NOON
    )
    assert told["mode"] == "manual"


# --- many sessions, page by page


@pytest.mark.proves("X4")
async def test_sessions_are_listed_page_by_page_each_once(stores: Stores) -> None:
    batch = [turn(seq, user("q"), key=session(seq), at_ms=NOON + seq // 2) for seq in range(1, 8)]
    await stores.ingest(*batch)
    await stores.changes.set_policy(
        session(99), PolicyRequest(mode="manual"), installation=stores.installation, now_ms=NOON
    )

    seen = []
    after = None
    while page := await stores.history.sessions(agent_ids=None, limit=3, after=after):
        seen += [one.session_id for one in page]
        after = page[-1].place

    assert seen == ["new-6", "new-7", "new-4", "new-5", "new-2", "new-3", "new-1", "new-99"]


@pytest.mark.proves("I5", "X2")
async def test_a_letter_whose_subject_names_what_no_database_keeps_is_stored_without_a_session(
    stores: Stores,
) -> None:
    dead = decode_batch([Delivery("turn.completed.%00.%00", b"no json", 1, NOON)], count=len).dead

    await stores.intake.ingest([turn(2, user("Hello."))], dead, installation=stores.installation)
    (letter,) = await stores.letters.letters([1])

    assert letter.row.subject == "turn.completed.%00.%00"
