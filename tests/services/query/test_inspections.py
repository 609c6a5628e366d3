"""What shows an installation and whole sessions: totals, compactions, timelines, erasures, and the audit's verification."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_system import Parts, eventually, running_parts
from tests.store_fixtures import picture
from turnfold_query.http.changes import STREAMS_EACH

Json = dict[str, Any]
SESSION = "/v1/agents/support/sessions/user-42"


async def settled(http: httpx.AsyncClient) -> Json:
    """The session's counts, once a summary covers what left the window."""

    async def look() -> Json | None:
        counts: Json = (await http.get(SESSION)).json()
        return counts if counts["summary_version"] and not counts["messages_pending"] else None

    return await eventually(look, seconds=90)


def change_audit_row(database: Path) -> None:
    """Change a row of the audit as somebody with the file would."""
    with closing(sqlite3.connect(database)) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE audit SET reason = 'forged' WHERE ordinal = 2")
        connection.commit()


async def published(parts: Parts) -> None:
    async with parts.client() as client:
        session = client.session("support", "user-42")
        for number in range(30):
            await session.turn_completed(
                [
                    {"role": "user", "content": f"Where is order 73{number:02}?"},
                    {"role": "assistant", "content": "Under way."},
                ]
            )
        await client.session("support", "gone").turn_completed([{"role": "user", "content": "?"}])
        await session.context(wait_ms=5_000)


async def check_difference(http: httpx.AsyncClient, counts: Json) -> None:
    """From the third turn to now, nearly all of then is folded, and as much as fits is added."""
    first = (await http.get(f"{SESSION}/history", params={"limit": 6})).json()["messages"]
    moment = first[-1]["message_id"]
    path = f"{SESSION}/context/difference"
    changed = (await http.get(path, params={"before": moment, "max_tokens": 8_000})).json()
    assert (changed["before"]["messages"], changed["after"]["messages"]) == (6, 60)
    assert changed["before"]["summary_version"] is None
    assert changed["after"]["summary_version"] == counts["summary_version"]
    shown = changed["counts"]["added"] + changed["counts"]["same"]
    assert (changed["counts"]["folded"], shown) == (6, counts["messages_live"])
    kinds = {change["message_id"]: change["change"] for change in changed["changes"]}
    assert kinds[moment] == "folded"
    asked: Json = {"max_tokens": 8_000, "placement": "user", "follow_budget": False}
    window = (await http.get(f"{SESSION}/context", params=asked)).json()
    assert changed["after"]["tokens"] == window["window"]["tokens"]
    same = (await http.get(path, params={"before": moment, "after": moment})).json()
    assert (same["changes"], same["counts"]["same"]) == ([], 6)
    assert (await http.get(path, params={"before": "99"})).status_code == 400
    assert (await http.get(path)).status_code == 400


async def check_large_difference(http: httpx.AsyncClient, parts: Parts) -> None:
    """Windows are compared even if their messages are too large for one answer."""
    screen = {"role": "user", "content": [picture(3_000_000)]}
    async with parts.client() as client:
        session = client.session("support", "pictures")
        receipts = [
            await session.turn_completed([screen], event_id=f"screen-{number}")
            for number in range(5)
        ]
    path, budget = "/v1/agents/support/sessions/pictures/context", {"max_tokens": 100_000}
    await http.get(path, params={**budget, "after": receipts[-1].seq, "wait_ms": 5_000})
    told = await http.get(f"{path}/difference", params={**budget, "before": "screen-0#0"})
    assert told.json()["counts"]["added"] == 4


async def check_stream(http: httpx.AsyncClient, parts: Parts) -> None:
    """A stream tells the state at once, and each change; who knows the state is told of changes alone."""
    path = f"{SESSION}/changes"
    async with (
        http.stream("GET", path, params={"seconds": 60}) as streamed,
        parts.client() as client,
    ):
        assert streamed.headers["content-type"].startswith("text/event-stream")
        lines = streamed.aiter_lines()
        first = await next_event(lines)
        assert (first["event"], json.loads(first["data"])["messages"]) == ("session", 60)
        await client.session("support", "user-42").turn_completed(
            [{"role": "user", "content": "And order 7400?"}]
        )
        second = await next_event(lines)
        assert json.loads(second["data"])["messages"] == 61
    # A summary may still be written, and each of its steps is a change.
    await settled(http)
    async with http.stream("GET", path, params={"seconds": 1}) as streamed:
        known = (await next_event(streamed.aiter_lines()))["id"]
    again = await http.get(path, params={"seconds": 1}, headers={"last-event-id": known})
    assert (again.status_code, again.text) == (200, "retry: 1000\n\n")
    assert (await http.get("/v1/agents/support/sessions/never/changes")).status_code == 404


async def check_streams_at_once(http: httpx.AsyncClient) -> None:
    """Of many streams that begin at once, a caller has no more than its share, and gets it back."""

    async def status() -> int:
        return (await http.get(f"{SESSION}/changes", params={"seconds": 2})).status_code

    for _ in range(2):
        statuses = await asyncio.gather(*(status() for _ in range(STREAMS_EACH + 10)))
        assert sorted(statuses) == [200] * STREAMS_EACH + [503] * 10


async def next_event(lines: AsyncIterator[str]) -> dict[str, str]:
    """The fields of the next event of a stream; comments and the time to retry are none."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(60):
        async for line in lines:
            name, _, value = line.partition(": ")
            if line and name:
                fields[name] = value
            elif "event" in fields:
                return fields
            else:
                fields = {}
    raise AssertionError("the stream has ended")


@pytest.mark.proves("V3")
async def test_totals_timelines_compactions_and_erasures_are_told_and_the_audit_is_verified(
    tmp_path: Path,
) -> None:
    # An agent has one place for a search: two moments are compared in one.
    small = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20", "TURNFOLD_MAX_SEARCHES": "8"}
    async with (
        running_parts(tmp_path, environ=small) as parts,
        parts.running("worker"),
        parts.running("query"),
        parts.http(timeout=60) as http,
    ):
        await published(parts)
        counts = await settled(http)

        stats = (await http.get("/v1/stats")).json()
        assert (stats["agents"], stats["sessions"], stats["messages"]) == (1, 2, 61)
        assert stats["summaries"] == counts["summary_versions"]
        assert (stats["dead_letters"], stats["compactions_failed"]) == (0, 0)

        (agent,) = (await http.get("/v1/agents")).json()["agents"]
        assert (agent["agent_id"], agent["sessions"], agent["messages"]) == ("support", 2, 61)
        costs = (await http.get("/v1/costs", params={"days": 2})).json()
        assert (costs["versions"], costs["cost"], len(costs["days"])) == (stats["summaries"], 0, 2)
        assert (await http.get("/v1/campaigns")).json() == {"campaigns": []}

        timeline = (await http.get(f"{SESSION}/timeline", params={"parts": 10})).json()
        held = {
            state: sum(part["messages"] for part in timeline["parts"] if part["state"] == state)
            for state in ("live", "pending", "covered")
        }
        assert held == {state: counts[f"messages_{state}"] for state in held}
        assert timeline["messages"] == 60
        assert timeline["in_force"] == counts["summary_version"]
        assert len(timeline["versions"]) == counts["summary_versions"]

        page = (await http.get(f"{SESSION}/compactions", params={"limit": 1})).json()
        rest = (
            await http.get(f"{SESSION}/compactions", params={"before": page["next_before"]})
        ).json()
        listed = page["compactions"] + rest["compactions"]
        assert [row["ordinal"] for row in listed] == list(range(counts["compactions"], 0, -1))
        for status in ("open", "failed"):
            shown = await http.get("/v1/compactions", params={"status": status})
            assert shown.json() == {"compactions": [], "next_before": None}

        await check_difference(http, counts)
        await check_large_difference(http, parts)
        verified = (await http.get(f"{SESSION}/audit/verification")).json()
        assert verified == {"rows": counts["audit"]["rows"], "is_intact": True, "fault": None}
        await check_stream(http, parts)
        await check_streams_at_once(http)
        change_audit_row(parts.database)
        assert (await http.get(f"{SESSION}/audit/verification")).json()["fault"] == (
            "row 2 was changed"
        )

        assert (await http.delete("/v1/agents/support/sessions/gone")).status_code == 200
        (erasure,) = (await http.get("/v1/erasures")).json()["erasures"]
        assert (erasure["agent_id"], erasure["session_id"]) == ("support", "gone")
        unknown = [
            (await http.get(f"/v1/agents/support/sessions/never/{name}")).status_code
            for name in ("timeline", "compactions", "audit/verification")
        ]
        assert unknown == [404, 404, 404]
