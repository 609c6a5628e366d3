"""A program without the bus reads one session over HTTP, with its agent's token (G7)."""

import asyncio
from pathlib import Path

import pytest

from tests.running_system import client_of, running_system
from turnfold.access.bearers import new_token
from turnfold.client import session_key
from turnfold.client.http import HttpSession
from turnfold.errors import BadRequest, NotAllowed, StartError, Unavailable

SESSIONS = ("user-42", "a/b?c=d#e", "..", "語 %2F")
FACT = {"role": "user", "content": "The lanterns are kept in store 1042."}


@pytest.mark.proves("G7", "X1")
async def test_a_token_reads_the_sessions_of_its_agent(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token, foreign = new_token(tokens, ["support"]), new_token(tokens, ["other"])
    environ = {"TURNFOLD_HTTP_TOKENS": str(tokens)}
    async with running_system(tmp_path / "system", environ=environ) as system:
        async with client_of(system) as client:
            for number, session_id in enumerate(SESSIONS):
                session = client.session("support", session_id)
                await session.turn_completed([FACT], event_id=f"e{number}")
                await session.context(wait_ms=5_000)

        for number, session_id in enumerate(SESSIONS):
            key = session_key("support", session_id)
            reader = HttpSession(system.http_url, key, token=token)
            ids = [f"e{number}#0"]
            window = await reader.context(max_tokens=1_000, after="latest", wait_ms=2_000)
            assert (window.message_ids, window.session_id) == (ids, session_id)
            whole = await reader.context(max_tokens=None, model=None, entries=True, recall=False)
            assert whole.message_ids == ids
            cut = await reader.context(max_tokens=1_000, query="Where are the lanterns \ud83d")
            assert cut.message_ids == ids
            found = await reader.run_tool("search_history", {"query": "lanterns \ud83d"})
            assert "1042" in found
            assert len(await reader.tools(format="anthropic")) == 3
            assert "1042" in await reader.run_tool("read_messages", {"message_ids": ids})
            with pytest.raises(BadRequest, match="no such tool"):
                await reader.run_tool("../../other/tools/read_messages", {"message_ids": ids})

            for wrong in (foreign, "tf_guessed", None):
                refused = HttpSession(system.http_url, key, token=wrong)
                with pytest.raises(NotAllowed):
                    await refused.run_tool("read_messages", {"message_ids": ids})


async def test_without_a_server_the_error_says_what_to_start() -> None:
    key = session_key("support", "user-42")

    with pytest.raises(Unavailable, match="turnfold up"):
        await HttpSession("http://127.0.0.1:9", key, token=None).tools()


@pytest.mark.proves("G7")
@pytest.mark.parametrize("body", [b'{"detail": "Not Found"}', b"[1]", b"5", b'"no"', b"null"])
async def test_an_answer_of_another_server_is_no_crash(body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        host, port = other.sockets[0].getsockname()
        session = HttpSession(f"http://{host}:{port}", session_key("a", "s"), token=None)
        for asked in (session.tools(), session.run_tool("search_history", {}), session.context()):
            with pytest.raises(Unavailable, match="does not follow the contract"):
                await asked


@pytest.mark.proves("G7", "X1")
@pytest.mark.parametrize(
    "address",
    [
        "turnfold.internal:8080",
        "127.0.0.1:8080",
        "//host:8080",
        "ftp://host",
        "http://:80",
        "http://[",
        "http://two names:8080",
        "http://turnfold\n.internal:8080",
    ]
    + [f"http://host:{port}" for port in ("0", "80800", "http")],
)
def test_a_token_goes_to_no_other_server_than_the_one_of_a_url(address: str) -> None:
    with pytest.raises(StartError, match="give its scheme, host and port"):
        HttpSession(address, session_key("support", "user-42"), token="tf_secret")
