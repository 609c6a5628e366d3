"""Check message lists as providers do: each call answered at once, no answer without a call."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnfold.messages import ROLES


def validation_errors(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why a list cannot be sent, one sentence per reason; empty if it can.

    Each tool call is followed directly by exactly one result per call id, in call order. There are
    no other results.
    """
    faults: list[str] = []
    owed: list[Any] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if owed:
            if role == "tool" and message.get("tool_call_id") == owed[0]:
                owed.pop(0)
                continue
            faults.append(f"message {index} ({role}) stands where the result of {owed[0]} belongs")
            owed = []
        if not isinstance(role, str) or role not in ROLES:
            faults.append(f"message {index} has the role {role!r}")
        elif role == "tool":
            faults.append(
                f"message {index} answers {message.get('tool_call_id')!r}, which nobody called"
            )
        elif role == "assistant":
            calls = message.get("tool_calls") or []
            owed = _ids(calls)
            if not isinstance(calls, list) or len(owed) != len(calls):
                faults.append(f"message {index} has calls that are none")
            if len(set(owed)) != len(owed):
                faults.append(f"message {index} repeats a call id")
    if owed:
        faults.append(f"the result of {owed[0]} is missing at the end")
    return faults


def _ids(calls: object) -> list[str]:
    if not isinstance(calls, list):
        return []
    ids = [call.get("id") for call in calls if isinstance(call, Mapping)]
    return [call_id for call_id in ids if isinstance(call_id, str)]
