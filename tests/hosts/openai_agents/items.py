"""Items of the Responses API for tests, and what would make the API refuse a list of them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

Item = dict[str, Any]


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def reasoning(name: str) -> Item:
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "encrypted_content": "x" * 40}


def call(name: str) -> Item:
    return {
        "type": "function_call",
        "id": f"fc_{name}",
        "call_id": name,
        "name": "look",
        "arguments": "{}",
    }


def output(name: str) -> Item:
    return {"type": "function_call_output", "call_id": name, "output": f"result {name}"}


def faults(items: Sequence[Item]) -> list[str]:
    """Return broken pairs, and reasoning without the item that it belongs to."""
    found: list[str] = []
    calls = Counter(item["call_id"] for item in items if item.get("type") == "function_call")
    outputs = Counter(
        item["call_id"] for item in items if item.get("type") == "function_call_output"
    )
    found += [f"pair {name}" for name in calls | outputs if calls[name] != 1 or outputs[name] != 1]
    for item, following in zip(items, [*items[1:], {}], strict=True):
        if item.get("type") == "reasoning":
            is_of_model = following.get("type") in ("reasoning", "function_call") or (
                following.get("role") == "assistant"
            )
            found += [] if is_of_model else [f"reasoning {item['id']}"]
    return found
