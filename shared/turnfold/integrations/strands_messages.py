"""Messages of Strands as chat messages, and back."""

# pyright takes `strands` for this file.

import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from turnfold.client.merge import is_same_text
from turnfold.integrations import requires
from turnfold.integrations.mirrored import Chat, call_arguments, chat_call, content_of, content_text

with requires("strands"):
    from strands.types.session import encode_bytes_values

_MADE = "turnfold"
"""The mark of messages that Turnfold wrote or shortened: they are not published."""
_FRAMES = ("# Conversation Summary\n", "# Earlier messages")
"""How the summary, the digests and the recall block of a window begin."""
_DIRECT_CALL = re.compile(r"agent\.tool\.\S+ direct tool call\.\nInput parameters: ")

Message = dict[str, Any]


def is_message(carried: object) -> bool:
    """Return whether a value is a message of Strands."""
    return isinstance(carried, dict) and {"role", "content"} <= set(carried)


def is_made(message: Message) -> bool:
    """Return whether Turnfold wrote or shortened a message."""
    return bool(((message.get("metadata") or {}).get("custom") or {}).get(_MADE))


def marked(message: Message) -> dict[str, Any]:
    """Return the metadata of a message that Turnfold wrote or shortened."""
    metadata = message.get("metadata") or {}
    return {**metadata, "custom": {**(metadata.get("custom") or {}), _MADE: True}}


def unmarked(message: Message) -> Message:
    """Return a message without Turnfold's mark."""
    metadata = message.get("metadata") or {}
    custom = {name: mark for name, mark in (metadata.get("custom") or {}).items() if name != _MADE}
    return {**message, "metadata": {**metadata, "custom": custom}}


def begins_window(message: Message) -> bool:
    """Return whether a message, also one that lost its mark, is the beginning of a window."""
    text = message["content"][0].get("text", "") if message["content"] else ""
    return is_made(message) or str(text).startswith(_FRAMES)


def is_direct_call(message: Message) -> bool:
    """Return whether Strands wrote a message as the user, because the program called a tool."""
    return any(map(_DIRECT_CALL.match, (str(block.get("text")) for block in message["content"])))


def block_texts(message: Message) -> list[str]:
    """Return the blocks of a message as texts to compare, without the points of caches."""
    content = encode_bytes_values(without_cache_points(message)["content"])
    return [json.dumps(block, sort_keys=True) for block in content]


def texts_of(parts: Sequence[Message]) -> list[str]:
    """Return the blocks of the parts of a message as texts to compare."""
    return [text for part in parts for text in block_texts(part)]


def without_cache_points(message: Message) -> Message:
    """Return a message without the points of caches, which hosts move from call to call."""
    content = [block for block in message["content"] if "cachePoint" not in block]
    return {**message, "content": content}


def parts_of(message: Message) -> list[Message]:
    """Return a message in parts that are chat messages: each result of a tool is one."""
    encoded = encode_bytes_values(message)
    others = [block for block in encoded["content"] if "toolResult" not in block]
    parts = [[block] for block in encoded["content"] if "toolResult" in block]
    parts += [others] if others or not parts else []
    return [{**encoded, "content": blocks} for blocks in parts]


def chat_of(part: Message) -> Chat:
    """Return a part of a message as a chat message."""
    role, blocks = str(part["role"]), part["content"]
    if blocks and "toolResult" in blocks[0]:
        return _result(blocks[0]["toolResult"])
    content = [chat for block in blocks if (chat := _part(block)) is not None]
    calls = [_call(block["toolUse"]) for block in blocks if "toolUse" in block]
    # Reasoning counts as text.
    others = [other for block in blocks if (other := _without_text(block))]
    body = {"role": role, "content": content_of(content)}
    return body | ({"tool_calls": calls} if calls else {}) | ({"blocks": others} if others else {})


def _result(result: Mapping[str, Any]) -> Chat:
    parts = [
        _part(part) or {"type": "text", "text": json.dumps(part)} for part in result["content"]
    ]
    if all(part["type"] == "text" for part in parts):
        parts = [{"type": "text", "text": "\n".join(part["text"] for part in parts)}]
    body = {"role": "tool", "tool_call_id": result["toolUseId"], "content": content_of(parts)}
    return body | ({"is_error": True} if result.get("status") == "error" else {})


def _part(block: Mapping[str, Any]) -> Chat | None:
    """Return a text or a file as a part of a content; None for other blocks."""
    if "text" in block:
        return {"type": "text", "text": block["text"]}
    if text := _text_within(block):
        return {"type": "text", "text": text}
    for name, kind in _FILES.items():
        if name in block:
            # Without its bytes, which the event carries: a file counts as one, not as text.
            file = block[name]
            named = {"filename": file["name"]} if "name" in file else {}
            return {"type": kind, "format": file.get("format"), **named}
    return None


def _text_within(block: Mapping[str, Any]) -> str:
    """Return a text with citations, or one that a guardrail looks at."""
    cited = (block.get("citationsContent") or {}).get("content") or ()
    guarded = (block.get("guardContent") or {}).get("text") or {}
    return "".join(str(part["text"]) for part in (*cited, guarded) if part.get("text"))


def _without_text(block: Mapping[str, Any]) -> Chat | None:
    """Return what a chat message has no other place for; None if there is nothing."""
    if "citationsContent" in block:
        citations = block["citationsContent"].get("citations")
        return {"citations": citations} if citations else None
    return None if _CHAT_BLOCKS & set(block) else dict(block)


_FILES = {"image": "image", "document": "file", "video": "video", "audio": "audio"}
"""Blocks of Strands, and parts of a chat message."""
_CHAT_BLOCKS = {"text", "toolUse", "cachePoint", "guardContent", *_FILES}


def _call(use: Mapping[str, Any]) -> Chat:
    return chat_call(use["toolUseId"], use["name"], json.dumps(use["input"]))


def rebuilt(body: Chat) -> Message:
    """Return a message that Turnfold wrote or shortened."""
    text = content_text(body.get("content"))
    blocks: list[Chat] = []
    if body["role"] == "tool":
        status = "error" if body.get("is_error") else "success"
        result = {"toolUseId": body["tool_call_id"], "status": status, "content": [{"text": text}]}
        blocks.append({"toolResult": result})
    elif text:
        blocks.append({"text": text})
    for call in body.get("tool_calls") or ():
        function = call["function"]
        use = {"toolUseId": call["id"], "name": function["name"]}
        blocks.append({"toolUse": {**use, "input": call_arguments(function["arguments"])}})
    role = "assistant" if body["role"] == "assistant" else "user"
    return {"role": role, "content": blocks or [{"text": "(empty)"}], "metadata": marked({})}


def recognized(parts: Sequence[Message]) -> str:
    """Return by what a message without its id is recognized: its calls and results, or its texts.

    A window may have shortened a message, and have put texts of its own before it.
    """
    blocks = [block for part in parts for block in without_cache_points(part)["content"]]
    calls = [f"call {block['toolUse']['toolUseId']}" for block in blocks if "toolUse" in block]
    results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
    texts = [
        str(block["text"]) if "text" in block else json.dumps(block, sort_keys=True)
        for block in blocks
        if not ("reasoningContent" in block or str(block.get("text", "")).startswith(_FRAMES))
    ]
    return "\n".join(sorted([*calls, *results]) or texts)


def is_left_out(parts: Sequence[Message], shown: Sequence[str]) -> bool:
    """Return whether a message is a call or a result that a window has left out."""
    kinds = {kind for part in parts for block in part["content"] for kind in block}
    return bool({"toolUse", "toolResult"} & kinds) and recognized(parts) not in shown


def longest_row(
    ours: Sequence[str], theirs: Sequence[str], firsts: int, *, is_cut: bool
) -> tuple[int, int, int]:
    """Return the size of the longest row in both lists, and where it begins in `theirs` and `ours`.

    It begins at one of the `firsts` of `ours`, or where `theirs` begins if that `is_cut`: the first
    message of `theirs` may then lack its beginning.
    """
    best = (0, 0, 0)
    for at in range(len(theirs)):
        for place in range(len(ours) if is_cut and at < 2 else firsts):
            # This row is the end of one that begins earlier in both lists, and is longer.
            if place and at and is_same_text(ours[place - 1], theirs[at - 1]):
                continue
            pairs = zip(ours[place:], theirs[at:], strict=False)
            if size := sum(1 for _ in takewhile(lambda pair: is_same_text(*pair), pairs)):
                best = max(best, (size, at, place))
    return best


class HeldMessage(NamedTuple):
    """A message of the agent: its blocks when it was published or shown, and what is stored of it.

    `stored` has the ids and the originals of stored messages; `is_lost` says that they are not.
    """

    texts: list[str]
    stored: list[tuple[str, Message]]
    is_lost: bool = False

    @property
    def event_ids(self) -> set[str]:
        """The events that hold the message."""
        return {message_id.rpartition("#")[0] for message_id, _ in self.stored}


def is_changed(old: HeldMessage | None, texts: list[str]) -> bool:
    """Return whether a stored message is not stored as it is now."""
    return old is not None and bool(old.stored) and (old.is_lost or old.texts != texts)


def published_parts(message: Message, old: HeldMessage | None) -> list[Message]:
    """Return what is published of a message; nothing for one that Turnfold wrote."""
    if old is None:
        return [] if is_made(message) else parts_of(message)
    if is_changed(old._replace(is_lost=False), block_texts(message)):
        return _changed_parts(message, old)
    return [original for _, original in old.stored]


def _changed_parts(message: Message, old: HeldMessage) -> list[Message]:
    """Return the parts of a changed message, without the texts that Turnfold had put into it."""
    if not is_made(message):
        return parts_of(message)
    message = unmarked(without_cache_points(message))
    content, texts = message["content"], block_texts(message)
    originals = [original for _, original in old.stored]
    if texts[: len(old.texts)] == old.texts:
        return [*originals, *parts_of({**message, "content": content[len(old.texts) :]})]
    made = set(old.texts).difference(*map(block_texts, originals))
    own = [
        block
        for block, text in zip(content, texts, strict=True)
        if "text" not in block or text not in made
    ]
    return parts_of({**message, "content": own}) if own else []
