"""The console in a real browser: odd names in links, and pages that refresh while they are read."""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Literal, NamedTuple

import nats
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from tests.console.chromium import CHROMIUM, MISSING, chromium, visiting
from tests.ports import free_port
from tests.running_system import Parts, eventually, running_parts
from turnfold.access.bearers import EVERY_AGENT, new_token
from turnfold.client import Client

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]


class Site(NamedTuple):
    """A system that is served with tokens, and a client that publishes to it."""

    parts: Parts
    url: str
    operator: str
    client: Client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site]:
    folder = tmp_path_factory.mktemp("refresh")
    tokens = folder / "tokens.json"
    tokens.write_text("{}")
    operator = new_token(tokens, [EVERY_AGENT], name="operations")
    async with (
        running_parts(folder) as parts,
        parts.running("worker"),
        parts.running("query", environ={"TURNFOLD_HTTP_TOKENS": str(tokens)}),
        parts.client() as client,
    ):
        yield Site(parts, parts.http_url, operator, client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as started:
        yield started


async def say(client: Client, agent: str, name: str, text: str) -> None:
    """Publish a turn, and wait until it is stored."""
    session = client.session(agent, name)
    await session.turn_completed([{"role": "user", "content": text}])
    await session.context(wait_ms=5_000)


@pytest.mark.proves("V1", "X2")
async def test_links_lead_to_sessions_and_agents_of_any_name(site: Site, browser: Browser) -> None:
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        for name in (".", "..", "..%7F", "...", "a/../b", "%2E%2E", "?#"):
            await say(site.client, name, name, f"Said as {name}.")
            await watched.open("/console/sessions")
            await page.get_by_role("link", name=f"{name} / {name}", exact=True).click()
            await page.wait_for_selector(f"details.message:has-text('Said as {name}.')")
            await page.click("nav a:has-text('Window')")
            await page.wait_for_selector(f"#window details:has-text('Said as {name}.')")
            await page.click("nav a:has-text('Audit')")
            await page.click("a:has-text('Verify')")
            await page.wait_for_selector("[role=status]:has-text('Intact')")


@pytest.mark.proves("V1")
async def test_names_and_words_without_a_break_fit_every_width(
    site: Site, browser: Browser
) -> None:
    long = "W" * 256
    bus = await nats.connect(site.parts.server.url)
    await bus.jetstream().publish(f"turn.completed.{long}.{long}", b"no event")
    await bus.close()
    session = site.client.session(long, long)
    asked = [{"role": "user", "content": f"Look at /srv/{long}."}] * 300
    await session.turn_completed(asked, event_id="E" * 250)
    await session.context(wait_ms=5_000)

    async def has_summary() -> bool:
        return bool((await session.status())["summary_version"])

    await eventually(has_summary, seconds=60)
    here = f"/console/agents/{long}/sessions/{long}"
    paths = ("", "/window", "/regenerate", "/audit", "/versions/1?line=1")
    async with visiting(browser, site.url, token=site.operator) as watched:
        for path in ("/console/dead-letters/1/replay", *(here + path for path in paths)):
            assert await watched.open(path) == 200, path
            for width in (320, 1280):
                await watched.page.set_viewport_size({"width": width, "height": 700})
                assert await watched.overflow() <= 0, (path, width)


LINES = """element => {
    const words = document.createRange();
    words.selectNodeContents(element);
    return new Set([...words.getClientRects()].map(({bottom}) => Math.round(bottom))).size;
}"""
"""In how many lines the text of an element is shown."""


@pytest.mark.proves("V1")
async def test_long_and_arabic_names_leave_what_is_beside_them_in_its_place(
    site: Site, browser: Browser
) -> None:
    long, arabic = "customer-support-" * 9, "\u062c\u0644\u0633\u0629"
    await say(site.client, long, long, "Is it open?")
    await say(site.client, long, arabic, "Is it open?")
    with closing(sqlite3.connect(site.parts.database, timeout=30)) as database, database:
        database.execute("UPDATE sessions SET version = 123 WHERE agent_id = ?", [long])
    bus = await nats.connect(site.parts.server.url)
    await bus.jetstream().publish("turn.completed.support.user-0012345678", b"no event")
    await say(site.client, long, arabic, "Still open?")
    await bus.close()
    here = f"/console/agents/{long}/sessions"
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        for width in (900, 1280):
            await page.set_viewport_size({"width": width, "height": 700})
            await watched.open(f"/console/sessions?agent={long}")
            for text in ("td:has-text('version 123')", "td.figure"):
                assert await page.locator(f"{text} >> nth=0").evaluate(LINES) == 1, width
            await watched.open("/console/dead-letters")
            subject = page.locator("td.id:has-text('user-0012345678')")
            assert await subject.evaluate(LINES) == 1, width
        await page.set_viewport_size({"width": 390, "height": 700})
        await watched.open(f"{here}/{long}")
        assert await page.locator("nav.trail a >> nth=0").evaluate(LINES) == 1
        await watched.open(f"{here}/{arabic}")
        heading = "getComputedStyle(document.querySelector('h1')).textAlign"
        assert await page.evaluate(heading) == "left"


@pytest.mark.proves("V1")
async def test_a_tab_in_focus_has_its_whole_ring_and_a_field_a_border_that_is_seen(
    site: Site, browser: Browser
) -> None:
    await say(site.client, "seen", "s", "Is it open?")
    async with visiting(browser, site.url, token=site.operator, color_scheme="light") as watched:
        page = watched.page
        await watched.open("/console/agents/seen/sessions/s")
        await page.focus("nav.trail a:has-text('seen')")
        await page.keyboard.press("Tab")
        ring = "getComputedStyle(document.activeElement).outline"
        offset = "getComputedStyle(document.activeElement).outlineOffset"
        assert "Timeline" in await page.evaluate("document.activeElement.innerText")
        assert "solid 2px" in await page.evaluate(ring)
        assert await page.evaluate(offset) == "-2px"
        border = "getComputedStyle(document.querySelector('input[name=q]')).borderTopColor"
        assert await page.evaluate(border) == "rgb(139, 143, 149)"


@pytest.mark.proves("V1")
async def test_a_timeline_is_refreshed_while_its_session_changes_all_the_time(
    site: Site, browser: Browser
) -> None:
    await say(site.client, "busy", "s", "Are you there?")
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        await watched.open("/console/agents/busy/sessions/s")
        abandoned: list[str] = []
        page.on("requestfailed", lambda request: abandoned.append(request.url))
        refreshes = 0

        async def change_again(route: Route) -> None:
            nonlocal refreshes
            refreshes += 1
            if refreshes < 5:
                await page.evaluate("htmx.trigger(document.body, 'session-changed')")
            await route.continue_()

        await page.route("**/sessions/s", change_again)
        await say(site.client, "busy", "s", "Still there?")
        await page.wait_for_selector("details.message:has-text('Still there?')")

        async def has_refreshed_often() -> bool:
            return refreshes >= 5

        await eventually(has_refreshed_often, seconds=60)
        await page.unroute_all(behavior="wait")
        assert abandoned == []


@pytest.mark.proves("V1")
async def test_a_timeline_says_within_seconds_that_its_server_is_gone_or_back(
    site: Site, browser: Browser
) -> None:
    await say(site.client, "gone", "s", "Are you there?")
    environ = {"TURNFOLD_HTTP_PORT": str(free_port())}
    origin = f"http://127.0.0.1:{environ['TURNFOLD_HTTP_PORT']}"
    async with visiting(browser, origin) as watched:
        page = watched.page
        async with (
            site.parts.running("query", environ=environ),
            page.expect_response("**/changes"),
        ):
            await watched.open("/console/agents/gone/sessions/s")
        # Sooner than a refresh at intervals would.
        await page.wait_for_selector("#stale:has-text('Not updated since')", timeout=15_000)
        async with site.parts.running("query", environ=environ):
            await page.wait_for_selector("#stale:empty", state="attached", timeout=15_000)
        watched.faults.clear()  # the browser tells of the requests that failed


@pytest.mark.proves("V1")
async def test_a_click_during_a_refresh_counts(site: Site, browser: Browser) -> None:
    for number in range(60):
        await say(site.client, "clicked", "s", f"Is it open, {number}?")
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        await watched.open("/console/agents/clicked/sessions/s")
        await page.hover("a:has-text('Earlier')")
        await page.mouse.down()
        async with page.expect_response("**/sessions/s"):
            await say(site.client, "clicked", "s", "Is it closed?")
        # The answer is handled before this is.
        await page.evaluate("new Promise(requestAnimationFrame)")
        await page.mouse.up()
        await page.wait_for_selector("h2:has-text('Messages from here')")

        await watched.open("/console/agents/clicked/sessions/s")
        await page.hover("h1")
        await page.mouse.down()
        async with page.expect_response("**/sessions/s"):
            await say(site.client, "clicked", "s", "Is it open again?")
        await page.mouse.up()
        await page.wait_for_selector("details.message:has-text('Is it open again?')")


@pytest.mark.proves("V1")
async def test_a_click_asks_for_nothing_and_a_menu_ends_no_refreshes(
    site: Site, browser: Browser
) -> None:
    """Each click, and each gesture that scrolls, read the whole page again."""
    await say(site.client, "menu", "s", "Are you there?")
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
        await watched.open("/console/agents/menu/sessions/s")

        async def has_refreshed() -> bool:
            return asked.count("s") == 2

        # The stream of changes begins with one.
        await eventually(has_refreshed)
        await page.click("h1")
        await page.evaluate("new Promise((done) => setTimeout(done, 200))")
        assert asked.count("s") == 2

        await page.mouse.down(button="right")
        await say(site.client, "menu", "s", "Still there?")
        await page.wait_for_selector("details.message:has-text('Still there?')", timeout=10_000)


@pytest.mark.proves("V1")
async def test_the_next_page_of_sessions_begins_where_the_refreshed_one_ends(
    site: Site, browser: Browser
) -> None:
    names = {f"s-{number:02}" for number in range(54)}
    for name in sorted(names)[:51]:
        await site.client.session("many", name).turn_completed([{"role": "user", "content": "?"}])
    await say(site.client, "many", "s-00", "Is it open?")
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        await watched.open("/console/sessions?agent=many")
        for name in sorted(names)[51:]:
            await say(site.client, "many", name, "Is it open?")
        for name in sorted(names)[51:]:
            await page.wait_for_selector(f"td a:has-text('{name}')")
        shown = await page.locator("td.name").all_inner_texts()
        await page.click("a:has-text('Next page')")
        await page.wait_for_selector("a:has-text('First page')")
        shown += await page.locator("td.name").all_inner_texts()

    assert sorted(text.removeprefix("many / ") for text in shown) == sorted(names)


@pytest.mark.proves("V1")
async def test_a_visitor_whose_session_ends_comes_back_to_the_page_that_was_open(
    site: Site, browser: Browser
) -> None:
    path = "/console/sessions?agent=ending"
    await say(site.client, "ending", "s", "Are you there?")
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        await watched.open(path)
        await page.context.clear_cookies()
        await page.fill("input[name=token]", site.operator)
        await page.click("button:has-text('Sign in')")
        await page.wait_for_selector("td a:has-text('ending / s')")

        assert page.url == site.url + path


@pytest.mark.proves("V1")
async def test_an_open_timeline_tells_of_failures_of_the_model_as_long_as_they_last(
    site: Site, browser: Browser
) -> None:
    await say(site.client, "failing", "s", "Are you there?")
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        await watched.open("/console/agents/failing/sessions/s")
        moments: list[tuple[int, Literal["visible", "detached"]]]
        moments = [(2, "visible"), (0, "detached")]
        for failures, state in moments:
            with closing(sqlite3.connect(site.parts.database, timeout=30)) as database, database:
                database.execute(
                    "UPDATE sessions SET failures = ?, cooldown_until_ms = 9,"
                    " cooldown_reason = 'timeout' WHERE agent_id = 'failing'",
                    [failures],
                )
            await page.evaluate("htmx.trigger(document.body, 'session-changed')")
            await page.wait_for_selector(".notice:has-text('The model failed')", state=state)
