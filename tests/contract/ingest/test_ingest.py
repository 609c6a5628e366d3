"""What every store does with events."""

import asyncio
import json
from base64 import b64encode
from random import Random
from typing import Any

import pytest

from tests.invariants import faults
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    result,
    system,
    tool,
    turn,
    turns,
    user,
    words,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.messages import AgentId, Priority, SessionId, SessionKey, position_of
from turnfold.operations.ingest.decode import Delivery, decode_event
from turnfold.ports.ingest import DeadLetter
from turnfold.ports.query import (
    OriginalMessage,
)

EVERYTHING = {"after_position": 0, "limit": 1_000}
OTHER_SESSION = SessionKey(KEY.agent_id, SessionId("s-2"))
OTHER_AGENT = SessionKey(AgentId("bob"), KEY.session_id)
LONG = b64encode(Random(1).randbytes(6_000)).decode()
"""A text that no index of PostgreSQL can hold, however well it is compressed."""


async def history(stores: Stores, key: SessionKey = KEY) -> list[OriginalMessage]:
    return list(await stores.history.page(key, after_position=0, limit=1_000))


async def said(stores: Stores, key: SessionKey = KEY) -> list[Any]:
    return [json.loads(one.body)["content"] for one in await history(stores, key)]


def letter(seq: int, reason: str = "not_json") -> DeadLetter:
    return DeadLetter(seq, NOON, "turn.completed", reason, "ValueError", 3, b"}{\x00")


# --- kept to the letter, in the order of the stream


@pytest.mark.proves("L1", "I2")
async def test_a_message_comes_back_as_it_was_published(stores: Stores) -> None:
    message = r'{ "role":"user",  "content": "NUL \u0000, half a pair \ud83d, \u00e9 and é, 漢字 🙂", "x": [1.50, 1e2, {"y": null}] }'
    payload = f'{{"event_id": "e1", "agent_id": "ada", "session_id": "s-1", "messages": [{message}]}}'.encode()
    arrival = decode_event(Delivery("turn.completed", payload, 1, NOON), count=words)

    await stores.ingest(arrival)

    assert [one.body for one in await history(stores)] == [message]


@pytest.mark.proves("L3")
async def test_messages_stand_in_the_order_of_the_stream_not_of_arrival(stores: Stores) -> None:
    for seq in (3, 1, 2):
        await stores.ingest(turn(seq, user(f"q{seq}"), assistant(f"a{seq}")))

    assert await said(stores) == ["q1", "a1", "q2", "a2", "q3", "a3"]
    assert [one.position for one in await history(stores)][:2] == [
        position_of(1, 0),
        position_of(1, 1),
    ]


@pytest.mark.proves("L3")
async def test_a_batch_may_hold_its_events_in_any_order(stores: Stores) -> None:
    await stores.ingest(*reversed(turns(1, 4)))

    assert await said(stores) == [
        text for seq in range(1, 5) for text in (f"question {seq}", f"answer {seq}")
    ]


@pytest.mark.proves("L12", "C52")
async def test_equal_ids_under_two_agents_share_nothing(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("mine"), event_id="same"),
        turn(2, user("yours"), event_id="same", key=OTHER_AGENT),
    )

    assert await said(stores) == ["mine"]
    assert await said(stores, OTHER_AGENT) == ["yours"]
    assert await stores.history.dead_letters(after=0, limit=9) == []


@pytest.mark.proves("I2", "X2")
async def test_ids_of_any_characters_name_sessions_and_events(stores: Stores) -> None:
    key = SessionKey(AgentId("a.b*>% '\"; DROP TABLE"), SessionId("用户 42 🙂"))

    await stores.ingest(turn(1, user("hello"), event_id="e#1#'%_", key=key))

    (found,) = await stores.history.by_ids(key, ["e#1#'%_#0"])
    assert found.message_id == "e#1#'%_#0"


@pytest.mark.proves("I1")
async def test_json_content_of_a_result_is_shown_as_text_and_kept_as_it_was(stores: Stores) -> None:
    await stores.ingest(result(1, "c1", {"rows": [1, 2]}))

    (found,) = await history(stores)
    assert json.loads(found.body)["content"] == '{"rows":[1,2]}'
    assert found.original_content == '{"rows": [1, 2]}'


# --- once


@pytest.mark.proves("L2", "C48")
async def test_an_event_that_comes_twice_is_stored_once(stores: Stores) -> None:
    await stores.ingest(turn(1, user("hello"), event_id="e"))

    again = await stores.intake.ingest(
        [turn(2, user("hello"), event_id="e")], (), installation=stores.installation
    )

    assert (again.events, again.duplicates) == (0, 1)
    assert [one.position for one in await history(stores)] == [position_of(1, 0)]


@pytest.mark.proves("L2")
async def test_an_event_that_comes_twice_in_one_batch_is_stored_once_at_its_lowest_sequence(
    stores: Stores,
) -> None:
    done = await stores.intake.ingest(
        [
            turn(7, user("hello"), event_id="e"),
            turn(5, user("hello"), event_id="e"),
            turn(6, user("hello"), event_id="e"),
        ],
        (),
        installation=stores.installation,
    )

    assert (done.events, done.duplicates) == (1, 2)
    assert [one.position for one in await history(stores)] == [position_of(5, 0)]


@pytest.mark.proves("L2")
async def test_the_same_content_written_otherwise_is_the_same_event(stores: Stores) -> None:
    loose = b'{"event_id":"e","agent_id":"ada","session_id":"s-1","messages":[{"content":"hi","role":"user"}]}'
    spaced = b'{"event_id":"e","agent_id":"ada","session_id":"s-1","messages":[ { "role": "user", "content": "\\u0068i" } ]}'
    for seq, payload in enumerate([loose, spaced], start=1):
        await stores.ingest(
            decode_event(Delivery("turn.completed", payload, seq, NOON), count=words)
        )

    given = [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}, '{"a":1,"b":2}', {"a": True, "b": 2}]
    for seq, content in enumerate(given, 3):
        await stores.ingest(result(seq, "c", content, event_id="r"))

    assert await said(stores) == ["hi", '{"a":1,"b":2}']
    assert [one.stream_seq for one in await stores.history.dead_letters(after=0, limit=9)] == [5, 6]


@pytest.mark.proves("W12", "L2")
async def test_a_mark_stands_beside_the_message_and_makes_no_other_event_of_it(
    stores: Stores,
) -> None:
    reminder = user("Reflect on the results.") | {"is_meta": True}
    await stores.ingest(turn(1, user("fix it"), reminder, event_id="e"))

    for again in (
        turn(2, user("fix it"), reminder, event_id="e"),
        turn(3, user("fix it"), user("Reflect on the results."), event_id="e"),
    ):
        await stores.ingest(again)

    bodies = [json.loads(one.body) for one in await history(stores)]
    assert bodies == [user("fix it"), user("Reflect on the results.")]
    assert [one.is_meta for one in await history(stores)] == [False, True]
    assert [one.is_meta for one in (await stores.facts()).messages] == [False, True]
    assert (await stores.seen()).sessions[KEY].rounds == 1
    assert await stores.history.dead_letters(after=0, limit=9) == []


@pytest.mark.proves("W12", "C68")
async def test_a_message_of_a_program_is_recognized_by_its_beginning(stores: Stores) -> None:
    reminder = user("Reflect on the results and decide next steps.")
    note = user([{"type": "text", "text": " [cron] the nightly job"}])
    request = user("What does [cron] mean?")
    wish = PolicyRequest(overrides={"meta_prefixes": "[cron]; Reflect on;"})
    await stores.changes.set_policy(
        OTHER_SESSION, wish, installation=stores.installation, now_ms=NOON
    )

    for seq, key in ((1, KEY), (2, OTHER_SESSION)):
        await stores.ingest(turn(seq, request, reminder, note, assistant("[cron] it is"), key=key))

    by_default, by_wish = [
        [one.is_meta for one in await history(stores, key)] for key in (KEY, OTHER_SESSION)
    ]
    assert by_default == [False, True, False, False]
    assert by_wish == [False, True, True, False]
    assert (await stores.seen()).sessions[OTHER_SESSION].rounds == 1


@pytest.mark.proves("L2", "L3")
async def test_a_copy_earlier_in_the_stream_gives_the_event_its_place_and_its_words(
    stores: Stores,
) -> None:
    await stores.ingest(turn(4, user("second")))
    await stores.ingest(turn(9, user("first"), event_id="e", at_ms=NOON + 900))
    written = rb'{"event_id":"e","agent_id":"ada","session_id":"s-1","is_meta":true,"messages":[{"content":"first","role":"user"}]}'
    earlier = decode_event(Delivery("turn.completed", written, 2, NOON + 2), count=words)

    await stores.ingest(earlier)

    assert await said(stores) == ["first", "second"]
    assert (await history(stores))[0].body == '{"content":"first","role":"user"}'
    first = (await stores.facts()).messages[0]
    assert (first.created_at_ms, first.is_meta) == (NOON + 2, True)
    assert (await stores.seen()).sessions[KEY].rounds == 1


@pytest.mark.proves("L2", "L3", "L7")
async def test_a_copy_that_another_release_counted_otherwise_leaves_true_counts(
    stores: Stores,
) -> None:
    """Beside older workers, a session said four tokens more than its messages for each such copy."""
    payload = json.dumps(
        {"event_id": "e", **KEY._asdict(), "messages": [user("one two"), user("three")]}
    ).encode()
    late, early = (Delivery("turn.completed", payload, seq, NOON + seq) for seq in (9, 2))
    await stores.ingest(turn(4, user("second")))
    await stores.ingest(decode_event(late, count=words))

    await stores.ingest(decode_event(early, count=lambda text: 2 * words(text)))

    assert await said(stores) == ["one two", "three", "second"]
    assert faults(await stores.seen()) == []


@pytest.mark.proves("L2", "L3")
async def test_a_copy_that_was_stored_before_its_event_leaves_no_later_time(stores: Stores) -> None:
    await stores.ingest(turn(3, user("first")))
    await stores.ingest(turn(9, user("hello"), event_id="e"))

    await stores.ingest(turn(5, user("hello"), event_id="e"))

    assert (await stores.seen()).sessions[KEY].counters.last_event_at_ms == NOON + 5


@pytest.mark.proves("I1", "L3")
async def test_a_call_that_moves_takes_its_answer_along(stores: Stores) -> None:
    await stores.ingest(turn(2, assistant(None, "c"), event_id="near"), result(3, "c", "42"))
    await stores.ingest(turn(9, assistant(None, "c"), event_id="far"))

    await stores.ingest(turn(1, assistant(None, "c"), event_id="far"))

    answer = (await stores.facts()).messages[-1].answers
    assert answer is not None
    assert answer.position == position_of(2, 0)


@pytest.mark.proves("I5")
async def test_an_event_id_used_for_something_else_is_a_dead_letter_and_the_first_stays(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("first"), event_id="e"))

    await stores.ingest(turn(2, user("other"), event_id="e"))
    await stores.ingest(turn(3, user("first"), event_id="e", key=OTHER_SESSION))

    assert await said(stores) == ["first"]
    letters = await stores.history.dead_letters(after=0, limit=9)
    assert [(one.stream_seq, one.reason) for one in letters] == [
        (2, "event_id_reused"),
        (3, "event_id_reused"),
    ]
    assert await stores.history.dead_letter_counts() == {"event_id_reused": 2}


@pytest.mark.proves("I5")
async def test_a_result_that_turns_into_an_error_is_another_event(stores: Stores) -> None:
    await stores.ingest(result(1, "c", "gone", event_id="e"))

    await stores.ingest(result(2, "c", "gone", event_id="e", is_error=True))

    assert [one.reason for one in await stores.history.dead_letters(after=0, limit=9)] == [
        "event_id_reused"
    ]


@pytest.mark.proves("I5", "L2")
async def test_a_reused_event_id_does_not_take_true_copies_in_its_batch_along(
    stores: Stores,
) -> None:
    await stores.ingest(turn(5, user("first"), event_id="e"))

    done = await stores.intake.ingest(
        [
            turn(1, user("other"), event_id="e"),
            turn(2, user("first"), event_id="e"),
            turn(3, user("first"), event_id="e"),
        ],
        (),
        installation=stores.installation,
    )

    assert (done.duplicates, done.dead_letters) == (2, 1)
    assert [one.position for one in await history(stores)] == [position_of(2, 0)]


@pytest.mark.proves("L2", "C48")
async def test_workers_that_store_the_same_events_at_once_store_each_once(stores: Stores) -> None:
    events = turns(1, 24)
    batches = [events[start : start + 8] for start in (0, 4, 8, 12, 16, 0, 8, 16)]

    await asyncio.gather(*(stores.ingest(*batch) for batch in batches))

    assert len(await history(stores)) == 48
    facts = await stores.facts()
    assert facts.ingested_to == 24
    assert facts.session is not None
    assert facts.session.messages_total == 48


# --- what cannot be stored


@pytest.mark.proves("I5")
async def test_a_dead_letter_is_kept_once_and_its_neighbours_are_stored(stores: Stores) -> None:
    for _ in range(2):
        await stores.intake.ingest(
            [turn(1, user("fine"), event_id="e")], [letter(2)], installation=stores.installation
        )

    (found,) = await stores.history.dead_letters(after=0, limit=9)
    assert (found.stream_seq, found.reason, found.size_bytes, found.replayed_at_ms) == (
        2,
        "not_json",
        3,
        None,
    )
    assert await said(stores) == ["fine"]


@pytest.mark.proves("I5")
async def test_dead_letters_are_listed_in_pages(stores: Stores) -> None:
    await stores.intake.ingest(
        [], [letter(seq) for seq in range(1, 6)], installation=stores.installation
    )

    first = await stores.history.dead_letters(after=0, limit=3)
    rest = await stores.history.dead_letters(after=first[-1].dead_letter_id, limit=3)
    last = await stores.history.dead_letters(after=0, before=5, limit=3)
    assert [one.stream_seq for one in [*first, *rest, *last]] == [1, 2, 3, 4, 5, 4, 3, 2]


# --- which sequences are there


@pytest.mark.proves("W5")
async def test_what_is_ingested_is_known_up_to_the_first_gap(stores: Stores) -> None:
    await stores.ingest(*turns(1, 2))
    await stores.ingest(*turns(5, 2))

    assert (await stores.facts()).ingested_to == 2
    assert await stores.intake.gaps() == [(3, 4)]


@pytest.mark.proves("L1")
async def test_what_a_database_lacks_of_its_stream_is_known_also_behind_its_newest_event(
    stores: Stores,
) -> None:
    assert await stores.intake.gaps(up_to=3) == [(1, 3)]

    await stores.ingest(*turns(1, 2), *turns(5, 2))

    assert await stores.intake.gaps(up_to=9) == [(3, 4), (7, 9)]
    assert await stores.intake.gaps(up_to=6) == await stores.intake.gaps(up_to=4) == [(3, 4)]


@pytest.mark.proves("W5")
async def test_sequences_the_stream_lost_and_dead_letters_close_gaps(stores: Stores) -> None:
    await stores.ingest(*turns(1, 2), *turns(6, 1))

    await stores.intake.mark_ingested([(3, 3), (5, 5)])
    await stores.intake.ingest([], [letter(4)], installation=stores.installation)

    assert await stores.intake.gaps() == []
    assert (await stores.facts()).ingested_to == 6


@pytest.mark.proves("W5")
async def test_a_stream_that_begins_late_has_a_gap_before_it(stores: Stores) -> None:
    await stores.ingest(*turns(4, 1))

    assert await stores.intake.gaps() == [(1, 3)]
    assert (await stores.facts()).ingested_to == 0


# --- pairing


async def answers(stores: Stores) -> dict[str, str | None]:
    """The message that calls, by the result that answers it; `copy` for copies."""
    messages = (await stores.facts()).messages
    callers = {message.position: message.message_id for message in messages}
    results = [message for message in messages if message.role == "tool"]
    return {
        one.message_id: "copy" if one.is_copy else one.answers and callers[one.answers.position]
        for one in results
    }


@pytest.mark.proves("I1")
async def test_a_result_before_its_call_ends_up_beside_it(stores: Stores) -> None:
    await stores.ingest(result(1, "c", "42", event_id="r"))
    assert await answers(stores) == {"r#0": None}

    await stores.ingest(turn(2, assistant(None, "c"), event_id="t"))

    assert await answers(stores) == {"r#0": "t#0"}


@pytest.mark.proves("I1")
async def test_a_result_that_is_published_both_ways_answers_once(stores: Stores) -> None:
    await stores.ingest(result(1, "c", "42", event_id="r"))
    await stores.ingest(turn(2, user("look"), assistant(None, "c"), tool("c", "42"), event_id="t"))

    assert sorted(map(str, (await answers(stores)).values())) == ["copy", "t#1"]


@pytest.mark.proves("I1", "I2")
async def test_a_call_id_used_again_is_answered_each_time(stores: Stores) -> None:
    await stores.ingest(turn(1, assistant(None, "c"), tool("c", "one"), event_id="a"))
    await stores.ingest(turn(2, assistant(None, "c"), tool("c", "two"), event_id="b"))

    assert await answers(stores) == {"a#1": "a#0", "b#1": "b#0"}


@pytest.mark.proves("I2")
async def test_sixteen_calls_at_once_are_each_answered(stores: Stores) -> None:
    ids = [f"c{number}" for number in range(16)]
    await stores.ingest(turn(1, assistant(None, *ids), event_id="t"))

    for seq, call_id in enumerate(reversed(ids), start=2):
        await stores.ingest(result(seq, call_id, call_id))

    messages = (await stores.facts()).messages
    assert sorted(one.answers.slot for one in messages if one.answers) == list(range(16))


@pytest.mark.proves("L3", "I1")
async def test_a_straggling_call_changes_which_result_answers_what(stores: Stores) -> None:
    await stores.ingest(
        turn(3, assistant(None, "c"), event_id="late"), result(5, "c", "42", event_id="r")
    )

    await stores.ingest(turn(4, assistant(None, "c"), event_id="straggler"))

    assert await answers(stores) == {"r#0": "straggler#0"}


@pytest.mark.proves("I2")
async def test_a_result_without_an_id_is_stored_and_answers_nothing(stores: Stores) -> None:
    odd: list[dict[str, Any]] = [
        {"role": "tool", "content": "?"},
        {"role": "tool", "tool_call_id": "", "content": "?"},
    ]
    await stores.ingest(
        turn(1, assistant(None, "c"), *odd, {"role": "tool", "tool_call_id": 7, "content": "?"})
    )

    assert set((await answers(stores)).values()) == {None}


@pytest.mark.proves("I1", "I2")
async def test_call_ids_of_any_characters_pair(stores: Stores) -> None:
    for seq, call_id in enumerate(
        ["NUL \0", "half \ud83d", "漢字", '"quoted"', LONG + "1", LONG + "2"]
    ):
        await stores.ingest(
            turn(2 * seq + 1, assistant(None, call_id), event_id=f"t{seq}"),
            result(2 * seq + 2, call_id, "42"),
        )

    assert [found is not None for found in (await answers(stores)).values()] == [True] * 6


# --- counters


@pytest.mark.proves("L7")
async def test_system_messages_count_in_the_total_and_not_as_live_load(stores: Stores) -> None:
    await stores.ingest(turn(1, system("be brief"), user("hello"), assistant("hi")))

    session = (await stores.facts()).session
    assert session is not None
    assert (session.messages_total, session.live_messages) == (3, 2)
    assert session.live_tokens < session.tokens_total


@pytest.mark.proves("S4", "L3")
async def test_the_model_of_a_session_is_that_of_its_newest_event_whenever_that_came(
    stores: Stores,
) -> None:
    await stores.ingest(turn(5, user("new"), model="gpt-5"), turn(7, user("newest")))
    await stores.ingest(turn(2, user("old"), model="gpt-4"))

    session = (await stores.facts()).session
    assert session is not None
    assert session.model == "gpt-5"


@pytest.mark.proves("L11", "W6")
async def test_the_revision_rises_with_whatever_a_window_could_show(stores: Stores) -> None:
    async def revision() -> int:
        session = (await stores.facts()).session
        assert session is not None
        return session.revision

    seen = []
    for arrival in (
        turn(5, user("hello"), event_id="e"),
        result(6, "c", "42"),
        turn(2, user("hello"), event_id="e"),
    ):
        await stores.ingest(arrival)
        seen.append(await revision())
    await stores.ingest(turn(8, user("hello"), event_id="e"))

    assert seen == sorted(set(seen))
    assert await revision() == seen[-1]


@pytest.mark.proves("W5", "C48")
async def test_workers_that_store_different_sessions_at_once_leave_no_seam(stores: Stores) -> None:
    keys = [SessionKey(KEY.agent_id, SessionId(f"s-{number}")) for number in range(8)]

    await asyncio.gather(
        *(stores.ingest(turn(seq, user("hi"), key=keys[seq % 8])) for seq in range(1, 41))
    )

    assert (await stores.facts()).ingested_to == 40
    assert (await stores.seen()).ingested == ((1, 40),)


@pytest.mark.proves("X9")
async def test_a_refused_reused_id_makes_no_session(stores: Stores) -> None:
    """X9: an id of one session under another one is a dead letter; the other one begins with its own first event."""
    other, third = (
        SessionKey(KEY.agent_id, SessionId("other")),
        SessionKey(KEY.agent_id, SessionId("third")),
    )
    await stores.ingest(turn(1, user("first"), event_id="e-1"))
    await stores.changes.set_policy(
        third, PolicyRequest(mode="manual"), installation=stores.installation, now_ms=NOON
    )

    await stores.ingest(
        turn(2, user("again"), event_id="e-1", key=other),
        turn(3, user("again"), event_id="e-1", key=third),
    )

    assert set((await stores.seen()).sessions) == {KEY, third}
    assert await stores.history.dead_letter_counts() == {"event_id_reused": 2}
    await stores.ingest(turn(4, user("its own"), event_id="e-2", key=other))
    assert set((await stores.seen()).sessions) == {KEY, other, third}
    assert faults(await stores.seen()) == []


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    ("tool_name", "priority"), [("read_file", Priority.LOW), ("deploy", Priority.NORMAL)]
)
def test_a_result_is_judged_by_its_call_in_the_same_event(
    tool_name: str, priority: Priority
) -> None:
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": tool_name, "arguments": "{}"}}
        ],
    }
    answered = {"role": "tool", "tool_call_id": "call_1", "content": "x = 1"}
    payload = json.dumps(
        {"event_id": "e1", "agent_id": "a", "session_id": "s", "messages": [called, answered]}
    ).encode()

    arrival = decode_event(Delivery("turn.completed", payload, 1, NOON), count=words)

    assert arrival.messages[1].priority == priority
