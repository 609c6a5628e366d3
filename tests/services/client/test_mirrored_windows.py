"""Windows of the lists that a host passes: no fault of theirs reaches the host."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services.client.test_mirror import working
from turnfold.client import PortalClient, turn_event
from turnfold.errors import BadRequest
from turnfold.integrations.clients import newest_messages, publish_all
from turnfold.integrations.mirrored import PART_BYTES, MirroredWindows, Shown

USER = {"role": "user", "content": "Where is order 7341?"}
NOWHERE = "nats://127.0.0.1:9"


@asynccontextmanager
async def portal(url: str) -> AsyncGenerator[PortalClient]:
    """Yield a client with a thread of its own, which ends with the test."""
    client = PortalClient(url)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.close)


def failing(error: Exception) -> Callable[..., Any]:
    """Return a function of an adapter that meets a message which it does not expect."""

    def convert(*_: Any) -> Any:
        raise error

    return convert


@pytest.mark.proves("R3", "G8")
@pytest.mark.parametrize(
    "error", [AttributeError("get"), RecursionError("deep"), AssertionError(), KeyError("secret")]
)
async def test_an_error_of_a_conversion_is_a_warning_without_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with working(tmp_path) as (url, _), portal(url) as own:
        windows = MirroredWindows("ada", client=own)
        session = windows.session("s")

        with caplog.at_level(logging.WARNING, "turnfold.integrations"):
            before = await windows.shown(session, failing(error), list)
            after = await windows.shown(session, lambda: [USER], failing(error))
        shown = await windows.shown(session, lambda: [USER], list)

    assert (before, after, shown) == (None, None, [Shown(0, None)])
    warnings = [one.getMessage() for one in caplog.records if one.name == "turnfold.integrations"]
    assert [type(error).__name__ in one for one in warnings] == [True, True]
    assert "secret" not in str(warnings)


@pytest.mark.proves("L5", "G6")
@pytest.mark.parametrize(
    "calls", [[("", "track")], [(None, "track")], [("c1", "track"), ("c1", "find")], [("c1", "")]]
)
async def test_a_list_whose_calls_cannot_be_told_apart_is_sent_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, calls: list[tuple[str | None, str]]
) -> None:
    """A window has no such calls: without their results, the model would call again and again."""
    entries = [{"id": one, "function": {"name": name, "arguments": "{}"}} for one, name in calls]
    answer = {"role": "assistant", "content": None, "tool_calls": entries}
    results = [{"role": "tool", "tool_call_id": one, "content": "Ghent"} for one, _ in calls]
    async with working(tmp_path) as (url, _), portal(url) as own:
        windows = MirroredWindows("ada", client=own)
        session = windows.session("s")

        with caplog.at_level(logging.WARNING, "turnfold.integrations"):
            shown = await windows.shown(session, lambda: [USER, answer, *results], list)
        after = await windows.shown(session, lambda: [USER], list)

    assert (shown, after) == (None, [Shown(0, None)])
    assert "the model gets the whole list; calls have no ids" in caplog.text


@pytest.mark.proves("R3")
async def test_a_wrong_option_of_windows_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: Any = "8000 and a secret"
    with pytest.raises(BadRequest, match="'recal' is not an option"):
        MirroredWindows("ada", client=NOWHERE, window={"recal": False})

    async with working(tmp_path) as (url, _), portal(url) as own:
        windows = MirroredWindows("ada", client=own, max_tokens=wrong)
        with caplog.at_level(logging.WARNING, "turnfold.integrations"):
            assert await windows.shown(windows.session("s"), lambda: [USER], list) is None

    [warning] = [one.getMessage() for one in caplog.records if one.name == "turnfold.integrations"]
    assert "max_tokens: " in warning
    assert "secret" not in warning


@pytest.mark.proves("R3", "L12")
@pytest.mark.parametrize("model", ["m" * 301, "\ud83d", "m\0"])
async def test_a_name_that_no_model_has_stops_neither_its_own_windows_nor_others(
    tmp_path: Path, model: str
) -> None:
    """The caller of a gateway writes it, and options of windows are the same for all sessions."""
    async with working(tmp_path) as (url, _), portal(url) as own:
        windows = MirroredWindows("ada", client=own)
        odd = await windows.shown(windows.session("odd"), lambda: [USER], list, model=model)
        shown = await windows.shown(windows.session("s"), lambda: [USER], list, model="gpt-4.1")

    assert odd == shown == [Shown(0, None)]


@pytest.mark.proves("L1")
async def test_nothing_of_a_list_with_a_message_that_nests_too_deep_is_published(
    tmp_path: Path,
) -> None:
    deep: Any = []
    for _ in range(70):
        deep = [deep]
    async with working(tmp_path) as (url, client), portal(url) as own:
        windows = MirroredWindows("ada", client=own)
        session = client.session("ada", "s")
        events = [
            turn_event(session.key, [USER], event_id="first"),
            turn_event(session.key, [USER], event_id="deep", carry=[deep]),
        ]

        with pytest.raises(BadRequest, match="too_deep"):
            await publish_all(session, events)
        assert not await session.exists()
        await publish_all(session, events[:1])
        await newest_messages(session, 1, wait_ms=5_000)

        assert await windows.missing(["first", "deep"]) == {"deep"}


@pytest.mark.proves("R3")
async def test_a_loop_that_something_else_blocks_gets_its_window_all_the_same(
    tmp_path: Path,
) -> None:
    """LiteLLM imports modules for seconds after its first call, and tools may block as well."""
    async with working(tmp_path) as (url, _), portal(url) as own:
        windows = MirroredWindows("ada", client=own, patience_seconds=2)
        await windows.shown(windows.session("warm"), lambda: [USER], list)

        asked = asyncio.create_task(windows.shown(windows.session("s"), lambda: [USER], list))
        await asyncio.sleep(0)
        time.sleep(3)  # noqa: ASYNC251  # as something else does

        assert await asked == [Shown(0, None)]


@pytest.mark.proves("R3")
async def test_no_error_of_a_client_that_cannot_begin_reaches_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python starts no thread at the end of a program, and the system allows a number of them."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with working(tmp_path) as (url, _), portal(url) as own:
        windows = MirroredWindows("ada", client=own)
        session = windows.session("s")

        async with asyncio.timeout(60):
            with monkeypatch.context() as starts:
                starts.setattr(threading.Thread, "start", refuse)
                refused = await windows.shown(session, lambda: [USER], list)
            shown = await windows.shown(session, lambda: [USER], list)

    assert (refused, shown) == (None, [Shown(0, None)])
    assert "can't start new thread" in caplog.text


@pytest.mark.proves("X2")
@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 257, 10_000])
def test_the_part_of_an_id_that_names_a_sub_agent_may_have_any_length(size: int) -> None:
    windows = MirroredWindows("ada", client=NOWHERE)

    ids = {windows.session("t" * 256, "x" * size + end).key.session_id for end in "ab"}

    assert len(ids) == 2
