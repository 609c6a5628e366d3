"""Two conversations under one session id: neither shows anything of the other."""

import asyncio
from typing import Any

import pytest

from tests.services.proxy.conftest import ProxyScene

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
BYPASSED = "x-turnfold-bypassed"
Json = dict[str, Any]


async def asked(scene: ProxyScene, key: str, name: str, messages: list[Json]) -> None:
    """Send the next question of a conversation, and keep its answer."""
    number = len(messages) // 2
    messages.append({"role": "user", "content": f"Question {number} of {name}: " + "item " * 150})
    body = {"model": "gpt-4.1", "messages": messages, "prompt_cache_key": key}
    answer = await scene.http.post(PATH, json=body, headers={"x-turnfold-budget": "900"})
    assert answer.status_code == 200
    assert BYPASSED not in answer.headers
    messages.append(answer.json()["choices"][0]["message"])


@pytest.mark.proves("G10", "C78", "L1")
@pytest.mark.parametrize("is_at_once", [False, True])
async def test_conversations_of_one_key_never_show_in_each_other(
    scene: ProxyScene, *, is_at_once: bool
) -> None:
    """The key is a session id; each call makes the session equal to its own list first."""
    key = f"shared {is_at_once}"
    lists: dict[str, list[Json]] = {"heron": [], "otter": []}
    before = len(scene.provider.requests)
    for _ in range(8):
        calls = [asked(scene, key, name, messages) for name, messages in lists.items()]
        if is_at_once:
            await asyncio.gather(*calls)
        else:
            for call in calls:
                await call

    sent = [str(one.body["messages"]) for one in scene.provider.requests[before:]]
    assert len(sent) == 16
    assert all(("heron" in one) != ("otter" in one) for one in sent)
    trimmed = [one for one in sent if "Question 7 of" in one and "Question 1 of" not in one]
    assert len(trimmed) == 2
