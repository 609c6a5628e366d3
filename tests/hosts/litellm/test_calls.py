"""Calls of LiteLLM and its router whose provider is sent windows: always valid."""

import asyncio
from collections.abc import Mapping
from typing import Any

import litellm
import pytest
from litellm.proxy._types import UserAPIKeyAuth
from litellm.router import Router

import turnfold
from tests.hosts.chat import (
    BUDGETS,
    NOWHERE,
    PATIENCE_SECONDS,
    TURNS,
    Message,
    calls,
    faults,
    look,
    says,
    size,
)
from tests.hosts.conftest import RunningSystem, Warned
from tests.hosts.litellm.provider import Provider, running_provider
from turnfold.integrations.litellm import TurnfoldCallback

SYSTEM = {"role": "system", "content": "Be brief."}


def use(url: str, *, tokens: int = 8_000) -> None:
    patience = 1 if url == NOWHERE else PATIENCE_SECONDS
    litellm.callbacks = [
        TurnfoldCallback("litellm", client=url, max_tokens=tokens, patience_seconds=patience)
    ]


async def asked(method: str, provider: Provider, messages: list[Any], session_id: str) -> Any:
    """Send the messages in one of three ways, and return the answer."""
    options: dict[str, Any] = {"model": "openai/scripted", "api_base": provider.url}
    options |= {"api_key": "none"}
    completion: Any = litellm.acompletion
    if method == "router":
        router = Router([{"model_name": "scripted", "litellm_params": options}])
        options = {"model": "scripted"}
        completion = router.acompletion
    response: Any = await completion(
        messages=messages,
        litellm_session_id=session_id,
        stream=method == "stream",
        **options,
    )
    if method == "stream":
        response = litellm.stream_chunk_builder([chunk async for chunk in response])
    return response.choices[0].message


async def turn(
    method: str, provider: Provider, messages: list[Any], text: str, session_id: str
) -> None:
    """Run one turn of a loop that calls tools; the list grows by its messages."""
    messages.append({"role": "user", "content": text})
    while True:
        answer = await asked(method, provider, messages, session_id)
        messages.append(answer)
        if not answer.tool_calls:
            return
        for call in answer.tool_calls:
            place = call.id.rpartition("-")[2]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": look(place)})


async def recorded(system: RunningSystem, session_id: str) -> list[Message]:
    """Return the stored messages of a session."""
    return [stored.message for stored in await system.stored("litellm", session_id)]


@pytest.mark.proves("G6")
@pytest.mark.parametrize("method", ["sdk", "stream", "router"])
async def test_a_loop_with_parallel_calls_is_recorded_and_sent_as_it_is(
    system: RunningSystem, provider: Provider, session_id: str, method: str
) -> None:
    use(system.nats_url)
    provider.script = [calls("one", "hall", "yard"), says("Nothing."), says("In two places.")]
    messages: list[Any] = [SYSTEM]

    await turn(method, provider, messages, "What is missing?", session_id)
    await turn(method, provider, messages, "Where did you look?", session_id)

    sent = provider.asked[-1]
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [message["role"] for message in sent] == roles
    assert sent[0] == SYSTEM
    assert sent[3]["content"] == look("hall")
    stored = await recorded(system, session_id)
    assert [body["role"] for body in stored] == roles[1:]
    assert len(messages) == 8


@pytest.mark.proves("G6")
@pytest.mark.timeout(900)
@pytest.mark.stress
async def test_two_hundred_turns_with_parallel_calls_break_no_pair_at_any_budget(
    system: RunningSystem, session_id: str
) -> None:
    litellm.callbacks = [callback_of(system.nats_url, f"-{budget}", budget) for budget in BUDGETS]

    await asyncio.gather(*(_two_hundred_turns(f"{session_id}-{one}", one) for one in BUDGETS))


def callback_of(url: str, ending: str, tokens: int) -> TurnfoldCallback:
    """Return a callback for the sessions that end so."""

    def session_id(call: Mapping[str, Any]) -> str | None:
        name: str = call["litellm_session_id"]
        return name if name.endswith(ending) else None

    return TurnfoldCallback(
        "litellm",
        session_id=session_id,
        client=url,
        max_tokens=tokens,
        patience_seconds=PATIENCE_SECONDS,
    )


async def _two_hundred_turns(session_id: str, budget: int) -> None:
    messages: list[Any] = [SYSTEM]
    with running_provider() as provider:
        for number in range(TURNS):
            provider.script = [calls(f"t{number}", "hall", "yard"), says(f"Done with {number}.")]
            text = f"Look again, {number}."
            method = "stream" if number % 2 else "sdk"
            await turn(method, provider, messages, text, session_id)
            assert [one.get("content") for one in provider.asked[-1]].count(text) == 1

    assert [fault for sent in provider.asked for fault in faults(sent)] == []
    assert all(sent[0] == SYSTEM for sent in provider.asked)
    assert len(provider.asked) == 2 * TURNS
    assert len(messages) == 5 * TURNS + 1
    assert max(map(size, provider.asked)) <= budget * 1.1


@pytest.mark.proves("G6")
@pytest.mark.parametrize("method", ["sdk", "router"])
async def test_a_call_that_falls_back_to_another_model_records_the_conversation_once(
    system: RunningSystem, provider: Provider, session_id: str, method: str
) -> None:
    use(system.nats_url, tokens=1_500)
    texts = [f"Where is {number}? " + "word " * 200 for number in range(12)]
    metadata: dict[str, Any] = {"session_id": session_id}
    messages: list[Any] = []

    for count in (10, 12):
        messages = [SYSTEM, *({"role": "user", "content": text} for text in texts[:count])]
        await fall_back(method, provider, messages, metadata)

    sent = provider.asked[-1]
    assert len(provider.asked) == 2
    assert sent[0] == SYSTEM
    assert sent[-1] == messages[-1]
    assert size(sent) <= 1_500 * 1.1 < size(messages)
    stored = await system.stored("litellm", session_id, include_retracted=True)
    assert [one.message["content"] for one in stored] == texts
    assert "retracted" not in [one.state for one in stored]


async def fall_back(
    method: str, provider: Provider, messages: list[Any], metadata: dict[str, Any]
) -> None:
    """Send the messages to a model that is not there, and then to one that is."""
    away = {"model": "openai/away", "api_base": "http://127.0.0.1:9", "api_key": "none"}
    there = {"model": "openai/scripted", "api_base": provider.url, "api_key": "none"}
    if method == "sdk":
        await litellm.acompletion(
            **away, messages=messages, metadata=metadata, fallbacks=[there], max_retries=0
        )
    else:
        deployments = [
            {"model_name": options["model"], "litellm_params": options} for options in (away, there)
        ]
        router = Router(deployments, fallbacks=[{away["model"]: [there["model"]]}], num_retries=1)
        await router.acompletion(away["model"], messages, metadata=metadata)


async def test_marks_of_caches_may_move_without_a_change_of_the_session(
    system: RunningSystem, provider: Provider, session_id: str
) -> None:
    use(system.nats_url)
    texts = ("Where is it?", "Sure?", "Really?")
    messages: list[Any] = []
    for count in range(1, 4):
        messages = [
            {"role": "user", "content": [{"type": "text", "text": text}]} for text in texts[:count]
        ]
        messages[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        await asked("sdk", provider, messages, session_id)

    stored = await system.stored("litellm", session_id, include_retracted=True)
    assert [one.state for one in stored] == ["live"] * 3
    assert provider.asked[-1] == messages


@pytest.mark.proves("G6")
async def test_two_keys_of_a_proxy_have_two_sessions_of_one_id(
    system: RunningSystem, session_id: str
) -> None:
    callback = TurnfoldCallback(
        "keys", client=system.nats_url, max_tokens=8_000, patience_seconds=PATIENCE_SECONDS
    )
    sent: list[Any] = []
    for key, text in (("sk-one", "A secret."), ("sk-two", "What did they say?")):
        body = {"messages": [{"role": "user", "content": text}], "litellm_session_id": session_id}
        user = UserAPIKeyAuth(api_key=key)
        sent.append(await callback.async_pre_call_hook(user, None, body, "acompletion"))

    assert [one["messages"][0]["content"] for one in sent] == ["A secret.", "What did they say?"]
    async with turnfold.connect(system.nats_url) as client:
        sessions = [one async for one in client.sessions("keys")]
    assert len(sessions) == 2
    assert all("sk-" not in one and one.endswith(f"/{session_id}") for one in sessions)


@pytest.mark.proves("G6")
async def test_a_document_does_not_count_as_text(
    system: RunningSystem, provider: Provider, session_id: str
) -> None:
    use(system.nats_url)
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x" * 50_000}
    content = [{"type": "text", "text": "What is it?"}, {"type": "document", "source": source}]
    messages: list[Any] = [{"role": "user", "content": content}]

    await asked("sdk", provider, messages, session_id)

    async with turnfold.connect(system.nats_url, environ={}) as client:
        session = client.session("litellm", session_id)
        window = await session.context(max_tokens=8_000, after="latest", wait_ms=5_000)
    assert 1_000 < window.tokens < 2_000


async def test_a_call_without_a_session_is_sent_as_it_came(
    system: RunningSystem, provider: Provider
) -> None:
    use(system.nats_url)
    messages = [SYSTEM, {"role": "user", "content": "Give this a title."}]

    await litellm.acompletion(
        model="openai/scripted", messages=messages, api_base=provider.url, api_key="none"
    )

    assert provider.asked == [messages]


@pytest.mark.parametrize("session_id", ["user-42", "x" * 300])
async def test_without_turnfold_the_provider_gets_all_messages(
    provider: Provider, warned: Warned, session_id: str
) -> None:
    use(NOWHERE)
    messages: list[Any] = [SYSTEM, {"role": "user", "content": "A secret?"}]

    await asked("sdk", provider, messages, session_id)

    assert provider.asked == [messages]
    [warning] = warned()
    assert "the model gets the whole list" in warning
    assert "secret" not in warning
