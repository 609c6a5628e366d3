"""The answers of the console if a form cannot be checked, or a path names no number."""

import json
from collections.abc import AsyncGenerator

import httpx
import pytest
import pytest_asyncio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnfold.errors import Unavailable
from turnfold_query.console.app import make_console


async def operators_api(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer everything as the API tells an operator who they are."""
    access = {"caller": "op", "is_operator": True, "agents": None, "system": "s"}
    await Response(json.dumps(access))(scope, receive, send)


async def secret_out_of_reach() -> str:
    """Fail as the database does while it is away."""
    raise Unavailable("the database cannot be read")


@pytest_asyncio.fixture
async def console() -> AsyncGenerator[httpx.AsyncClient]:
    app = make_console(operators_api, secret_out_of_reach, is_open=False)
    cookies = {"turnfold_token": "t", "turnfold_form": "f"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://x", cookies=cookies
    ) as visitor:
        yield visitor


@pytest.mark.proves("V1")
async def test_a_form_sent_while_the_database_is_away_says_so(console: httpx.AsyncClient) -> None:
    for path in ("/console/dead-letters/3/replay", "/console/agents/a/sessions/s/regenerate"):
        answer = await console.post(path, data={"proof": "p"})
        assert answer.status_code == 503
        assert "the database cannot be read" in answer.text


@pytest.mark.proves("V1")
@pytest.mark.parametrize("number", ["1" * 4_301, "x", "-1", "%C2%B2"])
async def test_a_path_without_a_number_has_no_page(console: httpx.AsyncClient, number: str) -> None:
    for path in (f"/dead-letters/{number}", f"/agents/a/sessions/s/versions/{number}"):
        assert (await console.get(f"/console{path}")).status_code == 404
