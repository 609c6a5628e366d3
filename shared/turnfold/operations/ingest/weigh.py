"""Count and classify the messages of an event."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from turnfold.contracts.events import Event
from turnfold.core.history.priority import classify
from turnfold.core.summary.gist import write_gist
from turnfold.core.text.tokens import INSTRUCTION_TOKENS, Count, count_message
from turnfold.messages import ROLES
from turnfold.ports.ingest import DecodedMessage


def weigh_message(
    event: Event,
    index: int,
    calls: dict[str, dict[str, Any]],
    count: Count,
    image_tokens: int,
) -> DecodedMessage:
    """Count the tokens of a message and classify it; `calls` are those of its event by id."""
    body = event.parsed[index]
    measured = count_message(body, count, image_tokens=image_tokens)
    is_instruction = index > 0 and ROLES[body["role"]].is_system
    call_id: object = body.get("tool_call_id") if body["role"] == "tool" else None
    return DecodedMessage(
        body["role"],
        measured.tokens + INSTRUCTION_TOKENS * is_instruction,
        measured.content_tokens,
        measured.reasoning_tokens,
        measured.characters,
        measured.lines,
        int(classify(body, call=calls.get(str(call_id)) if calls else None)),
        event.metas[index],
        measured.is_irregular,
        measured.calls,
        measured.cuts,
        call_id if isinstance(call_id, str) and call_id else None,
        _digest_of_content(body) if body["role"] == "tool" else None,
        event.originals[index],
        event.bodies[index],
        write_gist(body, measured.calls, count),
    )


def calls_of(messages: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the calls of these messages by id, to classify results that follow in one turn."""
    calls_by_id: dict[str, dict[str, Any]] = {}
    for body in messages:
        calls = body.get("tool_calls")
        if isinstance(calls, list):
            calls_by_id.update(
                (str(call.get("id")), call) for call in calls if isinstance(call, dict)
            )
    return calls_by_id


def _digest_of_content(result: dict[str, Any]) -> bytes:
    """Return a digest that is equal for results with the same content."""
    content = result.get("content")
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
