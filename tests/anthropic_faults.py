"""Check message lists as Anthropic's API does."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_IDS: Final = re.compile(r"[a-zA-Z0-9_-]+")


def anthropic_faults(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why a list cannot be sent in Anthropic's format, one sentence each; empty if it can.

    Users and assistants alternate, a user first. The next message begins with the results of all
    calls, in call order. Ids are valid and unique. No text is empty.
    """
    faults: list[str] = []
    owed: list[str] = []
    known: set[str] = set()
    for index, message in enumerate(messages):
        role, blocks = message.get("role"), message.get("content")
        if role != ("assistant" if index % 2 else "user"):
            faults.append(f"message {index} has the role {role!r}")
        if not isinstance(blocks, list) or not blocks:
            faults.append(f"message {index} is empty")
            continue
        message_faults = [
            *_result_faults(blocks, owed),
            *(f": {fault}" for block in blocks for fault in _block_faults(block, str(role))),
        ]
        owed = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        message_faults += _id_faults(owed, known)
        faults += [f"message {index}{fault}" for fault in message_faults]
        known |= set(owed)
    return [*faults, f"the results of {owed} are missing at the end"] if owed else faults


def _result_faults(blocks: Sequence[Mapping[str, Any]], owed: list[str]) -> Iterator[str]:
    """Yield what is wrong with the results of a message; `owed` are the calls before it."""
    kinds = [block.get("type") for block in blocks]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    answered = [result.get("tool_use_id") for result in results]
    if answered != owed:
        yield f" answers {answered} instead of {owed}"
    if kinds[: len(results)] != ["tool_result"] * len(results):
        yield " says something before its results"


def _id_faults(call_ids: list[str], known: set[str]) -> Iterator[str]:
    unique = set(call_ids)
    is_repeated = len(unique) < len(call_ids) or known & unique
    if is_repeated or not all(map(_IDS.fullmatch, call_ids)):
        yield f" calls with ids that may not be sent: {call_ids}"


def _block_faults(block: Mapping[str, Any], role: str) -> list[str]:
    faults: list[str] = []
    kind = block.get("type")
    if kind not in _BLOCKS.get(role, ()):
        faults.append(f"{role} holds {kind!r}")
    if kind == "text" and not str(block.get("text")).strip():
        faults.append("a text is empty")
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        faults.append("a call's input is no object")
    if kind == "tool_result":
        inner = block.get("content") or []
        parts = [{"type": "text", "text": inner}] if isinstance(inner, str) else inner
        faults += [fault for part in parts for fault in _block_faults(part, "result")]
        if block.get("is_error") and not inner:
            faults.append("an error says nothing")
    if kind in ("image", "document") and not isinstance(block.get("source"), dict):
        faults.append(f"{kind} comes from nowhere")
    return faults


_BLOCKS: Final[Mapping[str, frozenset[str]]] = {
    "user": frozenset({"text", "image", "document", "tool_result"}),
    "assistant": frozenset({"text", "tool_use", "thinking", "redacted_thinking"}),
    "result": frozenset({"text", "image", "document"}),
}
