"""Versions that change places, with the whole system behind: over the bus, over HTTP, and from the command line."""

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import turnfold
from tests.model_server import SUMMARY, running_model_server
from tests.running_system import eventually, rows, running_system
from turnfold.client import Session
from turnfold.errors import BadRequest, Conflict, Unavailable

AGENT, SESSION = "support", "user.42 / 語"
PATH = f"/v1/agents/{AGENT}/sessions/{quote(SESSION, safe='')}"
SMALL = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "50"}


async def grown(session: Session, first: int, last: int) -> None:
    """So many turns of one question and one answer; the last of them is stored when this returns."""
    for number in range(first, last):
        said = [
            {"role": "user", "content": f"Question {number} about order 73{number:02}?"},
            {"role": "assistant", "content": "Noted."},
        ]
        await session.turn_completed(said)
    await session.context(wait_ms=5_000)


async def settled(session: Session) -> dict[str, Any]:
    """The session's counters when nothing is pending."""

    async def look() -> dict[str, Any] | None:
        status = await session.status()
        return status if status["summary_version"] and not status["messages_pending"] else None

    found: dict[str, Any] = await eventually(look)
    return found


@pytest.mark.proves("A4", "A5", "L10", "A2", "O3")
async def test_versions_are_written_again_compared_promoted_and_undone(tmp_path: Path) -> None:
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        session = client.session(AGENT, SESSION)
        await grown(session, 0, 30)
        await settled(session)
        first = await session.summary(1)

        work = await session.regenerate(style="narrative")
        versions = await eventually(lambda: at_least(session, 2))
        assert (await session.status())["summary_version"] == 1
        assert versions[1].style == "narrative"
        assert (await session.summary(1)).text == first.text

        promoted = await session.promote(2)
        assert (promoted.version, promoted.in_force) == (2, True)
        assert (await session.context()).raw["summary"]["version"] == 2
        with pytest.raises(Conflict, match="2 is in force"):
            await session.ask("summary.promote", {"version": 1, "over": 1})
        with pytest.raises(BadRequest, match="no version 99"):
            await session.promote(99)
        with pytest.raises(BadRequest, match="from_version"):
            await session.regenerate(from_version=2)

        # The same over HTTP.
        async with system.http(PATH, timeout=20) as http:
            back = await http.post("/summaries/1/promote", json={"over": 2})
            anew = await http.post("/summaries", json={"style": "narrative"})
            await eventually(lambda: at_least(session, 3))
            wrong = await http.post("/summaries/seven/promote")
        told = back.json()
        assert (back.status_code, told["version"], told["in_force"]) == (200, 1, True)
        assert anew.status_code == 200
        assert anew.json()["compaction_id"] != work["compaction_id"]
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.proves("A4", "A5", "A1", "A2", "O3")
async def test_people_compare_promote_and_undo_from_the_command_line(tmp_path: Path) -> None:
    async with (
        running_system(tmp_path, environ=SMALL) as system,
        turnfold.connect(system.nats_url) as client,
    ):
        session = client.session(AGENT, SESSION)
        await grown(session, 0, 30)
        await settled(session)
        await grown(session, 30, 60)
        before = await settled(session)
        assert before["summary_version"] == 2

        diff = await system.command("summaries", "diff", AGENT, SESSION, "1")
        assert (diff.status, diff.err) == (0, "")
        assert "--- version 1" in diff.out
        assert "+++ version 2" in diff.out
        assert any(line.startswith("+ ") and "order 73" in line for line in diff.out.splitlines())
        back = await system.command("summaries", "promote", AGENT, SESSION, "1", "--json")
        assert (back.status, back.rows[0]["version"]) == (0, 1)
        wrong = await system.command("summaries", "promote", AGENT, SESSION, "99")
        assert (wrong.status, wrong.out) == (1, "")
        assert wrong.err.count("\n") == 1
        anew = await system.command("summaries", "regenerate", AGENT, SESSION, "--json")
        assert (anew.status, anew.rows[0]["version"] >= 3) == (0, True)
        undone = await system.command("restore", AGENT, SESSION, "--yes")
        assert undone.status == 0
        assert undone.err.startswith(f"system: {tmp_path} (nats://")
        assert "live again" in undone.out

        after = await settled(session)
        assert after["messages_live"] > before["messages_live"]
        assert after["messages_total"] == before["messages_total"]
        verified = await system.command("audit", "verify", AGENT, SESSION)
        assert (verified.status, "intact" in verified.out) == (0, True)
        periods = rows(
            system.database,
            "SELECT version, from_at, until_at FROM reigns_view WHERE agent_id = ? ORDER BY from_at",
            AGENT,
        )
        assert [row[0] for row in periods][:3] == [1, 2, 1]
        assert all(ends == begins for (_, _, ends), (_, begins, _) in pairwise(periods))
        assert periods[-1][2] is None

        # The evictions of an erased session cannot be undone in a new one of its name.
        await session.erase()
        await grown(session, 60, 61)
        await session.context(wait_ms=5_000)
        again = await system.command("restore", AGENT, SESSION, "--yes")
        assert (again.status, "nothing to restore" in again.err) == (1, True), again.err


@pytest.mark.proves("O3", "G1")
async def test_a_command_that_waits_for_a_version_ends_when_the_session_is_erased(
    tmp_path: Path,
) -> None:
    async with (
        running_model_server() as model,
        running_system(tmp_path, environ=model.settings | SMALL) as system,
        turnfold.connect(system.nats_url) as client,
    ):
        session = client.session(AGENT, SESSION)
        # The erasure of an earlier session of this name ends nothing.
        await session.erase()
        await grown(session, 0, 30)
        await settled(session)
        model.fault = "hang"

        waiting = asyncio.create_task(system.command("summaries", "regenerate", AGENT, SESSION))
        await asyncio.wait_for(model.is_hanging.wait(), 60)
        await session.erase()
        ended = await asyncio.wait_for(waiting, 20)

    assert (ended.status, ended.out) == (1, "")
    assert "the session was erased meanwhile" in ended.err


@pytest.mark.proves("A4", "O3")
async def test_a_regeneration_of_many_sessions_fails_if_that_of_one_does(tmp_path: Path) -> None:
    async with (
        running_model_server() as model,
        running_system(tmp_path, environ=model.settings | SMALL) as system,
        turnfold.connect(system.nats_url) as client,
    ):
        session = client.session(AGENT, SESSION)
        await grown(session, 0, 30)
        await settled(session)
        model.fault = "401"

        one = await system.command("summaries", "regenerate", AGENT, SESSION)
        many = await system.command("summaries", "regenerate", AGENT, "--json")

    assert (one.status, many.status) == (1, 1)
    assert (many.rows[0]["written"], many.rows[0]["failed"]) == (0, 1)
    assert "1 of 1 sessions got no version" in many.err


@pytest.mark.proves("V1", "F3")
async def test_a_line_of_a_summary_on_a_page_leads_to_the_sources_of_that_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Models write separators that end no line of a summary, though `splitlines` divides at them.
    told = "Retries\u2028were added.\nThe bill was\x85settled.\nThe queue was emptied."
    monkeypatch.setitem(SUMMARY, "context", told)
    async with (
        running_model_server() as model,
        running_system(tmp_path, environ=model.settings | SMALL) as system,
        turnfold.connect(system.nats_url) as client,
        system.http(timeout=20) as visitor,
    ):
        session = client.session(AGENT, SESSION)
        await grown(session, 0, 30)
        await settled(session)
        page = (await visitor.get(f"/console{PATH.removeprefix('/v1')}/versions/1")).text
        links = re.findall(r'href="([^"]*\?line=\d+)#sources"[^>]*>([^<]*)</a>', page)
        quotes = [
            re.findall(r'<p class="quote">([^<]*)</p>', (await visitor.get(link)).text)
            for link, _ in links
        ]

    assert "The queue was emptied." in page
    assert quotes == [[line] for _, line in links]


async def finished(client: turnfold.Client, campaign_id: str) -> dict[str, Any] | None:
    """How a campaign ended, once it has; whether a worker is there or not."""
    try:
        told = await client.ask("campaign.get", {"campaign_id": campaign_id})
    except Unavailable:
        return None
    return told if told["finished_at"] else None


async def at_least(session: Session, number: int) -> list[turnfold.Summary] | None:
    found = await session.summaries()
    return found if len(found) >= number else None


@pytest.mark.proves("A4", "O3", "C49")
async def test_all_sessions_of_an_agent_are_written_again_also_when_the_worker_dies_meanwhile(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        sessions = [client.session(AGENT, f"s-{number}") for number in range(6)]
        for one in sessions:
            await one.policy(
                overrides={
                    "keep_tokens": 0,
                    "min_gain_messages": 1,
                    "max_live_messages": 12,
                    "keep_messages": 4,
                }
            )
            await grown(one, 0, 8)
        for one in sessions:
            await settled(one)

        options = ("--style", "narrative", "--no-wait", "--json")
        begun = await system.command("summaries", "regenerate", AGENT, *options)
        assert begun.status == 0
        assert begun.err.startswith("system: ")
        assert system.kill("worker")
        campaign_id = begun.rows[0]["campaign_id"]
        done = await eventually(lambda: finished(client, campaign_id))

        assert (done["sessions"], done["written"], done["failed"]) == (6, 6, 0)
        for one in sessions:
            versions = await one.summaries()
            assert [version.style for version in versions] == ["structured", "narrative"]
            assert versions[0].in_force
        everywhere = await system.command("summaries", "regenerate", "--all", "--json")
        assert (everywhere.status, everywhere.rows[0]["written"]) == (0, 6)
        nowhere = await system.command("summaries", "regenerate")
        assert (nowhere.status, "--all" in nowhere.err) == (2, True)
