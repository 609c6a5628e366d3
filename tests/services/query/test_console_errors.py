"""The console where forms cannot be checked, paths name no number, and lists are long."""

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.postgres import running_postgres
from tests.running_system import eventually, running_parts, serving_parts
from turnfold.client import Client, Session
from turnfold_query.console.app import make_console
from turnfold_query.console.views import page

FORM = {"turnfold_form": "f"}
"""The cookie of a page with a form."""


async def filled(client: Client, messages: int) -> Session:
    """A session with so many messages, all stored."""
    session = client.session("ada", "s")
    await session.turn_completed([{"role": "user", "content": "?"}] * messages)
    await session.context(wait_ms=5_000)
    return session


@pytest.mark.proves("V1")
async def test_a_form_sent_while_the_database_is_away_says_so(tmp_path: Path) -> None:
    with running_postgres() as postgres:
        async with (
            running_parts(tmp_path, postgres=postgres) as parts,
            parts.running("query"),
            parts.http(cookies=FORM) as visitor,
        ):
            postgres.stop()
            answers = [
                await visitor.post(f"/console/{path}", data={"proof": "p"}, timeout=30)
                for path in ("dead-letters/3/replay", "agents/a/sessions/s/regenerate")
            ]
            postgres.start()

    assert [answer.status_code for answer in answers] == [503, 503]


@pytest.mark.proves("V1")
async def test_a_path_without_a_number_has_no_page(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.http() as visitor,
    ):
        numbers = ("1" * 4_301, "x", "-1", "%C2%B2")
        paths = [
            f"/console/{path}/{number}"
            for number in numbers
            for path in ("dead-letters", "agents/a/sessions/s/versions")
        ]
        answers = [(await visitor.get(path)).status_code for path in paths]

    assert answers == [404] * len(paths)


@pytest.mark.proves("V1")
async def test_a_visitor_who_leaves_in_the_middle_of_a_form_is_no_failure(tmp_path: Path) -> None:
    async with running_parts(tmp_path) as parts:
        async with (
            parts.running("query"),
            parts.http() as visitor,
        ):
            for path in ("sign-in", "agents/a/sessions/s/regenerate"):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", urlsplit(parts.http_url).port
                )
                head = f"POST /console/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                writer.write(f"{head}content-length: 100\r\n\r\nproof=".encode())
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            assert (await visitor.get("/console/sign-in")).status_code == 200
        assert "ASGI" not in parts.words(), parts.words()


@pytest.mark.proves("V1")
async def test_a_page_of_another_site_signs_nobody_in_or_out(tmp_path: Path) -> None:
    """It is told why, because a reverse proxy may make a page of the own site look foreign."""
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.http() as visitor,
    ):
        answers = [
            await visitor.post("/console/sign-out", headers=headers)
            for headers in (
                {"sec-fetch-site": "cross-site"},
                {"sec-fetch-site": "same-site"},
                # Over HTTP to another machine, browsers send only this one.
                {"origin": "http://evil.example"},
                {"origin": "null"},
                {"sec-fetch-site": "same-origin"},
                {"origin": parts.http_url},
                # A reverse proxy has replaced the name.
                {"origin": "https://agents.example", "x-forwarded-host": "agents.example"},
                {},
            )
        ]

        signing_in = await visitor.post("/console/sign-in", headers={"origin": "http://evil"})

    assert [answer.status_code for answer in answers] == [403] * 4 + [303] * 4
    for refused in (answers[0], signing_in):
        assert (refused.status_code, "X-Forwarded-Host" in refused.text) == (403, True)
    forgets = ["turnfold_token" in answer.headers.get("set-cookie", "") for answer in answers]
    assert forgets == [False] * 4 + [True] * 4


@pytest.mark.proves("V1")
async def test_erasures_beyond_the_first_page_are_on_the_next(tmp_path: Path) -> None:
    names = {f"s-{number:03}" for number in range(201)}
    async with serving_parts(tmp_path) as (parts, client), parts.http() as visitor:
        for name in names:
            await client.session("ada", name).erase()
        pages: list[list[str]] = []
        path = "/console/erasures"
        while path and len(pages) < 3:
            page = (await visitor.get(path)).text
            pages.append(re.findall(r">(s-\d+)</a>", page))
            following = re.search(r'<a rel="next" href="([^"]+)"', page)
            path = following[1] if following else ""

    assert [len(page) for page in pages] == [200, 1]
    assert {name for page in pages for name in page} == names


@pytest.mark.proves("V1")
def test_a_list_of_failures_that_is_cut_says_so() -> None:
    failed = {
        "agent_id": "support", "session_id": "s", "status": "failed", "version": None,
        "is_regeneration": False, "trigger": "messages", "actor": None, "messages": 1, "tokens": 1,
        "attempts": 1, "reason": "timeout", "requested_at": "2026-11-29T03:00:00Z",
    }  # fmt: skip
    request = Request({"type": "http", "path": "/console/jobs"})

    cut = page(request, "jobs.html", waiting=[], failed=[failed, failed], most=2)
    whole = page(request, "jobs.html", waiting=[], failed=[failed], most=2)

    assert "The newest 2; there may be more." in bytes(cut.body).decode()
    assert "there may be more" not in bytes(whole.body).decode()


@pytest.mark.proves("V1")
def test_a_list_of_campaigns_that_is_cut_says_so() -> None:
    campaign = {
        "campaign_id": "c", "agent_id": None, "actor": None, "sessions": 1, "opened": 1,
        "written": 0, "failed": 0, "open": 1, "requested_at": "2026-11-29T03:00:00Z",
        "finished_at": None,
    }  # fmt: skip
    request = Request({"type": "http", "path": "/console/campaigns"})

    cut = page(request, "campaigns.html", campaigns=[campaign, campaign], most=2)
    whole = page(request, "campaigns.html", campaigns=[campaign], most=2)

    assert "The newest 2; there may be more." in bytes(cut.body).decode()
    assert "there may be more" not in bytes(whole.body).decode()


@pytest.mark.proves("V1")
async def test_a_window_and_a_comparison_say_how_many_messages_they_list(tmp_path: Path) -> None:
    here = "/console/agents/ada/sessions/s/window"
    # Without it, an eviction between the pages would change the windows that they compare.
    environ = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "2000"}
    async with serving_parts(tmp_path, environ=environ) as (parts, client), parts.http() as visitor:
        long, session = client.session("ada", "long"), client.session("ada", "s")
        for number in (1_000, 10):
            await long.turn_completed([{"role": "user", "content": "?"}] * number)
        for number in (3, 205):
            await session.turn_completed([{"role": "user", "content": "?"}] * number)
        await session.context(wait_ms=5_000)
        listed = (await session.history(limit=1_000)).messages
        then = {"as_of": listed[2].message_id}
        window_then = (await visitor.get(here, params=then)).text
        window_now = (await visitor.get(here)).text
        large = "/console/agents/ada/sessions/long/window?max_tokens=100000"
        long_window = (await visitor.get(large)).text
        moments = [{"before": listed[place].message_id} for place in (2, 100)]
        cut, whole = [
            (await visitor.get(f"{here}/difference", params=moment)).text for moment in moments
        ]

    assert "The newest 3 of" not in window_then
    assert "The newest 150 of 208 messages." in window_now
    before_the_list, *_ = long_window.partition("<details")
    assert "The newest 1,000 of 1,010 messages." in before_the_list
    assert "The newest 200; there may be more." in cut
    assert "there may be more" not in whole


@pytest.mark.proves("V1", "L7")
async def test_a_message_that_comes_while_a_window_is_shown_is_not_listed_as_left_out(
    tmp_path: Path,
) -> None:
    async with serving_parts(tmp_path) as (parts, client), parts.http() as api:
        session = client.session("ada", "s")
        late = iter([{"role": "user", "content": "And 7342?"}])

        async def publish(message: dict[str, Any]) -> None:
            await session.turn_completed([message])
            await session.context(wait_ms=5_000)

        async def passed_on(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"].endswith("/history"):
                for message in late:
                    await publish(message)
            answer = await api.get(f"{scope['path']}?{scope['query_string'].decode()}")
            await Response(answer.content, answer.status_code)(scope, receive, send)

        async def secret() -> str:
            return "s"

        await publish({"role": "user", "content": "Where is order 7341?"})
        console = make_console(passed_on, secret, is_open=False)
        transport = httpx.ASGITransport(console)
        async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as visitor:
            shown = (await visitor.get("/console/agents/ada/sessions/s/window")).text

    assert "And 7342?" in shown
    assert "Left out" not in shown


@pytest.mark.proves("V1")
async def test_an_empty_page_of_a_list_does_not_say_that_the_list_is_empty(tmp_path: Path) -> None:
    here = "/console/agents/ada/sessions/s"
    environ = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20"}
    async with serving_parts(tmp_path, environ=environ) as (parts, client), parts.http() as visitor:
        for body in (b"no event", b"nor this"):
            await parts.publish("turn.completed.ada.s", body)
        await filled(client, 30)
        pages = [
            (await visitor.get(path)).text
            for path in (
                "/console/dead-letters?before=1",
                f"{here}/compactions?before=1",
                "/console/sessions?agent=ada&prefix=x",
            )
        ]
        whole = [
            (await visitor.get(path)).text
            for path in ("/console/dead-letters", f"{here}/compactions", "/console/sessions")
        ]

    assert ["<tbody>" in page for page in pages + whole] == [False] * 3 + [True] * 3
    assert re.findall(r'href="/console/dead-letters/(\d+)"', whole[0]) == ["2", "1"]
    for said in ("Every event was stored", "Nothing has left the window", "No sessions yet"):
        assert not any(said in page for page in pages + whole), said


@pytest.mark.proves("V1")
async def test_a_page_loaded_again_does_not_say_that_a_version_is_in_force_that_is_not(
    tmp_path: Path,
) -> None:
    environ = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20"}
    async with serving_parts(tmp_path, environ=environ) as (parts, client), parts.http() as visitor:
        session = await filled(client, 30)

        async def has(versions: int) -> bool:
            return len(await session.summaries()) == versions

        await eventually(partial(has, 1), seconds=60)
        await session.regenerate(style="narrative")
        await eventually(partial(has, 2), seconds=60)
        first, second = [
            (
                await visitor.get(f"/console/agents/ada/sessions/s/versions/{number}?did=promoted")
            ).text
            for number in (1, 2)
        ]

    assert "Version 1 is in force now." in first
    assert "is in force now" not in second


@pytest.mark.proves("V1")
async def test_a_page_claims_no_act_that_was_not_done_and_offers_none_that_cannot_be(
    tmp_path: Path,
) -> None:
    here = "/console/agents/ada/sessions/s/compactions"
    environ = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20"}
    async with serving_parts(tmp_path, environ=environ) as (parts, client), parts.http() as visitor:
        await parts.publish("turn.completed.ada.s", b"no event")
        session = await filled(client, 30)
        await eventually(session.summaries, seconds=60)
        letter = (await visitor.get("/console/dead-letters/1?did=stored")).text
        listed = (await visitor.get(f"{here}?did=restored")).text
        (offered,) = re.findall(r'href="([^"]+)/restore"', listed)
        asked = [
            (await visitor.get(f"{path}/restore")).status_code for path in (offered, f"{here}/7")
        ]
        await session.restore(offered.rpartition("/")[2])
        undone = (await visitor.get(f"{here}?did=restored")).text

    assert "no event" in letter
    assert "is stored now" not in letter
    assert "was undone" not in listed
    assert "was undone" in undone
    assert asked == [200, 404]


@pytest.mark.proves("V1")
async def test_earlier_pages_of_a_timeline_end_at_the_first_message(tmp_path: Path) -> None:
    here = "/console/agents/ada/sessions/s"
    async with serving_parts(tmp_path) as (parts, client), parts.http() as visitor:
        await filled(client, 70)
        newest = (await visitor.get(here)).text
        pages: list[list[str]] = []
        path = here
        while path and len(pages) < 9:
            page = (await visitor.get(path)).text
            pages.append(re.findall(r'id="m(\d+)"', page))
            following = re.search(r'href="([^"]+)">Earlier<', page)
            path = following[1] if following else ""
        start = re.search(r'href="([^"]+)#messages" aria-label', newest)
        assert start is not None
        first = (await visitor.get(start[1])).text

    assert [len(page) for page in pages] == [30, 30, 10]
    assert len({position for page in pages for position in page}) == 70
    assert ">Earlier<" not in first
    assert ">Later<" in first
