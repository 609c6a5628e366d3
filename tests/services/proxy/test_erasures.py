"""The proxy after an erasure: nothing that Turnfold wrote before is sent again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.provider import completion
from tests.running_system import eventually
from tests.services.proxy.conftest import ProxyScene
from turnfold.client import Session
from turnfold.client.erasures import ErasureSignals
from turnfold.contracts.erasures import ErasedSessions
from turnfold_proxy.apis import APIS
from turnfold_proxy.apis.api import ModelAnswer
from turnfold_proxy.erasures import OnErased
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Call, Recorder

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
AGENT = "proxy"
LATER = 3
"""A version that a session does not have when it begins."""
Json = dict[str, Any]


async def sent(scene: ProxyScene, session: str, messages: list[Json]) -> tuple[list[Json], int]:
    """Send a step of a turn that calls a tool: what the provider gets, and the version in it."""
    function = {"name": "track", "arguments": "{}"}
    call = {"id": f"c{len(messages)}", "type": "function", "function": function}
    scene.provider.script.append(completion(None, calls=[call]))
    headers = {"x-turnfold-session": session, "x-turnfold-budget": "1500"}
    body = {"model": "gpt-4.1", "messages": messages}
    answer = await scene.http.post(PATH, json=body, headers=headers)
    messages.append(answer.json()["choices"][0]["message"])
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Ghent, " * 60})
    received: list[Json] = scene.provider.requests[-1].body["messages"]
    return received, int(answer.headers.get("x-turnfold-version", 0))


async def trimmed(scene: ProxyScene, session: Session) -> list[Json]:
    """A conversation of which the last call was sent with a later version of the summary."""
    messages: list[Json] = []
    for number in range(12):
        question = f"Question {number}: " + "item " * 150
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": f"Answer {number}."})
    messages.append({"role": "user", "content": "And where is 7341?"})
    await sent(scene, session.key.session_id, messages)

    async def is_later() -> bool:
        summaries = await session.summaries()
        if summaries and len(summaries) < LATER:
            await session.regenerate()
            return False
        return (await sent(scene, session.key.session_id, messages))[1] >= LATER

    await eventually(is_later)
    return messages


async def _session(session: Session, _: ProxyScene) -> None:
    await session.erase()


async def _prefix(session: Session, scene: ProxyScene) -> None:
    await scene.client.erase_agent(AGENT, prefix=session.key.session_id[:-1])


@pytest.mark.proves("A6", "G10", "L12")
@pytest.mark.parametrize("erase", [_session, _prefix])
async def test_after_an_erasure_no_window_of_before_is_continued(
    scene: ProxyScene, erase: Callable[[Session, ProxyScene], Awaitable[None]]
) -> None:
    """The next step of a tool would have continued the window of the call before."""
    name, beside = f"erased{erase.__name__}", f"beside{erase.__name__}"
    session = scene.client.session(AGENT, name)
    messages = await trimmed(scene, session)
    others = await trimmed(scene, scene.client.session(AGENT, beside))

    await erase(session, scene)
    received, version = await sent(scene, name, messages)

    # The session begins afresh, with what the caller still has.
    assert version < LATER
    assert received[-1] == messages[-3]
    held = await eventually(lambda: _of_length(scene, name, len(messages) - 1))
    assert [role for role, _ in held] == [one["role"] for one in messages[:-1]]
    _, version = await sent(scene, beside, others)
    assert version >= LATER


@pytest.mark.proves("A6", "G10", "L1")
async def test_a_call_that_is_repeated_after_an_erasure_is_sent_as_it_came(
    scene: ProxyScene,
) -> None:
    """Its events are not stored again, so no window holds its messages."""
    session = scene.client.session(AGENT, "repeated")
    messages: list[Json] = [{"role": "user", "content": "Where is 7341?"}]
    await sent(scene, "repeated", list(messages))
    await eventually(lambda: _of_length(scene, "repeated", 2))

    await session.erase()
    received, _ = await sent(scene, "repeated", list(messages))

    assert received == messages


@pytest.mark.proves("A6", "G10")
async def test_an_answer_to_a_call_before_an_erasure_is_not_recorded_after_it(
    scene: ProxyScene,
) -> None:
    gate = asyncio.Event()
    messages: list[Json] = [{"role": "user", "content": "Where is 7341?"}]
    headers = {"x-turnfold-session": "late"}
    body = {"model": "gpt-4.1", "messages": messages}
    reply = completion("It left Ghent.")
    scene.provider.script.append(type(reply)([b" ", *reply.chunks], gate=gate))
    async with scene.http.stream("POST", PATH, json=body, headers=headers) as answer:
        await eventually(lambda: _of_length(scene, "late", 1))
        await scene.client.session(AGENT, "late").erase()
        gate.set()
        await answer.aread()
    await sent(scene, "fence", [{"role": "user", "content": "Is all of it stored?"}])
    await eventually(lambda: _of_length(scene, "fence", 2))

    assert await scene.parts.rows("SELECT 1 FROM messages_view WHERE session_id = 'late'") == []


class _HeldSignals(ErasureSignals):
    """Signals that begin when a gate opens, as while the bus does not answer."""

    def __init__(self, signals: ErasureSignals) -> None:
        self._signals = signals
        self.gate = asyncio.Event()
        self.gate.set()
        self.has_begun = asyncio.Event()

    @property
    def connection(self) -> int | None:
        return self._signals.connection

    async def begin(self) -> None:
        self.has_begun.set()
        await self.gate.wait()
        await self._signals.begin()


@pytest.mark.proves("A6", "G10")
async def test_an_answer_to_a_call_before_an_erasure_is_not_recorded_after_a_newer_call_was_left(
    scene: ProxyScene,
) -> None:
    """The newer call was not recorded, so the session has nothing that shows that it is late."""
    client, has_erased, held = scene.client, asyncio.Event(), list[_HeldSignals]()

    def erasures(agent_id: str, on_erased: OnErased) -> ErasureSignals:
        def on_signal(erased: ErasedSessions) -> None:
            on_erased(erased)
            has_erased.set()

        held.append(_HeldSignals(client.erasures(agent_id, on_signal)))
        return held[0]

    recorder = Recorder(client.session, erasures, Pauses(), wait_seconds=60)
    api, body = APIS[PATH], {"messages": [{"role": "user", "content": "Where is 7341?"}]}
    conversation = api.conversation(body)
    assert conversation is not None
    call = Call(api, AGENT, "left", body, conversation, None)
    prepared = await recorder.prepare(call)
    session = client.session(AGENT, "left")
    await session.erase()
    await has_erased.wait()

    held[0].gate.clear()
    held[0].has_begun.clear()
    newer = asyncio.ensure_future(recorder.prepare(call))
    await held[0].has_begun.wait()
    answer = ModelAnswer([{"role": "assistant", "content": "It left Ghent."}])
    recorder.record(prepared, answer, is_whole=True)
    newer.cancel()
    held[0].gate.set()
    await recorder.close()
    await sent(scene, "left fence", [{"role": "user", "content": "Is all of it stored?"}])
    await eventually(lambda: _of_length(scene, "left fence", 2))

    assert await scene.parts.rows("SELECT 1 FROM messages_view WHERE session_id = 'left'") == []


async def _of_length(
    scene: ProxyScene, session_id: str, length: int
) -> list[tuple[str, object]] | None:
    texts = await scene.texts(session_id)
    return texts if len(texts) == length else None
