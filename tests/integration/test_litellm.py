"""The errors of litellm itself, as a real server's answers become them: what is overflow, and what is not."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests import forked_processes as forked
from tests.model_server import running_model_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]

AGENT = """
import asyncio, json, sys
from turnfold.models.call import load_litellm
from turnfold import ContextOverflow, ContextRecovery

litellm = load_litellm()
SETTINGS = dict(model="openai/x", api_base=sys.argv[1], api_key="none-needed", max_retries=0, temperature=0.25, max_tokens=77)

async def talk():
    complete = ContextRecovery(litellm.acompletion, budget_tokens=2_000)
    messages = [{"role": "system", "content": "Be brief."}]
    messages += [{"role": "user", "content": f"{number}: " + "word " * 50} for number in range(20)]
    try:
        response = await complete(messages=messages, **SETTINGS)
    except ContextOverflow as error:
        return {"error": "ContextOverflow", "limit": error.limit_tokens, "messages": len(messages)}
    except Exception as error:
        return {"error": type(error).__name__, "messages": len(messages)}
    messages.append(response.choices[0].message)
    messages.append({"role": "user", "content": "And then?"})
    await complete(messages=messages, **SETTINGS)
    return {"messages": len(messages)}

async def main():
    print(json.dumps([await talk() for _ in range(4)]))

asyncio.run(main())
"""


class Seen(NamedTuple):
    """What became of each conversation, and what the model was sent in all of them."""

    told: list[Json]
    requests: list[Json]


def agent(url: str, told: Path) -> None:
    """Be the agent; its words go to a file."""
    sys.argv = ["-c", url]
    with told.open("w") as out, contextlib.redirect_stdout(out):
        exec(AGENT, {})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seen]:
    """Four conversations of an agent with litellm."""
    async with running_model_server() as model:
        model.script = [
            "overflow",
            "prose",
            "prose",
            "413",
            "prose",
            "prose",
            "overflow",
            "overflow",
            "429",
        ]
        told = tmp_path_factory.mktemp("litellm") / "told"
        assert await forked.ended(forked.begun(agent, model.url, told)) == 0
        yield Seen(json.loads(told.read_text().splitlines()[-1]), model.requests)


@pytest.mark.proves("R1", "C59")
async def test_a_loop_around_litellm_recovers_and_goes_on_with_the_answer_in_its_list(
    seen: Seen,
) -> None:
    for start, told in ((0, seen.told[0]), (3, seen.told[1])):
        first, second, third = (request["messages"] for request in seen.requests[start : start + 3])
        assert len(second) < len(first)
        assert len(third) == told["messages"] == len(second) + 2
        assert [message["role"] for message in third[-2:]] == ["assistant", "user"]
    assert {(request["temperature"], request["max_tokens"]) for request in seen.requests} == {
        (0.25, 77)
    }


@pytest.mark.proves("R1", "R2", "C59")
async def test_the_errors_of_litellm_are_told_apart(seen: Seen) -> None:
    assert seen.told[2:] == [
        {"error": "ContextOverflow", "limit": 8192, "messages": 21},
        {"error": "RateLimitError", "messages": 21},
    ]
    assert len(seen.requests) == 9
