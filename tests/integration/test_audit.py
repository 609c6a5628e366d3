"""The page for auditors: each of its statements runs on both databases, and tells what the API tells."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    result,
    retracted,
    sql_stores,
    summary,
    turn,
    turns,
    user,
)
from turnfold.core.history.as_of import AtTime
from turnfold.messages import CompactionId
from turnfold.ports.compact import JobStatus
from turnfold.ports.ingest import DecodedEvent
from turnfold_migrations import downgrade, upgrade

PAGE = Path(__file__).parents[2] / "docs" / "auditors.md"
BLOCK = re.compile(r"^## (?P<title>[^\n]+)$|^```sql\n(?P<sql>.*?)^```$", re.MULTILINE | re.DOTALL)


def statements() -> dict[str, list[str]]:
    """The page's SQL by the heading it stands under."""
    found: dict[str, list[str]] = {}
    title = ""
    for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if match["title"]:
            title = match["title"]
        else:
            found.setdefault(title, []).append(match["sql"])
    return found


async def lived(stores: Stores) -> list[int]:
    """A session in which everything happened that a version can go through; the moments worth asking about."""
    for number in (1, 2, 3):
        await stores.ingest(*turns(10 * number, 7))
        (job,) = await stores.claim(NOON + 1_000 * number)
        await stores.jobs.commit(
            job, summary(f"Version {number}."), reason=None, now_ms=NOON + 1_000 * number
        )
    await stores.versions.promote(
        KEY, 1, over=None, installation=stores.installation, now_ms=NOON + 4_000
    )
    (job,) = await stores.claim(NOON + 5_000)
    await stores.jobs.retry_later(
        job, reason="timeout", detail="", retry_at_ms=NOON + 5_100, now_ms=NOON + 5_000
    )
    (job,) = await stores.claim(NOON + 5_500)
    await stores.jobs.commit(
        job, summary("Folded.", kind="extractive"), reason="timeout", now_ms=NOON + 5_500
    )
    (again,) = await stores.claim(NOON + 60_000)
    await stores.jobs.fail(
        again, ending=JobStatus.FAILED, reason="provider_error", detail="", now_ms=NOON + 60_000
    )
    _, (third,) = await stores.history.versions(KEY, 3)
    await stores.versions.restore(
        KEY,
        CompactionId(third.compaction_id),
        installation=stores.installation,
        now_ms=NOON + 70_000,
    )
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 80_000)
    return [
        NOON,
        NOON + 50,
        *(NOON + 1_000 * second for second in (1, 2, 3, 4, 5, 6, 60, 70, 75, 80, 90)),
    ]


@pytest.mark.proves("A2", "A1", "L10")
async def test_the_statements_for_auditors_tell_what_happened(url: str) -> None:
    engine = create_async_engine(url)
    asked = statements()

    async def rows(title: str, place: int = 0, at: int = 0) -> list[dict[str, Any]]:
        values = {"agent": KEY.agent_id, "session": KEY.session_id, "at": at}
        sql = asked[title][place]
        async with engine.connect() as connection:
            named = {name: value for name, value in values.items() if f":{name}" in sql}
            return [dict(row) for row in (await connection.execute(text(sql), named)).mappings()]

    try:
        async with sql_stores(url) as stores:
            moments = await lived(stores)
            evictions = await rows("Evictions")
            page = await stores.history.page(KEY, after_position=0, limit=1_000)
            assert {one["status"] for one in evictions} == {"committed", "restored", "pending"}
            assert {one["trigger"] for one in evictions} == {"messages", "request"}
            for at in moments:
                then, _ = await stores.windows.window_as_of(
                    KEY,
                    AtTime(at),
                    on_session=lambda _: None,
                    on_messages=lambda facts: (facts, ()),
                )
                in_force = await rows("Version in force at a time", at=at)
                assert then.session is not None
                assert [one["version"] for one in in_force] in (
                    [then.session.version],
                    [] if then.session.version is None else [0],
                )
                states = {
                    one["message_id"]: one["state"]
                    for one in await rows("Message states at a time", at=at)
                }
                told = {
                    str(one.message_id): "pending" if one.compaction_id else "live"
                    for one in then.messages
                }
                assert {name: state for name, state in states.items() if state != "covered"} == told
                assert len(states) == then.session.messages_total
            newest = {
                one["message_id"]: one["state"]
                for one in await rows("Message states at a time", at=NOON * 2)
            }
            assert newest == {one.message_id: str(one.state) for one in page}
    finally:
        await engine.dispose()


def later(step: int) -> int:
    """The time of a step: apart from the steps beside it."""
    return NOON + 10_000 * step


def turn_at(step: int) -> DecodedEvent:
    said = (user(f"question {step}"), assistant(f"answer {step}"))
    return turn(step, *said, at_ms=later(step))


async def restore_newest(stores: Stores, now_ms: int) -> None:
    """Undo the newest eviction that is not undone."""
    rows = (await stores.seen()).sessions[KEY].rows
    newest = max(r.ordinal for r in rows if r.messages_evicted and r.status != "restored")
    await stores.versions.restore(
        KEY, CompactionId(str(newest)), installation=stores.installation, now_ms=now_ms
    )


async def taken_back(stores: Stores) -> dict[int, dict[str, str]]:
    """A session that loses messages in each state; the states that they had after each step."""
    seen: dict[int, dict[str, str]] = {}
    steps: list[DecodedEvent | str] = [
        *map(turn_at, range(1, 4)),
        retracted(4, "e2#0", at_ms=later(4)),
        *map(turn_at, range(5, 9)),
        retracted(9, "e1#0", "e7#1", at_ms=later(9)),
        "write",
        retracted(11, "e3#0", at_ms=later(11)),
        "write",
        *map(turn_at, range(13, 18)),
        retracted(18, "e7#0", at_ms=later(18)),
        "restore",
        retracted(20, "e8#0", at_ms=later(20)),
        "compact",
        retracted(22, "e8#1", at_ms=later(22)),
        "write",
        retracted(24, "e13#0", at_ms=later(24)),
        "restore",
        "restore",
        turn(27, user("go"), assistant(None, "c"), at_ms=later(27)),
        retracted(28, "e27#1", at_ms=later(28)),
        result(29, "c", "late", at_ms=later(29)),
        retracted(30, all=True, at_ms=later(30)),
        turn_at(31),
    ]
    for number, step in enumerate(steps, start=1):
        at = later(number)
        if step == "write":
            (job,) = await stores.claim(at)
            await stores.jobs.commit(job, summary(), reason=None, now_ms=at)
        elif step == "restore":
            await restore_newest(stores, at)
        elif step == "compact":
            await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=at)
        elif not isinstance(step, str):
            await stores.ingest(step)
        page = await stores.history.page(KEY, limit=1_000, with_retracted=True)
        seen[at] = {one.message_id: str(one.state) for one in page}
    return seen


@pytest.mark.proves("A2", "G1")
async def test_retracted_messages_have_the_states_that_they_had_at_each_time(
    url: str,
) -> None:
    sql = text(statements()["Message states at a time"][0])
    engine = create_async_engine(url)
    try:
        async with sql_stores(url) as stores, engine.connect() as connection:
            seen = await taken_back(stores)
            # What was retracted before an upgrade is shown as well.
            await downgrade(url, "1014")
            await upgrade(url)
            page = await stores.history.page(KEY, limit=1_000, with_retracted=True)
            for at, was in seen.items():
                values = {"agent": KEY.agent_id, "session": KEY.session_id}
                for moment in (at, at + 9_999):
                    rows = (await connection.execute(sql, {**values, "at": moment})).all()
                    assert {row.message_id: row.state for row in rows} == was, moment
                    assert len(rows) == len(was)
                then = await stores.history.states_as_of(KEY, AtTime(at))
                states = {one.message_id: then.state_of(one) for one in page}
                assert {name: str(state) for name, state in states.items() if state} == was
    finally:
        await engine.dispose()
    changes = {
        (before.get(name), state)
        for before, after in pairwise(seen.values())
        for name, state in after.items()
        if before.get(name) != state
    }
    losses = {(state, "retracted") for state in (None, "live", "pending", "covered")}
    assert losses | {("pending", "live"), ("covered", "live")} <= changes


@pytest.mark.proves("A2")
async def test_failures_savings_and_costs_can_be_asked_in_sql(url: str) -> None:
    engine = create_async_engine(url)
    asked = statements()

    async def rows(title: str, place: int = 0) -> list[dict[str, Any]]:
        sql = asked[title][place]
        async with engine.connect() as connection:
            values = {"agent": KEY.agent_id, "session": KEY.session_id}
            named = {name: value for name, value in values.items() if f":{name}" in sql}
            return [dict(row) for row in (await connection.execute(text(sql), named)).mappings()]

    try:
        async with sql_stores(url) as stores:
            await lived(stores)
            failed = [(one["phase"], one["reason"]) for one in await rows("Failed summaries")]
            assert failed[:2] == [("attempt_failed", "timeout"), ("rollback", "provider_error")]
            assert {one["reason"] for one in await rows("Failed summaries", 1)} == {"timeout"}
            assert [(one["phase"], one["actor"]) for one in await rows("Actors")][:2] == [
                ("promoted", "local"),
                ("opened", "local"),
            ]
            said = {one["message_id"]: one["text"] for one in await rows("Original messages")}
            assert (said["e10#0"], said["e10#1"]) == ("question 10", "answer 10")
            (saved,) = await rows("Tokens saved")
            facts = await stores.facts()
            assert facts.session is not None
            in_summary = facts.summary.tokens if facts.summary else 0
            assert (
                saved["tokens_saved"]
                == facts.session.tokens_total - facts.session.live_tokens - in_summary
            )
            (cost,) = await rows("Cost per agent")
            assert (cost["agent_id"], cost["model"], cost["versions"]) == (
                KEY.agent_id,
                "test/model",
                3,
            )
    finally:
        await engine.dispose()


@pytest.mark.proves("A1", "E1")
async def test_an_eviction_tells_at_what_moment_it_was_due_and_what_it_took(
    url: str,
) -> None:
    async with sql_stores(url) as stores:
        await stores.ingest(*turns(1, 7))
        await stores.ingest(
            turn(20, user("go on"), assistant(None, *[f"c{number}" for number in range(9)]))
        )
        for number in range(9):
            await stores.ingest(result(21 + number, f"c{number}", "found"))
        for job in await stores.claim():
            made = replace(summary(), calls_truncated=1, results_truncated=2, seconds=0.5)
            await stores.jobs.commit(job, made, reason=None, now_ms=NOON + 1_000)

        rows = [
            (row.phase, json.loads(row.details))
            for row in await stores.history.audit(KEY, after=0, limit=100)
        ]

    evicted = [details for phase, details in rows if phase == "evicted"]
    assert [details["checkpoint"] for details in evicted] == ["check", "precheck"]
    assert (
        evicted[0]["blocks_kept"],
        evicted[0]["blocks_dropped"],
        evicted[0]["calls"],
        evicted[0]["results"],
    ) == (4, 10, 0, 0)
    done = next(details for phase, details in rows if phase == "summary_done")
    assert (done["calls_truncated"], done["results_truncated"], done["seconds"]) == (1, 2, 0.5)


def test_the_page_answers_the_five_questions() -> None:
    asked = statements()

    assert len(asked) == 8
    assert sum(len(some) for some in asked.values()) == 9
