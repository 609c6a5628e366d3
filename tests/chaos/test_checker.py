"""The history checker detects each violation that is inserted into a valid history."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

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
AGENTS = 2
EVENTS = 45
COLUMNS = [column.name for column in messages.columns]
COPIED = ["position + 1024 * 1000000" if name == "position" else name for name in COLUMNS]
DAMAGES = {
    "L1: a message is gone": "DELETE FROM messages WHERE (sid, position) = (SELECT sid, max(position) FROM messages)",
    "L1: a text was altered": (
        "UPDATE messages SET body = replace(body, 'e', 'E') WHERE (sid, position) = (SELECT sid, min(position) FROM messages)"
    ),
    "L2: a message is there twice": (
        f"INSERT INTO messages ({', '.join(COLUMNS)}) SELECT {', '.join(COPIED)} FROM messages ORDER BY sid, position LIMIT 1"
    ),
    "L3: a message stands elsewhere": (
        "UPDATE messages SET position = position + 1024 * 1000000 WHERE (sid, position) = (SELECT sid, min(position) FROM messages)"
    ),
    "L7: evicted messages are live again": (
        "UPDATE messages SET compaction_id = NULL WHERE compaction_id = (SELECT max(compaction_id) FROM compactions)"
    ),
    "L7: a counter is wrong": "UPDATE sessions SET messages_total = messages_total + 1 WHERE sid = 1",
    "L7: what the triggers look at is wrong": "UPDATE sessions SET live_tokens = live_tokens + 1 WHERE sid = 1",
    "L7: sessions are miscounted": "UPDATE session_counts SET total = total + 1",
    "L10: a version is gone": "DELETE FROM summaries WHERE (sid, version) = (SELECT sid, max(version) FROM summaries)",
    "L10: a version was changed": "UPDATE summaries SET text = text || '.'",
    "L10: another version is in force": "UPDATE sessions SET version = versions + 1 WHERE versions > 0",
    "L10: an attempt left no audit row": "DELETE FROM audit WHERE audit_id = (SELECT max(audit_id) FROM audit)",
    "L10: an eviction was given up": (
        "UPDATE compactions SET status = 'failed', is_covered = 0 WHERE compaction_id = (SELECT max(compaction_id) FROM compactions)"
    ),
    "L12: a message went to another agent": (
        "UPDATE messages SET sid = (SELECT max(sid) FROM sessions) WHERE (sid, position) = (SELECT min(sid), min(position) FROM messages)"
    ),
    "A1: an audit row was changed": "UPDATE audit SET reason = 'another' WHERE audit_id = 1",
    "A3: a notice was never sent": (
        "INSERT INTO outbox (subject, payload) VALUES ('summary.updated.a.b', '{}')"
    ),
    "I5: dead letters are gone": "DELETE FROM dead_letters",
    "W5: what was ingested is forgotten": "DELETE FROM ingested_ranges",
}
"""What the checker must see, each on a copy of the database."""


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


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checker_sees_what_is_wrong_in_a_database(
    damage: str, history: History, tmp_path: Path
) -> None:
    assert replace(history, database=damaged(history.database, tmp_path, DAMAGES[damage])).faults()


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


LIES = {
    "L1": loses_what_was_acknowledged,
    "L1, from the middle": drops_a_message_for_another,
    "L1, its text": alters_a_text,
    "L2": shows_a_message_twice,
    "L5": leaves_a_result_alone,
    "L6": overruns_its_budget,
    "L7": does_not_add_up,
    "L10": changes_a_version,
    "L10, its number": tells_of_a_version_that_never_was,
    "L12": shows_an_agent_what_another_said,
}


@pytest.mark.parametrize("law", LIES)
def test_the_checker_sees_what_is_wrong_in_an_answer(law: str, history: History) -> None:
    _, told = two_answers(history)

    assert not faults_of(history, told)
    assert faults_of(history, altered(told, LIES[law]))


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


def test_the_checker_sees_pages_and_lists_that_are_wrong(history: History) -> None:
    page = max(history.published.pages, key=lambda one: len(one.answer["messages"]))
    listed = max(history.published.lists, key=lambda one: len(one.answer["summaries"]))
    unordered, moved, many = deepcopy(page), deepcopy(page), deepcopy(listed)
    unordered.answer["messages"].reverse()
    moved.answer["messages"][0]["position"] += 1
    for one in many.answer["summaries"]:
        one["in_force"] = False

    assert [bool(faults_of(history, one)) for one in (page, unordered, moved)] == [
        False,
        True,
        True,
    ]
    assert [bool(faults_of(history, one)) for one in (listed, many)] == [False, True]


def test_the_checker_sees_what_the_stream_lost_and_what_nobody_was_told_of(
    history: History,
) -> None:
    is_first = {entry.seq for entry in history.stream[-5:]}

    assert replace(
        history, stream=[entry for entry in history.stream if entry.seq not in is_first]
    ).faults()
    assert faults_in_notices(
        history.database,
        [notice for notice in history.notices if notice[0].startswith("summary.updated")],
    )
    assert faults_in_notices(
        history.database,
        [notice for notice in history.notices if notice[0].startswith("context.compressed")],
    )


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


def altered(reading: Reading, alter: Callable[[Json], None]) -> Reading:
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
