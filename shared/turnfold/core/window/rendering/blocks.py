"""Render messages that were stored in the shape of the Anthropic API, block by block.

Blocks are copied byte for byte, unless the window shortens them.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from turnfold.contracts.strict_json import element_texts, member_texts
from turnfold.core.shapes.anthropic import chat_views, is_call, is_result, is_thinking
from turnfold.core.shapes.blocks import text_block
from turnfold.core.shapes.views import told
from turnfold.core.text.json_text import json_text
from turnfold.core.window.forms import WHOLE
from turnfold.core.window.rendering.render import calls_by_slot, chat_texts, entry_body, ids_of
from turnfold.core.window.views import BlockContent, RenderedTexts, ShownMessage
from turnfold.messages import Message, Shape

_RAN: Final = '_tool_use"'
_RESULT: Final = '_tool_result"'
"""How the types end of calls that the provider runs, and of their results."""


def is_blocks(message: Message) -> bool:
    """Return whether a message was stored as blocks."""
    return message.element.shape is Shape.ANTHROPIC


def blocks_of_part(part: BlockContent, bodies: Mapping[int, str]) -> RenderedTexts:
    """Return the messages of a block: chat messages, or the stored message with its blocks.

    `bodies` holds the elements of messages that were stored as blocks, and chat messages otherwise.
    """
    if not any(isinstance(entry, ShownMessage) and entry.message.element for entry in part.entries):
        return chat_texts(part, bodies)
    texts = []
    for entry in part.entries:
        if isinstance(entry, ShownMessage) and is_blocks(entry.message):
            texts.append(_in_form(entry, bodies[entry.message.position]))
        else:
            texts += chat_texts(BlockContent((entry,), 0, 0), bodies).messages
    return RenderedTexts(tuple(texts), tuple([ids_of(entry) for entry in part.entries]))


def sendable_blocks(text: str, api_ids: Mapping[str, str]) -> list[str]:
    """Return the blocks of a message as texts, with the ids that calls have in this window.

    Text without any letter is left out: the API rejects it.
    """
    content = json.loads(text).get("content")
    if not isinstance(content, list):
        return [json_text({"type": "text", "text": content})] if (content or "").strip() else []
    texts = element_texts(member_texts(text)["content"])
    shown = []
    for block, block_text in zip(content, texts, strict=True):
        if is_call(block) or is_result(block):
            shown += _with_api_id(block, block_text, api_ids)
        elif not isinstance(block, Mapping):
            shown += map(json_text, _as_block(block))
        elif not _is_blank(block):
            shown.append(block_text)
    return shown


def paired_blocks(messages: tuple[str, ...]) -> tuple[str, ...]:
    """Return messages in which calls that the provider ran have results, and results their calls.

    A window may show one of the two alone, if they came in different messages: it becomes text.
    Calls of the newest turn may still run.
    """
    if not any(_RAN in text or _RESULT in text for text in messages):
        return messages
    bodies = [json.loads(text) for text in messages]
    alone = _alone(bodies)
    shown = list(messages)
    for place in {place for place, _ in alone}:
        blocks = element_texts(member_texts(messages[place])["content"])
        pairs = zip(bodies[place]["content"], blocks, strict=True)
        texts = [
            text_block(told(block)) if (place, number) in alone else text
            for number, (block, text) in enumerate(pairs)
        ]
        shown[place] = f'{{"role":"{bodies[place]["role"]}","content":[{",".join(texts)}]}}'
    return tuple(shown)


def _alone(messages: Sequence[Mapping[str, Any]]) -> set[tuple[int, int]]:
    """Return the places of calls without a result, and of results without a call before."""
    calls: dict[str, tuple[int, int]] = {}
    alone: set[tuple[int, int]] = set()
    for place, message in enumerate(messages):
        if message["role"] == "user" and not is_result(message["content"][0]):
            # Calls of a turn that has ended run no longer.
            alone |= set(calls.values())
            calls = {}
        for number, block in enumerate(message["content"]):
            # Ids may be any JSON.
            kind, call_id = f'{block.get("type")}"', str(block.get("tool_use_id"))
            if kind.endswith(_RAN):
                calls[str(block.get("id"))] = place, number
            elif kind.endswith(_RESULT) and calls.pop(call_id, None) is None:
                alone.add((place, number))
    return alone


def _with_api_id(block: Mapping[str, Any], text: str, api_ids: Mapping[str, str]) -> list[str]:
    """Return a call or a result with its id in this window; nothing if it has none there."""
    name = "id" if is_call(block) else "tool_use_id"
    api_id = api_ids.get(str(block.get(name)))
    if api_id is None:
        return []
    sendable = _with_objects(block)
    is_same = sendable is block and api_id == block[name]
    return [text if is_same else json_text({**sendable, name: api_id})]


def _with_objects(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call or a result whose content is a text, or a list of objects."""
    content = "" if block.get("content") is None else block["content"]
    parts = content if isinstance(content, list) else [content]
    sendable = list(chain.from_iterable(map(_as_block, parts)))
    if not sendable and (content or block.get("is_error")):
        # The API rejects an error without content.
        return {name: block[name] for name in block if name not in ("content", "is_error")}
    is_same = isinstance(content, str) or sendable == content
    return block if is_same else {**block, "content": sendable}


def _as_block(value: Any) -> list[Mapping[str, Any]]:
    """Return a value as a block, if it is not blank.

    The API takes only objects with a type, and everywhere else another value is read as text.
    """
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return [] if _is_blank(value) else [value]
    text = value if isinstance(value, str) else json_text(value)
    return [{"type": "text", "text": text}] if text.strip() else []


def _is_blank(block: Mapping[str, Any]) -> bool:
    text = block.get("text")
    return block.get("type") == "text" and isinstance(text, str) and not text.strip()


def _in_form(entry: ShownMessage, text: str) -> str:
    """Return a stored message in the form that a window gives it."""
    if entry.form is WHOLE:
        return text
    message = json.loads(text)
    chat = entry_body(entry, _chat_of(message))
    content = message.get("content")
    if entry.call is not None:
        # Ingest stores each result of a message apart, so there is exactly one.
        (result,) = [block for block in content if is_result(block)]
        return json_text({**message, "content": [result | {"content": chat["content"]}]})
    if not isinstance(content, list):
        return json_text({**message, "content": chat["content"]})
    return json_text({**message, "content": _shortened(entry, content, chat)})


def _chat_of(message: Mapping[str, Any]) -> dict[str, Any]:
    return chat_views([message], [json_text(message)])[0].message


def _shortened(entry: ShownMessage, content: list[Any], chat: Mapping[str, Any]) -> list[Any]:
    """Return blocks with the text and the arguments of their chat view."""
    form = entry.form
    entries = calls_by_slot(entry, chat)
    caps = form.arguments or {}
    shown: list[Any] = []
    slot, is_cut = -1, False
    for block in content:
        if is_call(block):
            slot += 1
            if slot in caps and slot in entries:
                arguments = json.loads(entries[slot]["function"]["arguments"])
                shown.append(block | {"input": arguments})
            elif slot in entries:
                shown.append(block)
        elif is_thinking(block):
            shown += [] if form.without_reasoning else [block]
        elif form.cut is None:
            shown.append(block)
        elif not is_cut:
            is_cut = True
            shown.append({"type": "text", "text": chat["content"]})
    return shown
