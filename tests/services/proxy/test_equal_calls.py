"""Of equal calls at once, the caller takes one answer and leaves the others."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.provider import ProviderReply, chunks
from tests.running_system import eventually
from tests.services.proxy.conftest import HeldSession, ProxyScene
from turnfold_proxy.http import ProxyApp
from turnfold_proxy.lookups import RecallTools
from turnfold_proxy.metrics import ProxyMetrics
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Recorder
from turnfold_proxy.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
ASKED: dict[str, Any] = {"role": "user", "content": "Where is order 7341?"}


def gated(text: str) -> ProviderReply:
    """An answer of which only the beginning comes before its gate is opened."""
    pieces = chunks({"role": "assistant", "content": text}, {"content": " Ghent."})
    return ProviderReply(pieces, "text/event-stream", gate=asyncio.Event())


@pytest.mark.proves("G10", "L1")
@pytest.mark.parametrize("first", ["answered", "left"])
@pytest.mark.parametrize("taken", [0, 1])
async def test_the_answer_that_the_caller_takes_is_recorded_whichever_call_it_leaves(
    scene: ProxyScene, taken: int, first: str
) -> None:
    """Its conversation may end there. A part of the other answer does not replace it."""
    replies = [gated("It left"), gated("It reached")]
    session_id = f"twice {taken} {first}"
    request = {"model": "gpt-4.1", "messages": [ASKED], "stream": True}
    scene.provider.hung_up.clear()

    async with AsyncExitStack() as stack:
        answers: list[httpx.Response] = []
        closings: list[AsyncExitStack] = []
        for reply in replies:
            scene.provider.script.append(reply)
            closings.append(await stack.enter_async_context(AsyncExitStack()))
            call = scene.http.stream(
                "POST", PATH, json=request, headers={"x-turnfold-session": session_id}
            )
            answers.append(await closings[-1].enter_async_context(call))
        streams = [answer.aiter_raw() for answer in answers]
        for stream in streams:
            await anext(stream)

        async def leave() -> None:
            await closings[1 - taken].aclose()
            await asyncio.wait_for(scene.provider.hung_up.wait(), 60)

        async def read() -> None:
            gate = replies[taken].gate
            assert gate is not None
            gate.set()
            async for _ in streams[taken]:
                pass

        for step in (read, leave) if first == "answered" else (leave, read):
            await step()

    whole = "It left Ghent." if taken == 0 else "It reached Ghent."
    expected = [("user", ASKED["content"]), ("assistant", whole)]
    await eventually(lambda: _holds(scene, session_id, expected), told=scene.parts.words)


@pytest.mark.proves("G10", "L1")
async def test_an_answer_that_ends_with_an_error_does_not_replace_a_whole_one(
    scene: ProxyScene,
) -> None:
    """Its status and its first words were sent before, so the error is an event of the stream."""
    whole, named = gated("It left"), {"x-turnfold-session": "failed"}
    begun = chunks({"role": "assistant", "content": "It rea"})[0]
    failed = ProviderReply([begun, b'data: {"error": {"message": "Overloaded"}}\n\n'])
    scene.provider.script.extend([whole, failed])
    request = {"model": "gpt-4.1", "messages": [ASKED], "stream": True}

    async with scene.http.stream("POST", PATH, json=request, headers=named) as answer:
        stream = answer.aiter_raw()
        await anext(stream)
        other = await scene.http.post(PATH, json=request, headers=named)
        part = [("user", ASKED["content"]), ("assistant", "It rea")]
        await eventually(lambda: _holds(scene, "failed", part), told=scene.parts.words)
        assert whole.gate is not None
        whole.gate.set()
        async for _ in stream:
            pass

    assert other.content == b"".join(failed.chunks)
    expected = [("user", ASKED["content"]), ("assistant", "It left Ghent.")]
    await eventually(lambda: _holds(scene, "failed", expected), told=scene.parts.words)


async def _holds(
    scene: ProxyScene, session_id: str, expected: Sequence[tuple[str, object]]
) -> bool | None:
    return await scene.texts(session_id) == expected or None


@pytest.mark.proves("G10", "O4")
async def test_an_answer_that_another_list_has_overtaken_is_not_counted_as_recorded(
    scene: ProxyScene,
) -> None:
    late, named = gated("It left"), {"x-turnfold-session": "overtaken"}
    request = {"model": "gpt-4.1", "messages": [ASKED], "stream": True}
    edited = {"model": "gpt-4.1", "messages": [ASKED | {"content": "Where is 7342?"}]}
    scene.provider.script.append(late)

    async with scene.http.stream("POST", PATH, json=request, headers=named) as answer:
        stream = answer.aiter_raw()
        await anext(stream)
        await scene.http.post(PATH, json=edited, headers=named)
        await eventually(lambda: _holds(scene, "overtaken", EDITED), told=scene.parts.words)
        before = await _unrecorded(scene)
        assert late.gate is not None
        late.gate.set()
        async for _ in stream:
            pass

    assert await _unrecorded(scene) == before + 1
    assert await scene.texts("overtaken") == EDITED


class _HeldSession(HeldSession):
    gate = asyncio.Event()
    has_asked = asyncio.Event()


@pytest.mark.proves("G10", "O4")
async def test_an_answer_is_counted_when_it_is_known_whether_it_is_recorded(
    scene: ProxyScene,
) -> None:
    """A newer call is being recorded when it ends, and its list turns out to be another one."""
    client, metrics, upstream = scene.client, ProxyMetrics(), Upstream(scene.provider.url)
    recorder = Recorder(
        lambda *key: _HeldSession(client, client.session(*key).key),
        client.erasures, Pauses(), wait_seconds=60,
    )  # fmt: skip
    tools = RecallTools(client.session, Pauses(), wait_seconds=60)
    app = ProxyApp(upstream, recorder, metrics, tools, agent_id="held", has_tools=False)
    late, named = gated("It left"), {"x-turnfold-session": "held"}
    assert late.gate is not None
    scene.provider.script.append(late)
    _HeldSession.gate.set()

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://proxy", timeout=60
    ) as http:
        asked = len(scene.provider.requests)
        first = asyncio.ensure_future(http.post(PATH, json={"messages": [ASKED]}, headers=named))
        await eventually(lambda: _is_true(lambda: len(scene.provider.requests) > asked))
        _HeldSession.gate.clear()
        _HeldSession.has_asked.clear()
        edited = {"messages": [ASKED | {"content": "Where is 7342?"}]}
        second = asyncio.ensure_future(http.post(PATH, json=edited, headers=named))
        await _HeldSession.has_asked.wait()
        late.gate.set()
        await first
        _HeldSession.gate.set()
        await second
    await recorder.close()
    await upstream.close()

    counts = [line for line in metrics.text().decode().splitlines() if "answers_total{" in line]
    assert sorted(counts) == [
        'turnfold_proxy_answers_total{ended="recorded"} 1.0',
        'turnfold_proxy_answers_total{ended="unrecorded"} 1.0',
    ]
    assert await scene.texts("held", "held") == EDITED


async def _is_true(condition: Callable[[], bool]) -> bool:
    return condition()


EDITED: list[tuple[str, object]] = [("user", "Where is 7342?"), ("assistant", "It left Ghent.")]


async def _unrecorded(scene: ProxyScene) -> float:
    text = (await scene.http.get("/metrics")).text
    counted = [line for line in text.splitlines() if 'answers_total{ended="unrecorded"}' in line]
    return sum(float(line.rpartition(" ")[2]) for line in counted)
