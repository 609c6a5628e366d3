"""Chromium for tests of the console: one browser, and pages that record what they must not do."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "there is no Chromium; install it (Debian: apt-get install chromium)"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 60_000
"""How long a page or an element may take on a slow machine."""


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """Run the Chromium of this machine without a window, with an empty profile."""
    assert CHROMIUM is not None
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=FLAGS, timeout=WAIT_MS
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Watched:
    """A page, and its faults: errors in the browser's console, and requests to other origins."""

    page: Page
    origin: str
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Record faults from now on."""
        self.page.on("console", self._on_message)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._on_request)

    async def open(self, path: str) -> int:
        """Open a page; its status."""
        response = await self.page.goto(self.origin + path)
        assert response is not None
        return response.status

    async def text(self) -> str:
        """All the text of the page."""
        return await self.page.inner_text("body")

    async def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        wider: int = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return wider

    async def barriers(self) -> list[str]:
        """Serious faults of accessibility in dark colors, and of contrast in light ones."""
        found: list[str] = []
        everything: dict[str, Any] = {"resultTypes": ["violations"]}
        contrast = everything | {"runOnly": ["color-contrast"]}
        passes: list[tuple[Literal["dark", "light"], dict[str, Any]]]
        passes = [("dark", everything), ("light", contrast)]
        await self.page.evaluate(AXE_SCRIPT)
        for scheme, options in passes:
            await self.page.emulate_media(color_scheme=scheme)
            violations: list[Any] = await self.page.evaluate(
                "async options => (await axe.run(options)).violations", options
            )
            found += [
                f"{scheme}: {fault['id']}: {fault['nodes'][0]['html'][:200]}"
                for fault in violations
                if fault["impact"] in {"serious", "critical"}
            ]
        return found

    def _on_message(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.faults.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.origin + "/"):
            self.faults.append(f"request to {request.url}")


@asynccontextmanager
async def visiting(
    browser: Browser, origin: str, *, token: str | None = None, **options: Any
) -> AsyncGenerator[Watched]:
    """A page of a new visitor, who signs in if there is a token. It must have no faults."""
    context = await browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    try:
        watched = Watched(await context.new_page(), origin)
        watched.watch()
        if token is not None:
            await watched.open("/console")
            await watched.page.fill("input[name=token]", token)
            await watched.page.click("button:has-text('Sign in')")
            await watched.page.wait_for_selector("h1:has-text('Overview')")
        yield watched
        assert watched.faults == []
    finally:
        await context.close()
