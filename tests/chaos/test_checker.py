"""The history checker detects each violation that is inserted into a valid history."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from tests.chaos.episode import POLICY, History, connected, recorded
from tests.chaos.fault_plan import Topology
from tests.chaos.installation import running
from tests.chaos.load import Load, conversations
from tests.history_checker import Checker, faults_in_notices
from tests.published import MARK, Listed, Page, Reading
from turnfold.cli.recordings import Step, events_of
from turnfold.client import OutgoingEvent
from turnfold.store.database.schema import messages

Json = dict[str, Any]
Answered = TypeVar("Answered", bound=Reading | Page | Listed)
AGENTS = 2
EVENTS = 45
COLUMNS = [column.name for column in messages.columns]
COPIED = ["position + 1024 * 1000000" if name == "position" else name for name in COLUMNS]
NEWEST = "(SELECT max(compaction_id) FROM compactions)"
FIRST_MESSAGE = "(sid, position) = (SELECT min(sid), min(position) FROM messages)"
DAMAGES = {
    "the file is damaged": "UPDATE sessions SET live_messages = -1",
    "refers to a session that is not there": "DELETE FROM sessions WHERE sid = 1",
    "in the stream and not stored": (
        "DELETE FROM messages WHERE (sid, position) = (SELECT sid, max(position) FROM messages)"
    ),
    "stored and never published": (
        f"UPDATE messages SET event_id = 'nobody''s' WHERE {FIRST_MESSAGE}"
    ),
    "stored otherwise than published": (
        f"UPDATE messages SET body = replace(body, 'e', 'E') WHERE {FIRST_MESSAGE}"
    ),
    "stored more than once": (
        f"INSERT INTO messages ({', '.join(COLUMNS)}) SELECT {', '.join(COPIED)} FROM messages ORDER BY sid, position LIMIT 1"
    ),
    "the stream has it first at 1": (
        f"UPDATE messages SET position = position + 1024 * 1000000 WHERE {FIRST_MESSAGE}"
    ),
    "message 0 is": (
        f"UPDATE messages SET position = position + 1024 * 1000000 WHERE {FIRST_MESSAGE}"
    ),
    "the stream has it first at 47": (
        f"UPDATE messages SET sid = (SELECT max(sid) FROM sessions) WHERE {FIRST_MESSAGE}"
    ),
    "0 are marked": (f"UPDATE messages SET compaction_id = NULL WHERE compaction_id = {NEWEST}"),
    "of 91, its messages": "UPDATE sessions SET messages_total = messages_total + 1 WHERE sid = 1",
    "the session says 1 tokens": "UPDATE sessions SET tokens_total = 1 WHERE sid = 1",
    "the triggers look at": "UPDATE sessions SET live_tokens = live_tokens + 1 WHERE sid = 1",
    "sessions, counted are": "UPDATE session_counts SET total = total + 1",
    "messages are still pending": (
        f"UPDATE compactions SET status = 'pending', is_covered = 0 WHERE compaction_id = {NEWEST}"
    ),
    ": still pending": (
        f"UPDATE compactions SET status = 'pending', is_covered = 0 WHERE compaction_id = {NEWEST}"
    ),
    "lies outside its span": (
        f"UPDATE compactions SET first_position = last_position WHERE compaction_id = {NEWEST}"
    ),
    "committed and covered False": (
        f"UPDATE compactions SET is_covered = 0 WHERE compaction_id = {NEWEST}"
    ),
    "messages and ended failed": (
        f"UPDATE compactions SET status = 'failed', is_covered = 0 WHERE compaction_id = {NEWEST}"
    ),
    "evicted by a compaction of another session": (
        f"UPDATE messages SET compaction_id = 99 WHERE {FIRST_MESSAGE}"
    ),
    "covered are": "UPDATE summaries SET messages_covered = messages_covered + 1",
    "], counted": (
        "DELETE FROM summaries WHERE (sid, version) = (SELECT sid, max(version) FROM summaries)"
    ),
    "was told otherwise than it is stored": "UPDATE summaries SET text = text || '.'",
    "last activated": "UPDATE sessions SET version = versions + 1 WHERE versions > 0",
    "audit rows were sealed": (
        "DELETE FROM audit WHERE audit_id = (SELECT max(audit_id) FROM audit)"
    ),
    "audit rows say evicted": (
        "UPDATE audit SET phase = 'stale' WHERE phase = 'evicted' AND ordinal = 1"
    ),
    "audit row 1 does not continue the chain": (
        "UPDATE audit SET reason = 'another' WHERE audit_id = 1"
    ),
    "notices were not sent": (
        "INSERT INTO outbox (subject, payload) VALUES ('summary.updated.a.b', '{}')"
    ),
    "dead letters": "DELETE FROM dead_letters",
    "ingested are": "DELETE FROM ingested_ranges",
}
"""By what the checker must say of it: one thing wrong with a copy of the database."""


@pytest.fixture(scope="module")
def history() -> Iterator[History]:
    """What a system holds to which two agents spoke, with a rest in the middle; nothing is wrong with it."""
    with TemporaryDirectory(prefix="turnfold-history-", ignore_cleanup_errors=True) as made:
        found = asyncio.run(_recorded(Path(made)))
        assert not found.faults()
        yield found


async def _recorded(directory: Path) -> History:
    async with running(directory, Topology.SQLITE, POLICY) as installation:
        async with connected(installation.nats_urls) as clients:
            load = Load(0, clients)
            told = [_events(number) for number in range(AGENTS)]
            for _ in range(2):
                for events in told:
                    some = list(islice(events, EVENTS))
                    for event in some:
                        await load.publish_event(clients.one, event)
                    await load.publish_event(clients.another, some[0])
                await load.publish_bad(Random(0))
                await load.settle(installation.words)
            for key in load.published.order:
                await load.page(key)
        return await recorded(installation, load.published)


def _events(number: int) -> Iterator[OutgoingEvent]:
    """The messages of a conversation of an agent with many short turns, one by one."""
    recording, _ = next(islice(conversations(number), 1, None))
    return (event for event, _ in events_of(recording, Step.MESSAGE))


@pytest.mark.parametrize("said", DAMAGES)
def test_the_checker_sees_what_is_wrong_in_a_database(
    said: str, history: History, tmp_path: Path
) -> None:
    database = damaged(history.database, tmp_path, DAMAGES[said])

    assert_told(said, replace(history, database=database).faults())


def assert_told(said: str, faults: Sequence[str]) -> None:
    """One of the faults says this."""
    assert any(said in fault for fault in faults), faults


def damaged(database: Path, directory: Path, damage: str) -> Path:
    """A copy of the database with one thing wrong."""
    copy = directory / "damaged.db"
    with (
        contextlib.closing(sqlite3.connect(database)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
        for (trigger,) in target.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            target.execute(f"DROP TRIGGER {trigger}")
        target.execute("PRAGMA ignore_check_constraints = ON")
        assert target.execute(damage).rowcount, damage
        target.commit()
    return copy


def loses_what_was_acknowledged(answer: Json) -> None:
    answer["messages"].pop()
    answer["message_ids"].pop()
    answer["window"]["messages"] -= 1
    answer["account"]["shown"] -= 1
    answer["account"]["total"] -= 1


def drops_a_message_for_another(answer: Json) -> None:
    place = answer["message_ids"].index(next(one for one in answer["message_ids"][1:] if one))
    answer["messages"].pop(place)
    answer["message_ids"].pop(place)
    answer["window"]["messages"] -= 1


def shows_a_message_twice(answer: Json) -> None:
    answer["message_ids"][-1] = answer["message_ids"][-2]


def alters_a_text(answer: Json) -> None:
    answer["messages"][-1]["content"] = "Something else."


def overruns_its_budget(answer: Json) -> None:
    answer["window"]["tokens"] = answer["window"]["budget_tokens"] + 1


def does_not_add_up(answer: Json) -> None:
    answer["account"]["folded"] += 1


def leaves_a_result_alone(answer: Json) -> None:
    answer["messages"][-1] = {"role": "tool", "tool_call_id": "nobody", "content": "42"}


def changes_a_version(answer: Json) -> None:
    answer["summary"]["text"] += "."


def tells_of_a_version_that_never_was(answer: Json) -> None:
    answer["summary"]["version"] += 1_000


def shows_an_agent_what_another_said(answer: Json) -> None:
    next(message for message in reversed(answer["messages"]) if MARK in message)[MARK] = "chaos-99"


def has_an_id_too_many(answer: Json) -> None:
    answer["message_ids"].append(None)


def is_empty(answer: Json) -> None:
    answer["messages"], answer["message_ids"], answer["window"]["messages"] = [], [], 0


def counts_messages_that_never_were(answer: Json) -> None:
    answer["account"]["total"] += 1_000
    answer["account"]["folded"] += 1_000


def counts_more_as_covered(answer: Json) -> None:
    answer["account"]["total"] += 1
    answer["account"]["covered"] += 1


def tells_that_a_version_covers_more(answer: Json) -> None:
    answer["summary"]["covers"]["messages"] += 1


LIES = {
    "called fresh with 89": loses_what_was_acknowledged,
    "neither shown nor covered": drops_a_message_for_another,
    "shown otherwise than published": alters_a_text,
    "a message is shown twice": shows_a_message_twice,
    "the window may not be sent": leaves_a_result_alone,
    "tokens in a budget of": overruns_its_budget,
    "the account does not add up": does_not_add_up,
    " ids (1 times)": has_an_id_too_many,
    "the window is empty": is_empty,
    "only 90 were ever published": counts_messages_that_never_were,
    "covered messages": counts_more_as_covered,
    "was told to cover": tells_that_a_version_covers_more,
    "was told otherwise than it is stored": changes_a_version,
    "was told and is not stored": tells_of_a_version_that_never_was,
    "messages of other agents": shows_an_agent_what_another_said,
}
"""By what the checker must say of it: one thing wrong with an answer."""


@pytest.mark.parametrize("said", LIES)
def test_the_checker_sees_what_is_wrong_in_an_answer(said: str, history: History) -> None:
    _, told = two_answers(history)

    assert not faults_of(history, told)
    assert_told(said, faults_of(history, altered(told, LIES[said])))


def test_the_checker_sees_an_answer_of_one_version_with_the_window_of_another(
    history: History,
) -> None:
    before, told = two_answers(history)

    def takes_an_older_version(answer: Json) -> None:
        answer["summary"] = before.answer["summary"]
        answer["account"]["folded"] += (
            answer["account"]["covered"] - before.answer["account"]["covered"]
        )
        answer["account"]["covered"] = before.answer["account"]["covered"]

    def takes_a_newer_version(answer: Json) -> None:
        answer["summary"] = told.answer["summary"]
        answer["account"]["total"] += (
            told.answer["account"]["covered"] - answer["account"]["covered"]
        )
        answer["account"]["covered"] = told.answer["account"]["covered"]

    assert any(
        "covers it" in fault for fault in faults_of(history, altered(before, takes_a_newer_version))
    )
    lost = altered(told, takes_an_older_version)
    lost.answer["account"]["total"] -= (
        lost.answer["account"]["folded"] - told.answer["account"]["folded"]
    )
    lost.answer["account"]["folded"] = told.answer["account"]["folded"]
    assert any(
        "neither shown nor covered" in fault
        for fault in faults_of(history, replace(lost, acknowledged=told.acknowledged))
    )


def test_the_checker_sees_a_session_that_goes_backwards(history: History) -> None:
    before, told = two_answers(history)
    late = replace(before, acknowledged=0, began=told.ended + 1, ended=told.ended + 2)

    assert not faults_of(history, before, told)
    assert any("and then" in fault for fault in faults_of(history, told, late))


def reverses_its_messages(answer: Json) -> None:
    answer["messages"].reverse()


def moves_a_message(answer: Json) -> None:
    answer["messages"][0]["position"] += 1


def alters_an_original(answer: Json) -> None:
    answer["messages"][0]["message"] = {"role": "user", "content": "Something else."}


def has_nothing_in_force(answer: Json) -> None:
    for one in answer["summaries"]:
        one["in_force"] = False


def has_another_size(answer: Json) -> None:
    answer["summaries"][0]["tokens"] += 1


WRONG_LISTS = {
    "a page of originals is out of order": reverses_its_messages,
    "was told at": moves_a_message,
    "was told otherwise than published": alters_an_original,
    "in force []": has_nothing_in_force,
    "was told otherwise than it is stored": has_another_size,
}


@pytest.mark.parametrize("said", WRONG_LISTS)
def test_the_checker_sees_pages_and_lists_that_are_wrong(said: str, history: History) -> None:
    alter = WRONG_LISTS[said]
    told: Page | Listed = max(history.published.pages, key=lambda one: len(one.answer["messages"]))
    if alter in (has_nothing_in_force, has_another_size):
        told = max(history.published.lists, key=lambda one: len(one.answer["summaries"]))

    assert not faults_of(history, told)
    assert_told(said, faults_of(history, altered(told, alter)))


def test_the_checker_sees_what_the_stream_lost_and_what_nobody_was_told_of(
    history: History,
) -> None:
    lost = replace(history, stream=history.stream[:-5])
    assert_told("acknowledged by the stream and not in it", lost.faults())
    for kept, said in (
        ("summary.updated", "nobody was told of compaction"),
        ("context.compressed", "nobody was told of version"),
    ):
        notices = [notice for notice in history.notices if notice[0].startswith(kept)]
        assert_told(said, faults_in_notices(history.database, notices))


def two_answers(history: History) -> tuple[Reading, Reading]:
    """The answers about one session from the rest in the middle, and from the end: of different versions, and with nothing trimmed."""
    key = next(iter(history.published.order))
    told = [
        one
        for one in history.published.readings
        if one.key == key and one.answer["summary"] is not None
    ]
    first, last = told[0], told[-1]
    assert first.answer["summary"]["version"] < last.answer["summary"]["version"]
    return first, last


def altered(reading: Answered, alter: Callable[[Json], None]) -> Answered:
    """The same answer with one thing wrong."""
    copy = deepcopy(reading)
    alter(copy.answer)
    return copy


def faults_of(history: History, *told: Reading | Page | Listed) -> list[str]:
    """What the checker says when these are all that was told."""
    published = replace(
        history.published,
        readings=[one for one in told if isinstance(one, Reading)],
        pages=[one for one in told if isinstance(one, Page)],
        lists=[one for one in told if isinstance(one, Listed)],
    )
    return Checker(history.database, published, history.stream).faults()
