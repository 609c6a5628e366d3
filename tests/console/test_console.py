"""The console in a real browser: what each page is for, and who sees what."""

import re
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.console.chromium import CHROMIUM, MISSING, Watched, chromium, visiting
from tests.ports import free_port
from tests.running_system import Parts, eventually, running_parts
from turnfold.access.bearers import EVERY_AGENT, new_token
from turnfold.client import Client, Session, connect

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

Json = dict[str, Any]
SECRET_WORDS = "Only the other agent may read this."
OWN = "/console/agents/support/sessions/user%2042%2F%E8%AA%9E"
OTHER = "/console/agents/other/sessions/s"
PAGES = (
    "/console",
    "/console/agents",
    "/console/sessions",
    OWN,
    f"{OWN}/search?q=order+now",
    f"{OWN}/window?max_tokens=900",
    f"{OWN}/window?as_of=1",
    f"{OWN}/window/difference?before=1&max_tokens=900",
    f"{OWN}/versions",
    f"{OWN}/versions/1?entry=0",
    f"{OWN}/versions/compare?before=1&after=2",
    f"{OWN}/compactions",
    f"{OWN}/audit?verify=1",
    "/console/jobs",
    "/console/campaigns",
    "/console/costs",
    "/console/costs?agent=support",
    "/console/dead-letters",
    "/console/dead-letters/1",
    "/console/erasures",
    f"{OWN}/versions/2/promote",
    f"{OWN}/regenerate",
    "/console/dead-letters/1/replay",
)


class Site(NamedTuple):
    """A system with two agents, served with tokens and, at another port, without."""

    parts: Parts
    url: str
    open_url: str
    operator: str
    agent: str


async def published(client: Client, parts: Parts) -> None:
    """A session with two versions, one of another agent, and a dead letter."""
    session = client.session("support", "user 42/語")
    for number in range(30):
        await session.turn_completed(
            [
                {"role": "user", "content": f"Where is order KC-73{number:04}? <b>Now</b>"},
                {"role": "assistant", "content": "It left Ghent this morning. " * 20},
            ]
        )
    other = client.session("other", "s")
    await other.turn_completed([{"role": "user", "content": SECRET_WORDS}])
    await parts.publish("turn.completed.support.broken", b'{"event_id": "e"')
    await session.context(wait_ms=5_000)

    async def settled() -> bool:
        counts = await session.status()
        return bool(counts["summary_version"]) and not counts["messages_pending"]

    await eventually(settled, seconds=60)
    await session.regenerate(style="narrative")

    async def has_two() -> bool:
        return len(await session.summaries()) == 2

    await eventually(has_two, seconds=60)
    await client.ask("agent.regenerate.other", {"style": "narrative"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site]:
    folder = tmp_path_factory.mktemp("console")
    tokens = folder / "tokens.json"
    tokens.write_text("{}")
    operator = new_token(tokens, [EVERY_AGENT], name="operations")
    agent = new_token(tokens, ["support"], name="support-team")
    port = free_port()
    async with (
        running_parts(folder, environ={"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20"}) as parts,
        parts.running("worker"),
        parts.running("query", environ={"TURNFOLD_HTTP_TOKENS": str(tokens)}),
        parts.running("query", environ={"TURNFOLD_HTTP_PORT": str(port)}),
        parts.client() as client,
    ):
        await published(client, parts)
        yield Site(parts, parts.http_url, f"http://127.0.0.1:{port}", operator, agent)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as started:
        yield started


def http(url: str, token: str | None = None) -> httpx.AsyncClient:
    """A visitor without a browser; with the cookie of a token."""
    cookies = {} if token is None else {"turnfold_token": token}
    return httpx.AsyncClient(base_url=url, cookies=cookies, trust_env=False, timeout=60)


@pytest.mark.proves("V1", "V2")
async def test_a_stranger_is_asked_for_a_token_and_sees_nothing(
    site: Site, browser: Browser
) -> None:
    for token in (None, "tf_guessed"):
        async with http(site.url, token) as stranger:
            for path in ("/", *PAGES):
                answer = await stranger.get(path)
                assert (answer.status_code, answer.text) == (303, ""), path
                assert answer.headers["location"].startswith("/console")
            for cookie in (b"turnfold_token=\xff\xfe", b'turnfold_token="', b"=;;turnfold_token"):
                odd = await stranger.get("/console", headers=[(b"cookie", cookie)])
                assert odd.status_code == 303, cookie
            written = await stranger.post(f"{OWN}/regenerate", data={"proof": "x"})
            assert written.headers["location"].startswith("/console/sign-in")
    async with visiting(browser, site.url) as watched:
        await watched.open("/")
        await watched.page.fill("input[name=token]", "tf_guessed")
        async with watched.page.expect_response("**/sign-in") as refused:
            await watched.page.click("button:has-text('Sign in')")
        assert (await refused.value).status == 403
        assert "This token is not valid" in await watched.text()
        watched.faults.clear()  # the browser tells of the status


@pytest.mark.proves("V1")
async def test_an_agents_token_sees_its_own_sessions_and_changes_nothing(
    site: Site, browser: Browser
) -> None:
    async with visiting(browser, site.url, token=site.agent) as watched:
        overview = await watched.text()
        assert "support-team · read-only" in overview
        assert "user 42/語" in overview
        assert await watched.open(f"{OWN}/versions/2") == 200
        assert await watched.page.locator("a:has-text('Put in force')").count() == 0
    async with http(site.url, site.agent) as client:
        seen = [await client.get(path) for path in PAGES]
        assert {answer.status_code for answer in seen} == {200, 403}
        assert not any(SECRET_WORDS in answer.text for answer in seen)
        for path in ("", "/window", "/versions", "/audit", "/compactions"):
            assert (await client.get(OTHER + path)).status_code == 403
        for path in (
            "/console/sessions?agent=other",
            "/console/costs?agent=other",
            "/console/dead-letters",
        ):
            assert (await client.get(path)).status_code == 403
        for path in (f"{OWN}/versions/2/promote", f"{OWN}/regenerate"):
            assert (await client.get(path)).status_code == 403
            assert (await client.post(path, data={"proof": "x"})).status_code == 403


@pytest.mark.proves("V1")
async def test_an_operator_finds_a_session_and_sees_why_each_message_has_its_form(
    site: Site, browser: Browser
) -> None:
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        await page.click("nav a:has-text('Agents')")
        assert await page.locator("tbody tr").count() == 2
        await page.click("td a:has-text('support')")
        await page.wait_for_selector("h1:has-text('Sessions')")
        await page.fill("input[name=prefix]", "user")
        await page.click("button:has-text('Filter')")
        await page.click("a:has-text('user 42/語')")
        await page.wait_for_selector("svg.strip")
        assert SECRET_WORDS not in await watched.text()

        await page.click("a:has-text('Earlier')")
        await page.wait_for_selector("h2:has-text('Messages from here')")
        await page.click("a:has-text('Newest')")
        await page.wait_for_selector("h2:has-text('Newest messages')")
        await page.click("svg.strip rect.covered >> nth=0")
        await page.wait_for_selector("h2:has-text('Messages from here')")
        await page.click("details.message.covered >> nth=0")
        assert "KC-730000? <b>Now</b>" in await page.inner_text("details[open] pre")
        at_first = await page.get_attribute("details[open] a", "href")

        await page.click("nav a:has-text('Window')")
        tokens = page.locator("#window .tile dd >> nth=0")
        before = await tokens.inner_text()
        await page.fill("#max_tokens", "700")
        await page.wait_for_function(
            "before => document.querySelector('#window .tile dd').innerText !== before", arg=before
        )
        assert await page.inner_text("#tokens") == "700"
        shown = await page.inner_text("#window")
        assert "The summary in force covers it." in shown
        assert "newer messages take the budget" in shown

        await watched.open(str(at_first))
        assert await page.locator("#window details.message").count() == 1
        await page.click("a:has-text('Compare two moments')")
        assert await page.input_value("input[name=before]") != ""
        await page.wait_for_selector("h2:has-text('What changed')")
        changed = await page.inner_text("table >> nth=1")
        assert "a summary covers it." in changed
        assert "Published in between." in changed
        async with site.parts.client() as client:
            history = await client.session("support", "user 42/語").history(newest=3)
        before = quote(history.messages[0].message_id)
        await watched.open(f"{OWN}/window/difference?before={before}&max_tokens=700")
        assert "folded" in await page.locator("td[data-label=After] .badge").all_inner_texts()


@pytest.mark.proves("V1")
async def test_a_search_says_where_each_message_is_now(site: Site, browser: Browser) -> None:
    async with visiting(browser, site.open_url, java_script_enabled=False) as watched:
        page = watched.page
        for query, state in (
            ("kc-730000 now", "covered by version"),
            ("KC-730029", "In the window"),
        ):
            await watched.open(OWN)
            await page.fill("input[name=q]", query)
            await page.click("button:has-text('Find')")
            row = page.locator("tbody tr >> nth=0")
            assert "<b>Now</b>" in await row.inner_text()
            assert state in await row.inner_text()
            assert await row.locator("mark").all_inner_texts() != []
            await row.locator("a >> nth=0").click()
            place = page.locator("details.message:target")
            assert query.upper().split()[0] in await place.inner_text()
        await watched.open(f"{OWN}/search?q=KC-999")
        assert "No message has all of these words" in await watched.text()
        await watched.open(f"{OWN}/search?q=zebra")
        assert "No message has these words" in await watched.text()
        assert await watched.open(f"{OWN}/search?q=!!") == 200
        assert "contains no word" in await page.inner_text(".notice")


@pytest.mark.proves("V1")
async def test_a_page_says_since_when_it_is_old_and_a_refresh_keeps_the_focus(
    site: Site, browser: Browser
) -> None:
    async with visiting(browser, site.open_url) as watched:
        page = watched.page
        await watched.open("/console")
        await page.evaluate("document.getElementById('live').dataset.age = 'old'")
        await page.focus("td a:has-text('user 42')")
        await page.route("**/console", lambda route: route.abort())
        await page.wait_for_selector("#stale:has-text('Not updated since')")
        await page.unroute("**/console")
        await page.wait_for_selector("#live:not([data-age])")
        await page.wait_for_function("() => document.activeElement.innerText?.includes('user 42')")
        assert await page.inner_text("#stale") == ""
        watched.faults.clear()  # the browser tells of the requests that failed


@pytest.mark.proves("V1")
async def test_red_tiles_lead_to_what_they_count(site: Site, browser: Browser) -> None:
    async with visiting(browser, site.url, token=site.operator) as watched:
        for tile, heading in (("Failures", "Jobs and failures"), ("Dead letters", "Dead letters")):
            await watched.open("/console")
            assert re.search(r"\d compactions? wait", await watched.text())
            await watched.page.click(f".tile a:has-text('{tile}')")
            await watched.page.wait_for_selector(f"h1:has-text('{heading}')")
    async with http(site.url, site.agent) as agent:
        assert 'href="/console/dead-letters"' not in (await agent.get("/console")).text


@pytest.mark.proves("V1")
async def test_an_operator_compares_promotes_verifies_and_replays_and_is_named_in_the_audit(
    site: Site, browser: Browser
) -> None:
    async with visiting(browser, site.url, token=site.operator) as watched:
        page = watched.page
        await watched.open(f"{OWN}/versions")
        await page.click("a:has-text('Compare')")
        assert "Version 2 beside version 1" in await watched.text()
        await watched.open(f"{OWN}/versions/2")
        await page.click("ul.ledger a >> nth=0")
        await page.wait_for_selector("#sources details.message")

        await page.click("a:has-text('Put in force…')")
        asked = await watched.text()
        assert site.url.removeprefix("http://") in asked
        assert "token:operations" in asked
        await page.click("button:has-text('Put in force')")
        await page.wait_for_selector("[role=status]:has-text('Version 2 is in force now.')")

        await page.click("nav a:has-text('Audit')")
        await page.click("a:has-text('Verify')")
        await page.wait_for_selector("[role=status]:has-text('Intact')")
        assert "token:operations" in await watched.text()

        await page.click("nav a:has-text('Dead letters')")
        await page.click("td a >> nth=0")
        assert '{"event_id": "e"' in await watched.text()
        await page.click("a:has-text('Replay…')")
        await page.click("button:has-text('Replay')")
        await page.wait_for_selector("[role=status]")
        assert "published again" in await page.inner_text("[role=status]")


@pytest.mark.proves("V1")
async def test_every_page_fits_a_phone_has_no_errors_and_can_be_used_by_everybody(
    site: Site, browser: Browser
) -> None:
    phone = {"width": 390, "height": 844}
    async with visiting(browser, site.open_url, viewport=phone, color_scheme="dark") as watched:
        for path in PAGES:
            assert await watched.open(path) == 200, path
            for width in (641, 768, 861, 1024, 390):
                await watched.page.set_viewport_size({"width": width, "height": 844})
                assert await watched.overflow() <= 0, (path, width)
            assert await watched.page.locator("h1").count() == 1, path
            unnamed = await watched.page.evaluate(
                "[...document.querySelectorAll('input:not([type=hidden])')]"
                ".filter(input => !input.labels.length).length"
            )
            assert unnamed == 0, path
            assert await watched.barriers() == [], path
        await watched.open("/console/sign-in")
        assert await watched.barriers() == []


@pytest.mark.proves("V1")
async def test_a_keyboard_skips_the_strip_and_paper_is_white(site: Site, browser: Browser) -> None:
    async with visiting(browser, site.open_url, color_scheme="dark") as watched:
        page = watched.page
        await watched.open(OWN)
        await page.focus("a:has-text('Skip the strip')")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.name") == "q"
        await page.emulate_media(media="print", color_scheme="dark")
        assert not await page.is_visible("nav a:has-text('Window')")
        color = await page.evaluate("getComputedStyle(document.body).color")
        assert color == "rgb(32, 36, 42)"


@asynccontextmanager
async def watching_session(
    site: Site, browser: Browser, name: str
) -> AsyncGenerator[tuple[Session, Watched]]:
    """A session that an agent still publishes to, and the browser of someone who may see it."""
    async with (
        connect(site.parts.server.url, environ={}) as client,
        visiting(browser, site.url, token=site.agent) as watched,
    ):
        yield client.session("support", name), watched


@pytest.mark.proves("V1")
async def test_an_open_timeline_shows_new_messages_without_a_reload(
    site: Site, browser: Browser
) -> None:
    async with watching_session(site, browser, "live") as (session, watched):
        page = watched.page
        await session.turn_completed([{"role": "user", "content": "Is it open?"}])
        await session.context(wait_ms=5_000)
        await watched.open("/console/agents/support/sessions/live")
        await page.click("details.message >> nth=0")
        await page.evaluate("window.isSame = true")
        await session.turn_completed([{"role": "assistant", "content": "Since nine."}])
        await page.wait_for_selector("details.message:has-text('Since nine.')")
        assert "2 messages" in await page.inner_text("#facts")
        assert await page.evaluate("window.isSame")
        await page.wait_for_selector("details[open]:has-text('Is it open?')")
    async with http(site.url, site.agent) as stranger:
        assert (await stranger.get(f"{OTHER}/changes")).status_code == 403


@pytest.mark.proves("V1")
async def test_an_open_timeline_stays_at_the_message_that_is_read(
    site: Site, browser: Browser
) -> None:
    async with watching_session(site, browser, "read") as (session, watched):
        page = watched.page
        for number in range(40):
            await session.turn_completed([{"role": "user", "content": f"Question {number}?"}])
        await session.context(wait_ms=5_000)
        await watched.open("/console/agents/support/sessions/read")
        read = page.locator("details.message:has-text('Question 25?') summary")
        await read.focus()

        async def is_at_the_top() -> bool:
            """Scroll; a page that is not written whole yet is too short for it."""
            await read.evaluate("message => message.scrollIntoView()")
            return bool(abs(await read.evaluate("one => one.getBoundingClientRect().top")) < 5)

        await eventually(is_at_the_top)
        await session.turn_completed([{"role": "user", "content": "The newest?"}])
        await page.wait_for_selector("details.message:has-text('The newest?')")
        await page.wait_for_function(
            "() => document.activeElement.innerText.includes('Question 25?')"
        )
        assert abs(await read.evaluate("message => message.getBoundingClientRect().top")) < 5
        # Scrolling between the new content and its last touches is not undone.
        await page.evaluate(
            """() => new Promise(settled => {
                const once = { once: true };
                addEventListener("htmx:afterSwap", () => {
                    setTimeout(() => scrollTo(0, 60));
                    addEventListener("htmx:afterSettle", () => setTimeout(settled), once);
                }, once);
                htmx.trigger(document.body, "session-changed");
            })"""
        )
        assert await page.evaluate("scrollY") == 60


@pytest.mark.proves("V1")
async def test_the_slider_works_without_javascript(site: Site, browser: Browser) -> None:
    async with visiting(browser, site.open_url, java_script_enabled=False) as watched:
        await watched.open(f"{OWN}/window?max_tokens=900")
        await watched.page.focus("#max_tokens")
        await watched.page.keyboard.press("Home")
        await watched.page.click("button:has-text('Show')")
        assert await watched.page.inner_text("#tokens") == "200"


@pytest.mark.proves("V1")
async def test_the_slider_stands_at_the_budget_and_reaches_round_ones(
    site: Site, browser: Browser
) -> None:
    async with watching_session(site, browser, "large") as (session, watched):
        page = watched.page
        await session.turn_completed([{"role": "user", "content": "A long report. " * 45_000}])
        await session.context(wait_ms=5_000, max_tokens=1_000)
        for budget in ("8123", "100", "999999", "8000"):
            await watched.open(f"/console/agents/support/sessions/large/window?max_tokens={budget}")
            assert await page.input_value("#max_tokens") == budget
        await page.fill("#max_tokens", "40000")
        await page.wait_for_selector("#compare[href$='max_tokens=40000']")
        # A page that is loaded again, or shared, shows the same budget.
        await page.wait_for_url("**max_tokens=40000**")
        await page.reload()
        assert await page.input_value("#max_tokens") == "40000"
        await page.click("button:has-text('Show')")
        await page.wait_for_url("**max_tokens=40000**")
        assert await page.inner_text("#tokens") == "40,000"


@pytest.mark.proves("V1")
async def test_a_form_works_only_where_it_was_made_and_cookies_stay_with_the_browser(
    site: Site,
) -> None:
    path = f"{OWN}/regenerate"
    async with http(site.url, site.operator) as operator, http(site.open_url) as local:
        for visitor in (operator, local):
            cookie = (await visitor.get(path)).headers["set-cookie"]
            assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/console"))
        for visitor, foreign in ((operator, local), (local, operator)):
            shown = await visitor.get(path)
            proof = (re.search(r'name="proof" value="(\w+)"', shown.text) or ["", ""])[1]
            policy = shown.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            refused = [
                await visitor.post(path),
                await visitor.post(path, data={"proof": "0" * 64}),
                await foreign.post(path, data={"proof": proof}),
                await visitor.post(
                    path, data={"proof": proof}, headers={"Sec-Fetch-Site": "cross-site"}
                ),
                await visitor.post(path, content=b"proof=" + b"x" * 20_000),
            ]
            assert [answer.status_code for answer in refused] == [403, 403, 403, 403, 413]
        rebound = await local.get("/console", headers={"Host": "example.org"})
        assert rebound.status_code == 403
        assert "user 42" not in rebound.text
        signed = await local.post(
            "/console/sign-in", data={"token": "x", "next": "//example.org/console/"}
        )
        assert signed.headers["location"] == "/console"
        listed = await local.get(OWN.replace("/console", "/v1") + "/summaries")
    assert len(listed.json()["summaries"]) == 2


@pytest.mark.proves("V1")
async def test_an_operator_has_a_summary_written_anew_and_undoes_a_compaction(
    site: Site, browser: Browser
) -> None:
    async with visiting(browser, site.open_url) as watched:
        page = watched.page
        await watched.open(f"{OWN}/versions")
        await page.click("a:has-text('Regenerate…')")
        assert "Recorded as\nlocal" in await watched.text()
        await page.click("button:has-text('Write a new version')")
        await page.wait_for_selector("[role=status]:has-text('A job was opened')")

        async def is_written() -> bool:
            await watched.open(f"{OWN}/versions/3")
            return "Version 3" in await watched.text()

        await eventually(is_written, seconds=60)
        watched.faults.clear()  # the browser tells of the pages that were not there yet
        await watched.open(f"{OWN}/compactions")
        await page.click("a:has-text('Undo…') >> nth=0")
        await page.click("button:has-text('Undo')")
        await page.wait_for_selector("[role=status]:has-text('The compaction was undone')")
        assert await page.locator("td .badge.restored").count() == 1


@pytest.mark.proves("V1")
async def test_costs_are_drawn_once_a_model_was_called(site: Site) -> None:
    today = int(time.time()) // 86_400
    page = "/console/costs?agent=other"
    async with http(site.open_url) as visitor:
        before = (await visitor.get(page)).text
    with closing(sqlite3.connect(site.parts.database, timeout=30)) as database, database:
        database.execute("INSERT INTO summary_token_usage VALUES ('other', ?, 1200)", (today,))
    # Each service keeps its answer for some seconds, so another one is asked.
    async with http(site.url, site.operator) as visitor:
        after = (await visitor.get(page)).text

    assert "Since the beginning" in before
    assert "None: no model was called." in before
    assert 'class="bars"' not in before
    assert "None: no model was called." not in after
    assert ": 1,200</title>" in after


@pytest.mark.proves("V1", "I2")
async def test_a_session_with_odd_messages_has_all_its_pages(site: Site) -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "ls -la"}}
    odd: list[Any] = [[{"function": "f"}], 5, ["x"], {"a": 1}, [custom]]
    async with (
        connect(site.parts.server.url, environ={}) as client,
        http(site.url, site.operator) as operator,
    ):
        session = client.session("support", "odd")
        for calls in odd:
            await session.turn_completed(
                [
                    {"role": "user", "content": "Half a character: \ud83d."},
                    {"role": "assistant", "content": "Look.", "tool_calls": calls},
                ]
            )
        await session.context(wait_ms=5_000)
        here = "/console/agents/support/sessions/odd"
        for path in ("", "/window?max_tokens=900", "/window/difference?before=1", "/versions"):
            shown = await operator.get(here + path)
            assert shown.status_code == 200, path
        assert "→ run(ls -la)" in (await operator.get(here)).text


@pytest.mark.proves("V1")
@pytest.mark.parametrize("other", ['prefs={"theme":"dark"}', "a b=c d", "mood=\xfcber", "=;;", "x"])
async def test_cookies_of_other_programs_do_not_sign_anybody_out(site: Site, other: str) -> None:
    async with http(site.url) as client:
        cookie = f"{other}; turnfold_token={site.operator}".encode("latin-1")
        answer = await client.get("/console/agents", headers=[(b"cookie", cookie)])

    assert answer.status_code == 200


@pytest.mark.proves("V1", "X6")
async def test_without_tokens_no_other_site_reaches_the_api(site: Site) -> None:
    promote = "/v1/agents/support/sessions/user%2042%2F%E8%AA%9E/summaries/1/promote"
    async with http(site.open_url) as visitor:
        foreign_pages = [{"origin": "https://evil.example"}, {"origin": "null"}]
        for foreign in ({"sec-fetch-site": "cross-site"}, {"host": "evil.example"}, *foreign_pages):
            assert (await visitor.get("/v1/sessions", headers=foreign)).status_code == 403
            for path in (promote, "/v1/summaries"):
                written = await visitor.post(path, content=b"{}", headers=foreign)
                assert written.status_code == 403
                assert written.json()["error"]["code"] == "not_allowed"
            assert (await visitor.get("/healthz", headers=foreign)).status_code == 200
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        container = {"host": "host.docker.internal:8080"}
        own_pages = [{"sec-fetch-site": "same-site"}, {"origin": site.open_url}]
        named = {"host": "[::1]:8080", "origin": "http://[::1]:3000"}
        for own in ({}, {"host": "localhost"}, link, container, named, *own_pages):
            assert (await visitor.get("/v1/sessions", headers=own)).status_code == 200
        assert (await visitor.post("/v1/summaries", headers=link)).status_code == 403
    async with http(site.url) as bearer:
        # A token proves more than a browser's word.
        headers = {"authorization": f"Bearer {site.operator}", "host": "turnfold.example"}
        assert (await bearer.get("/v1/sessions", headers=headers)).status_code == 200
