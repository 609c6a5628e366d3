"""How sessions are read, in every store: windows, histories, versions, the audit, and notices."""

import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import pytest

from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    picture,
    result,
    summary,
    turn,
    turns,
    user,
)
from turnfold.contracts.history_requests import HistoryRequest
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.history.as_of import AtVersion
from turnfold.core.history.audit_chain import row_hash
from turnfold.errors import TooLarge, UnknownSession
from turnfold.messages import AgentId, SessionId, SessionKey, position_of
from turnfold.operations.query.history import history, sessions
from turnfold.ports.query import (
    WindowSnapshot,
)
from turnfold.store.query.originals import BY_ID_CHARACTERS, PAGE_CHARACTERS

NOBODY = SessionKey(AgentId("ada"), SessionId("never"))


def other(number: int) -> SessionKey:
    return SessionKey(AgentId("ada"), SessionId(f"s-{number}"))


# --- windows


@pytest.mark.proves("W1", "L8")
async def test_a_window_reads_the_texts_that_were_chosen_and_those_alone_matter(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 3))
    wanted = [position_of(1, 1), position_of(3, 0)]

    chosen, bodies = await stores.windows.window(
        KEY, on_session=lambda _: None, on_messages=lambda facts: (len(facts.messages), wanted)
    )

    assert chosen == 6
    assert [json.loads(bodies[position])["content"] for position in wanted] == [
        "answer 1",
        "question 3",
    ]


@pytest.mark.proves("W6", "L8")
async def test_a_glance_that_answers_reads_no_message(stores: Stores) -> None:
    await stores.ingest(*turns(1, 3))

    def choose(_: WindowSnapshot) -> tuple[str, Sequence[int]]:
        raise AssertionError("the session was enough")

    seen, bodies = await stores.windows.window(
        KEY,
        on_session=lambda facts: f"revision of {facts.session and facts.session.sid}",
        on_messages=choose,
    )

    assert seen.startswith("revision of ")
    assert bodies == {}


@pytest.mark.proves("W1")
async def test_a_window_of_a_session_nobody_published_in_says_so(stores: Stores) -> None:
    await stores.ingest(*turns(1, 1))

    facts = await stores.facts(NOBODY)

    assert (facts.session, facts.messages, facts.ingested_to) == (None, (), 1)


@pytest.mark.proves("W1")
async def test_a_glance_may_answer_for_a_session_nobody_published_in(stores: Stores) -> None:
    found, _ = await stores.windows.window(
        NOBODY,
        on_session=lambda facts: f"to {facts.ingested_to}",
        on_messages=lambda _: ("chosen", ()),
    )

    assert found == "to 0"


@pytest.mark.proves("L7", "W1")
async def test_a_window_knows_counts_and_wishes_of_its_session(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7), turn(8, user("hello"), model="gpt-5", at_ms=NOON + 88))

    session = (await stores.facts()).session

    assert session is not None
    assert (
        session.messages_total,
        session.live_messages,
        session.compactions,
        session.version,
    ) == (15, 5, 1, None)
    assert (session.model, session.last_event_at_ms, session.factor) == ("gpt-5", NOON + 88, 1.0)


@pytest.mark.proves("L8")
async def test_a_window_of_very_many_live_messages_still_finds_its_texts(stores: Stores) -> None:
    many = 700
    for start in range(0, many, 350):
        messages = [user(f"m{number}") for number in range(start, start + 350)]
        await stores.ingest(turn(start + 1, *messages, key=other(1)))
    chosen = [position_of(1, 0), position_of(351, 349)]

    _, bodies = await stores.windows.window(
        other(1), on_session=lambda _: None, on_messages=lambda _: (True, chosen)
    )

    assert len(bodies) >= 2
    assert set(chosen) <= set(bodies)


# --- histories


@pytest.mark.proves("A5")
async def test_a_history_is_read_in_pages_either_way(stores: Stores) -> None:
    await stores.ingest(*turns(1, 5))

    forwards = await stores.history.page(KEY, after_position=position_of(1, 1), limit=3)
    backwards = await stores.history.page(
        KEY, before_position=position_of(5, 1), limit=3, newest_first=True
    )
    between = await stores.history.page(
        KEY, after_position=position_of(2, 0), before_position=position_of(3, 1), limit=9
    )

    assert [one.message_id for one in forwards] == ["e2#0", "e2#1", "e3#0"]
    assert [one.message_id for one in backwards] == ["e5#0", "e4#1", "e4#0"]
    assert [one.message_id for one in between] == ["e2#1", "e3#0"]
    assert await stores.history.has_messages(KEY, after_position=position_of(5, 0))
    assert not await stores.history.has_messages(KEY, after_position=position_of(5, 1))
    assert not await stores.history.has_messages(KEY, before_position=position_of(1, 0))


@pytest.mark.proves("A5")
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_of_very_long_messages_ends_early(
    stores: Stores, *, newest_first: bool
) -> None:
    await stores.ingest(turn(1, *[user("x" * 700_000 + str(number)) for number in range(4)]))

    page = await stores.history.page(KEY, limit=4, newest_first=newest_first)

    ids = ["e1#0", "e1#1", "e1#2", "e1#3"]
    assert [one.message_id for one in page] == (ids[:1:-1] if newest_first else ids[:2])


@pytest.mark.proves("A5", "X6")
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("with_retracted", [False, True])
async def test_pictures_count_in_the_size_of_a_page(
    stores: Stores, *, newest_first: bool, with_retracted: bool
) -> None:
    await stores.ingest(*[turn(seq, user([picture(300_000)])) for seq in range(1, 11)])

    page = await stores.history.page(
        KEY, limit=10, newest_first=newest_first, with_retracted=with_retracted
    )

    assert len(page) == PAGE_CHARACTERS // 300_000


@pytest.mark.proves("A5", "L1")
async def test_messages_are_found_by_their_ids_whatever_their_state(stores: Stores) -> None:
    await stores.ingest(*turns(1, 20))

    found = await stores.history.by_ids(
        KEY,
        [
            "e20#1",
            "e1#0",
            "e1#7",
            "nothing",
            "e9#0",
            "e1#x",
            "e2#00",
            "#1",
            "unknown#0",
            "a\0b#0",
            "\ud800#0",
            f"e1#{'9' * 5_000}",
        ],
    )

    assert [one.message_id for one in found] == ["e1#0", "e9#0", "e20#1"]


@pytest.mark.proves("X6")
@pytest.mark.parametrize("with_retracted", [False, True])
async def test_several_messages_by_ids_are_refused_if_they_are_too_large_together(
    stores: Stores, *, with_retracted: bool
) -> None:
    third = "x" * (BY_ID_CHARACTERS // 3)
    await stores.ingest(*[turn(seq, user(third)) for seq in (1, 2, 3)])
    ids = ["e1#0", "e2#0", "e3#0"]

    with pytest.raises(TooLarge, match="ask for fewer messages"):
        await stores.history.by_ids(KEY, ids, with_retracted=with_retracted)

    found = await stores.history.by_ids(KEY, [*ids[1:], "e2#0"], with_retracted=with_retracted)
    assert [one.message_id for one in found] == ids[1:]
    cut = await stores.history.by_ids(KEY, ids, with_retracted=with_retracted, is_cut=True)
    assert [one.message_id for one in cut] == ids[:2]


@pytest.mark.proves("L12")
async def test_an_id_finds_nothing_in_another_session(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("mine"), event_id="e", key=other(1)), turn(2, user("other"), key=other(2))
    )

    assert await stores.history.by_ids(other(2), ["e#0"]) == []


@pytest.mark.proves("A2")
@pytest.mark.parametrize("ask", ["page", "named", "counts", "versions", "states"])
async def test_a_session_nobody_published_in_is_unknown(stores: Stores, ask: str) -> None:
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "page": lambda: stores.history.page(NOBODY, after_position=0, limit=1),
        "named": lambda: stores.history.by_ids(NOBODY, ["e#0"]),
        "counts": lambda: stores.history.counts(NOBODY),
        "versions": lambda: stores.history.versions(NOBODY),
        "states": lambda: stores.history.states_as_of(NOBODY, AtVersion(1)),
    }

    with pytest.raises(UnknownSession, match="no event of this session is stored"):
        await asked[ask]()


@pytest.mark.proves("L7", "A2")
async def test_counts_say_where_every_message_is(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)
    await stores.ingest(*turns(8, 5))

    counts = await stores.history.counts(KEY)

    assert (
        counts.messages_total,
        counts.messages_live,
        counts.messages_pending,
        counts.messages_covered,
    ) == (24, 4, 10, 10)
    assert (counts.summary_version, counts.summary_versions, counts.compactions) == (1, 1, 2)
    assert counts.audit_rows == len(await stores.history.audit(KEY, after=0, limit=100))


@pytest.mark.proves("A2")
async def test_sessions_are_listed_with_the_newest_first_and_by_agent(stores: Stores) -> None:
    stranger = SessionKey(AgentId("bob"), SessionId("s-1"))
    for seq, key in enumerate((other(1), stranger, other(3), other(2)), start=1):
        await stores.ingest(turn(seq, user("hello"), key=key))

    every = await stores.history.sessions(agent_ids=None, limit=3)
    mine = await stores.history.sessions(agent_ids={"ada"}, limit=9)

    assert [(one.agent_id, one.session_id) for one in every] == [
        ("ada", "s-2"),
        ("ada", "s-3"),
        ("bob", "s-1"),
    ]
    assert [one.session_id for one in mine] == ["s-2", "s-3", "s-1"]


@pytest.mark.proves("A2")
async def test_pages_of_sessions_go_on_after_those_without_an_event(stores: Stores) -> None:
    await stores.ingest(turn(1, user("hello")))
    for number in range(2, 5):
        await stores.changes.set_policy(
            other(number),
            PolicyRequest(mode="manual"),
            installation=stores.installation,
            now_ms=NOON,
        )
    listed: list[str] = []
    after = None

    while len(listed) < 4:
        page = await sessions(agent_ids=None, after=after, limit=1, store=stores.history)
        listed += [one["session_id"] for one in page["sessions"]]
        after = page["next_after"]

    assert listed == ["s-1", "s-2", "s-3", "s-4"]


@pytest.mark.proves("L12")
async def test_a_page_of_sessions_does_not_tell_how_many_other_agents_began(
    stores: Stores,
) -> None:
    """L12: an agent that begins a session, lists it, and does so again."""

    async def end_of_page() -> object:
        page = await sessions(agent_ids={"ada"}, after=None, limit=1, store=stores.history)
        return page["next_after"]

    await stores.ingest(turn(1, user("hello")))
    first = await end_of_page()
    await stores.changes.erase(KEY, last_seq=1, now_ms=NOON)
    for seq in range(2, 5):
        key = SessionKey(AgentId("bob"), SessionId(f"s-{seq}"))
        await stores.ingest(turn(seq, user("hello"), key=key))
    await stores.ingest(turn(5, user("hello"), at_ms=NOON + 1))

    assert await end_of_page() == first


@pytest.mark.proves("A2")
async def test_nothing_stands_before_the_first_position(stores: Stores) -> None:
    await stores.ingest(*turns(1, 3))

    answer = await history(KEY, HistoryRequest(before_position=0), store=stores.history)

    assert json.loads(answer) == {
        "messages": [],
        "next_position": None,
        "previous_position": None,
    }


@pytest.mark.proves("L10", "A2")
async def test_a_version_stays_as_it_was_when_others_follow(stores: Stores) -> None:
    for first_seq, text in ((1, "First."), (8, "Second.")):
        await stores.ingest(*turns(first_seq, 7))
        (job,) = await stores.claim()
        await stores.jobs.commit(
            job,
            summary(text, "port 8443"),
            reason="timeout" if first_seq == 8 else None,
            now_ms=NOON + first_seq,
        )

    in_force, (found,) = await stores.history.versions(KEY, 1)

    assert in_force == 2
    assert (found.version, found.text, found.kind, found.model, found.created_at_ms) == (
        1,
        "First.",
        "llm",
        "test/model",
        NOON + 1,
    )
    assert await stores.history.versions(KEY, 3) == (2, [])


@pytest.mark.proves("X6", "L8")
async def test_the_list_of_versions_reads_no_content_of_them(stores: Stores) -> None:
    for first_seq in (1, 8):
        await stores.ingest(*turns(first_seq, 7))
        (job,) = await stores.claim()
        await stores.jobs.commit(
            job, summary("First.", "port 8443"), reason=None, now_ms=NOON + first_seq
        )

    _, listed = await stores.history.versions(KEY)

    assert [(one.version, one.text, one.sections, one.ledger) for one in listed] == [
        (1, "", "{}", "[]"),
        (2, "", "{}", "[]"),
    ]
    assert [one.tokens for one in listed] == [
        one.tokens for number in (1, 2) for one in (await stores.history.versions(KEY, number))[1]
    ]


# --- the audit


@pytest.mark.proves("A1")
async def test_every_audit_row_seals_the_one_before(stores: Stores) -> None:
    await stores.ingest(*turns(1, 20))
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)

    rows = await stores.history.audit(KEY, after=0, limit=100)

    assert rows[0].prev_hash == ""
    assert all(after.prev_hash == before.hash for before, after in pairwise(rows))
    assert all(row.hash == row_hash(row.prev_hash, row._asdict()) for row in rows)


@pytest.mark.proves("A1", "L12")
async def test_the_audit_is_read_in_pages_and_by_session(stores: Stores) -> None:
    await stores.ingest(*turns(1, 20))
    await stores.ingest(
        *[turn(100 + seq, user("q"), assistant("a"), key=other(2)) for seq in range(1, 8)]
    )

    first = await stores.history.audit(KEY, after=0, limit=2)
    rest = await stores.history.audit(KEY, after=2, limit=100)

    assert [row.ordinal for row in [*first, *rest]] == list(range(1, 2 + len(rest) + 1))
    assert {row.session_id for row in [*first, *rest]} == {"s-1"}
    assert await stores.history.audit(NOBODY, after=0, limit=9) == []


# --- notices


@pytest.mark.proves("A3")
async def test_notices_wait_in_order_until_they_were_sent(stores: Stores) -> None:
    await stores.ingest(*turns(1, 30))
    waiting = await stores.outbox.unsent(100)

    await stores.outbox.sent(await stores.outbox.unsent(2))

    assert len(waiting) > 3
    assert list(await stores.outbox.unsent(100)) == list(waiting[2:])
    assert [one.outbox_id for one in waiting] == sorted(one.outbox_id for one in waiting)


@pytest.mark.proves("A3")
async def test_a_notice_that_was_sent_never_comes_again(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    first = await stores.outbox.unsent(9)
    await stores.outbox.sent(first)

    await stores.ingest(*turns(8, 7))

    assert not {one.outbox_id for one in first} & {
        one.outbox_id for one in await stores.outbox.unsent(9)
    }


@pytest.mark.proves("A3", "L2")
async def test_what_comes_twice_is_told_once(stores: Stores) -> None:
    for _ in range(2):
        await stores.ingest(*turns(1, 7), result(8, "c", "42"))

    assert len(await stores.outbox.unsent(9)) == 1
