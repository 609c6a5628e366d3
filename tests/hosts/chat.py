"""Shared by tests of hosts: long runs, and the reasons for which a provider refuses a list of messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

TURNS = 200
BUDGETS = (4_000, 8_000, 16_000)
NOWHERE = "nats://127.0.0.1:9"
"""Where no server listens."""
PATIENCE_SECONDS = 60
"""Machines that run tests are slow, and no call of these tests may go on without its window."""


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} holds " + ", ".join(f"crate {number}" for number in range(100))


def calls(turn: str, *places: str) -> Message:
    entries = [
        {
            "id": f"{turn}-{place}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps({"place": place})},
        }
        for place in places
    ]
    return {"role": "assistant", "content": None, "tool_calls": entries}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def faults(messages: Sequence[Message]) -> list[str]:
    """Return broken pairs: each call has one result, directly after it."""
    found: list[str] = []
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in open_calls:
                open_calls.remove(message["tool_call_id"])
            else:
                found.append(f"result {message['tool_call_id']}")
            continue
        found += [f"call {call_id}" for call_id in open_calls]
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    found += [f"call {call_id}" for call_id in open_calls]
    return found if any(one["role"] == "user" for one in messages) else [*found, "no request"]


def size(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return a rough number of tokens: a quarter of the characters."""
    return sum(len(json.dumps(message)) for message in messages) // 4


def tree(depth: int = 35) -> dict[str, Any]:
    """Return an element of a page with others inside; 35 of them nest deeper than an event may."""
    return {"tag": "div", "children": [tree(depth - 1)] if depth else []}
