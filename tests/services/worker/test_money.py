"""Agents cannot choose models, hosts or limits that the operator does not allow."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import turnfold
from tests.model_server import ModelServer, running_model_server
from tests.running_system import System, eventually, rows, running_system
from turnfold.errors import RequestError

KEY = "sk-operator-0123456789"
EVICTING = {
    "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "6",
    "TURNFOLD_POLICY__KEEP_MESSAGES": "2",
    "TURNFOLD_POLICY__KEEP_TOKENS": "0",
    "TURNFOLD_POLICY__MIN_GAIN_TOKENS": "1",
    "TURNFOLD_POLICY__MIN_GAIN_MESSAGES": "1",
}


@asynccontextmanager
async def attacked(
    data_dir: Path, **environ: str
) -> AsyncGenerator[tuple[System, ModelServer, turnfold.Client]]:
    """A system in which a listener stands at the address that litellm takes for ollama, and at the operator's own."""
    async with running_model_server() as listener:
        made = (
            EVICTING
            | {
                "OLLAMA_API_BASE": listener.url,
                "HOSTED_VLLM_API_BASE": listener.url,
                "TURNFOLD_SUMMARY_API_KEY": KEY,
            }
            | environ
        )
        async with (
            running_system(data_dir, environ=made) as system,
            turnfold.connect(system.nats_url, environ={}) as client,
        ):
            yield system, listener, client


async def speak(session: Any, *, model: str | None) -> None:
    """Publish so much that the first messages leave."""
    for number in range(8):
        said = f"The invoice {number} of ACME is 4711, and nobody else may read it. " * 5
        messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "Noted."}]
        await session.turn_completed(messages, model=model)


async def kinds(system: System, number: int) -> list[tuple[str, str | None]]:
    """Wait for so many versions; kind and model of each."""

    async def written() -> bool:
        return len(rows(system.database, "SELECT 1 FROM summaries")) >= number

    await eventually(written, seconds=60)
    return [
        tuple(row)
        for row in rows(system.database, "SELECT kind, model FROM summaries ORDER BY sid, version")
    ]


@pytest.mark.proves("X7", "C71")
async def test_an_event_whose_model_names_a_provider_of_the_agents_choice_calls_nobody(
    tmp_path: Path,
) -> None:
    """X7, C71: with the session's model and no list of allowed models, summaries are extractive."""
    async with attacked(tmp_path / "data", TURNFOLD_SUMMARY_MODEL="session") as (
        system,
        listener,
        client,
    ):
        await speak(client.session("ada", "s-1"), model="ollama/any")
        found = await kinds(system, 1)
        words = system.words()

    assert listener.requests == []
    assert {kind for kind, _ in found} == {"extractive"}
    assert "TURNFOLD_SUMMARY_MODELS" in words


@pytest.mark.proves("X7", "C71")
async def test_only_listed_models_are_called_and_the_key_goes_to_its_own_provider_alone(
    tmp_path: Path,
) -> None:
    """X7, C71: two providers are allowed; the key of one is not sent to the other."""
    async with running_model_server() as own:
        environ = {
            "TURNFOLD_SUMMARY_MODEL": "openai/usual",
            "TURNFOLD_SUMMARY_API_BASE": own.url,
            "TURNFOLD_SUMMARY_MODELS": "openai/other-*,hosted_vllm/allowed",
        }
        async with attacked(tmp_path / "data", **environ) as (_, listener, client):
            for model in (
                "ollama/any",
                "hosted_vllm/any",
                "openai/unlisted",
                "openai/other-//host",
            ):
                with pytest.raises(RequestError, match="TURNFOLD_SUMMARY_MODELS"):
                    await client.session("ada", "s-1").policy(overrides={"summary_model": model})
            await client.session("ada", "s-1").policy(
                overrides={"summary_model": "hosted_vllm/allowed"}
            )
            await client.session("ada", "s-2").policy(
                overrides={"summary_model": "openai/other-one"}
            )
            await client.session("ada", "s-3").policy(overrides={"summary_model": "session"})
            await speak(client.session("ada", "s-1"), model=None)
            await speak(client.session("ada", "s-2"), model=None)
            await speak(client.session("ada", "s-3"), model="ollama/any")

            async def called() -> bool:
                return {request["model"] for request in own.requests} >= {
                    "usual",
                    "other-one",
                } and bool(listener.requests)

            await eventually(called, seconds=60)

    assert {request["model"] for request in own.requests} == {"usual", "other-one"}
    assert {request["model"] for request in listener.requests} == {"allowed"}
    assert {head.partition("authorization: ")[2].partition("\r\n")[0] for head in own.heads} == {
        f"bearer {KEY}"
    }
    assert KEY not in "".join(listener.heads) + json.dumps(listener.requests)


@pytest.mark.proves("X7", "C71")
async def test_every_request_that_names_a_model_is_refused(tmp_path: Path) -> None:
    """X7, C71: regenerations and campaigns, of one session, an agent or all."""
    async with attacked(tmp_path / "data", TURNFOLD_SUMMARY_MODEL="session") as (
        system,
        listener,
        client,
    ):
        await speak(client.session("ada", "s-1"), model="ollama/any")
        await kinds(system, 1)
        for subject in (
            "summary.regenerate.ada.s-1",
            "agent.regenerate.ada",
            "installation.regenerate",
        ):
            with pytest.raises(RequestError, match="TURNFOLD_SUMMARY_MODELS"):
                await client.ask(subject, {"model": "ollama/any"})
        # The word stands for the model of the session's event, which is checked before the call.
        await client.ask("summary.regenerate.ada.s-1", {"model": "session"})
        found = await kinds(system, 2)

    assert {kind for kind, _ in found} == {"extractive"}
    assert listener.requests == []


@pytest.mark.proves("X7", "C71")
async def test_no_policy_of_an_agent_lifts_a_ceiling(tmp_path: Path) -> None:
    """X7, C71: a number above the ceiling is refused, and 0 for no limit as well; the day's tokens are spent once."""
    limits = {"SUMMARY_TOKENS_PER_DAY": "300", "RETAIN_DAYS": "30", "SUMMARY_MAX_TOKENS": "500"}
    async with running_model_server() as own:
        environ = {"TURNFOLD_SUMMARY_MODEL": "openai/usual", "TURNFOLD_SUMMARY_API_BASE": own.url}
        environ |= {f"TURNFOLD_LIMIT__{name}": value for name, value in limits.items()}
        async with attacked(tmp_path / "data", **environ) as (system, _, client):
            session = client.session("ada", "s-1")
            for name, value in limits.items():
                for above in (
                    int(value) + 1,
                    str(int(value) + 1),
                    2**53,
                    *([0] if name != "SUMMARY_MAX_TOKENS" else []),
                ):
                    with pytest.raises(RequestError, match=f"TURNFOLD_LIMIT__{name}"):
                        await session.policy(overrides={name.lower(): above})
                await session.policy(overrides={name.lower(): int(value)})
            await speak(session, model=None)
            await kinds(system, 1)
            await speak(client.session("ada", "s-2"), model=None)
            found = await kinds(system, 2)
            (spent,) = rows(system.database, "SELECT tokens FROM summary_token_usage")

    assert len(own.requests) == 1
    assert own.requests[0]["max_tokens"] <= 2 * 500 + 512
    assert "extractive" in {kind for kind, _ in found}
    assert spent[0] >= 300
