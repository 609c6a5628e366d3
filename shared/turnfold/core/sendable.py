"""What every provider asks of a list of messages: each call answered at once, and nothing answered that was not called."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})


def faults(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why this list may not be sent, a sentence each; empty when it may.

    Each tool call is followed directly by exactly one result per call id, in call order, and no result stands elsewhere.
    """
    found: list[str] = []
    owed: list[Any] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if owed:
            if role == "tool" and message.get("tool_call_id") == owed[0]:
                owed.pop(0)
                continue
            found.append(f"message {index} ({role}) stands where the result of {owed[0]} belongs")
            owed = []
        if role not in ROLES:
            found.append(f"message {index} has the role {role!r}")
        elif role == "tool":
            found.append(f"message {index} answers {message.get('tool_call_id')!r}, which nobody called")
        elif role == "assistant":
            owed = [call.get("id") for call in message.get("tool_calls") or ()]
            if len(set(owed)) != len(owed):
                found.append(f"message {index} repeats a call id")
    if owed:
        found.append(f"the result of {owed[0]} is missing at the end")
    return found
