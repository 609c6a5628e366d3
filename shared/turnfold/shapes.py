"""Convert conversations between chat messages, Responses items and Anthropic messages.

```python
from turnfold import shapes

messages = shapes.chat_from_responses(items)  # of client.responses.create
items = shapes.responses_from_chat(messages)
```

The server converts with the same functions. All are pure: they change no argument.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from turnfold.contracts.elements import chat_fault, item_fault, message_fault
from turnfold.core.recovery.assembler import leading_count
from turnfold.core.shapes import anthropic, responses
from turnfold.core.shapes.blocks import (
    AlternatingTurns,
    answer_blocks,
    content_blocks,
    instruction_blocks,
    result_block,
    unused_id,
)
from turnfold.core.shapes.views import ChatView
from turnfold.core.text.tokens import count_message, text_of, token_upper_bound
from turnfold.errors import BadRequest
from turnfold.messages import SYSTEM_ROLES, Element, Json

__all__ = [
    "anthropic_from_chat",
    "chat_from_anthropic",
    "chat_from_responses",
    "check_responses",
    "divide_responses",
    "responses_from_chat",
]


def check_responses(items: Sequence[object]) -> None:
    """Check that all are items of the Responses API.

    Raises:
        BadRequest: an item is not an object, or a message has no role.
    """
    _require([item_fault(item) for item in items])


def divide_responses(items: Sequence[Json]) -> Iterator[list[Json]]:
    """Yield what belongs together: what the model wrote at one time, and each other item alone."""
    for is_response, run in groupby(items, responses.is_of_model):
        if is_response:
            yield list(run)
        else:
            yield from ([item] for item in run)


def chat_from_responses(items: Sequence[Json]) -> list[dict[str, Any]]:
    """Return items of the Responses API as chat messages.

    A run of reasoning, messages and calls, which the model wrote at one time, becomes one message.
    Reasoning is left out. Items of unknown types become JSON text.

    Raises:
        BadRequest: an item is not an object, or a message has no role.
    """
    check_responses(items)
    views = responses.chat_views(items, [""] * len(items))
    return [_copy(view) for view in views if view.element is not Element.JOINED]


def responses_from_chat(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """Return chat messages as items of the Responses API: a text and each call are items.

    Raises:
        BadRequest: a message has no role of a chat.
    """
    _require([chat_fault(message) for message in messages])
    items: list[dict[str, Any]] = []
    kinds: dict[Any, str] = {}
    for message in messages:
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            kind = kinds.get(call_id) if isinstance(call_id, str) else None
            items.append(responses.output_of(message, kind or responses.FUNCTION))
            continue
        new = responses.items_of(message)
        items += new
        kinds |= {
            item["call_id"]: item["type"] for item in new if isinstance(item.get("call_id"), str)
        }
    return items


def chat_from_anthropic(
    messages: Sequence[Json], system: str | None = None
) -> list[dict[str, Any]]:
    """Return messages of the Anthropic API as chat messages, after the system text if any.

    Each result in a user message becomes a message, and the rest of it a further one. Thinking
    stands in `thinking_blocks`. Blocks of unknown types become JSON text.

    Raises:
        BadRequest: a message has no role, or its content is neither text nor blocks.
    """
    _require([message_fault(message) for message in messages])
    texts = [json.dumps(message) for message in messages]
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *map(_copy, anthropic.chat_views(messages, texts))]


def anthropic_from_chat(
    messages: Sequence[Json],
) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the system text (None without one), and chat messages as Anthropic messages.

    System messages at the beginning are the system text; later ones become text of the user.
    Neighbors of one role become one message, and a user speaks first. Ids and names are fitted to
    the API, ids are unique. Results must follow their calls.

    Raises:
        BadRequest: a message has no role of a chat, or a result follows no call with its id.
    """
    _require([chat_fault(message) for message in messages])
    start = leading_count(messages)
    system = [text_of(message) for message in messages[:start]]
    turns = AlternatingTurns()
    for role, blocks in _turns(messages[start:]):
        turns.add(role, blocks, None)
    texts, _ = turns.finished(is_needed=bool(messages))
    system_text = "\n\n".join(text for text in system if text.strip())
    return system_text or None, [json.loads(text) for text in texts]


def _turns(messages: Sequence[Json]) -> Iterator[tuple[str, list[str]]]:
    ids: dict[str, str] = {}
    used: dict[str, int] = {}
    for message in messages:
        role = message["role"]
        if role in SYSTEM_ROLES:
            yield "user", instruction_blocks(message)
        elif role == "user":
            yield role, content_blocks(message.get("content"), role)
        elif role == "assistant":
            calls = count_message(message, token_upper_bound).calls
            ids = {call.call_id: unused_id(call.call_id, used) for call in calls}
            entries = message.get("tool_calls")
            valid = [entries[call.slot] for call in calls] if entries else []
            yield role, answer_blocks({**message, "tool_calls": valid}, calls, ids)
        elif role == "tool":
            api_id = ids.get(str(message.get("tool_call_id")))
            if api_id is None:
                raise BadRequest("a result must follow the message that called for it")
            content = content_blocks(message.get("content"), role)
            is_error = message.get("is_error") is True
            yield "user", [result_block(api_id, content, is_error=is_error)]


def _copy(view: ChatView) -> dict[str, Any]:
    error = {"is_error": True} if view.is_error else {}
    message: dict[str, Any] = json.loads(json.dumps(view.message))
    return message | error


def _require(faults: Sequence[str | None]) -> None:
    for place, fault in enumerate(faults):
        if fault is not None:
            raise BadRequest(f"element {place}: {fault}")
