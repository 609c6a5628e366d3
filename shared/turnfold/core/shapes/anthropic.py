"""Messages of the Anthropic API as chat messages.

Each result in a user message is a chat message of its own, before the rest of that message.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from turnfold.contracts.strict_json import element_texts, member_texts
from turnfold.core.shapes.views import (
    ChatView,
    files_in,
    is_text_part,
    joined_content,
    text_part,
    told,
    unknown_fields,
)
from turnfold.core.text.calls import chat_call
from turnfold.core.text.json_text import compact, json_text
from turnfold.messages import Element

RESULT: Final = "tool_result"
CALL: Final = "tool_use"
THINKING: Final = ("thinking", "redacted_thinking")
PARTS: Final = ("role", "content")

_TEXT_FIELDS: Final = frozenset({"type", "text", "cache_control"})
_CALL_FIELDS: Final = frozenset({"type", "id", "name", "input", "cache_control"})
_RESULT_FIELDS: Final = frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"})
_MEDIA_FIELDS: Final = frozenset({"type", "source", "cache_control"})
_MESSAGE_FIELDS: Final = frozenset(PARTS)


def chat_views(messages: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[ChatView]:
    """Return the chat views of messages, in order; `texts` are the messages verbatim."""
    return [
        view
        for index, (message, text) in enumerate(zip(messages, texts, strict=True))
        for view in _views(message, text, index)
    ]


def _views(message: Mapping[str, Any], text: str, index: int) -> Iterator[ChatView]:
    content, role = message.get("content"), message["role"]
    extra = unknown_fields(message, _MESSAGE_FIELDS)
    if not isinstance(content, list):
        chat = {"role": role, "content": content or ""}
        yield ChatView(chat, text, Element.BLOCKS, index, extra)
        return
    if role == "assistant":
        extra += _unknown(content)
        files = _files(content)
        yield ChatView(chat_answer(content), text, Element.BLOCKS, index, extra, files=files)
        return
    results = [place for place, block in enumerate(content) if is_result(block)]
    if not results or role != "user":
        chat = {"role": role, "content": chat_content(content)}
        extra += _unknown(content)
        yield ChatView(chat, text, Element.BLOCKS, index, extra, files=_files(content))
        return
    yield from _results(message, text, index, results)


def _results(
    message: Mapping[str, Any], text: str, index: int, results: Sequence[int]
) -> Iterator[ChatView]:
    """Yield each result of a user message, and then the rest of the message."""
    content = message["content"]
    in_results = set(results)
    rest = [place for place in range(len(content)) if place not in in_results]
    parts = [[place] for place in results] + ([rest] if rest else [])
    members = member_texts(text)
    blocks = element_texts(members["content"])
    others = [f"{json_text(name)}: {value}" for name, value in members.items() if name not in PARTS]
    for number, places in enumerate(parts):
        # Fields of the message itself stay with its first part.
        head = ['"role": "user"', *(others if number == 0 else ())]
        shown = text
        if len(parts) > 1:
            shown = f'{{{", ".join(head)}, "content": [{", ".join(blocks[p] for p in places)}]}}'
        extra = unknown_fields(message, _MESSAGE_FIELDS) if number == 0 else ""
        part = [content[place] for place in places]
        extra += _unknown(part)
        if places == rest:
            chat: dict[str, Any] = {"role": "user", "content": chat_content(part)}
            yield ChatView(chat, shown, Element.BLOCKS, index, extra, files=_files(part))
            continue
        (block,) = part
        chat = {
            "role": "tool",
            "tool_call_id": block["tool_use_id"],
            "content": chat_content(block.get("content")),
        }
        is_error, files = block.get("is_error") is True, _files(part)
        yield ChatView(chat, shown, Element.BLOCKS, index, extra, is_error=is_error, files=files)


def is_result(block: object) -> bool:
    """Return whether a block is the result of a call."""
    return (
        isinstance(block, Mapping)
        and block.get("type") == RESULT
        and isinstance(block.get("tool_use_id"), str)
    )


def is_call(block: object) -> bool:
    """Return whether a block calls a tool of the client."""
    return isinstance(block, Mapping) and block.get("type") == CALL


def is_thinking(block: object) -> bool:
    """Return whether a block is the model's thinking."""
    return isinstance(block, Mapping) and block.get("type") in THINKING


def chat_answer(content: Sequence[Any]) -> dict[str, Any]:
    """Return the blocks of an assistant as a chat message."""
    said = [block for block in content if not (is_call(block) or is_thinking(block))]
    calls = [
        chat_call(block.get("id"), block.get("name"), compact(block.get("input") or {}))
        for block in content
        if is_call(block)
    ]
    message: dict[str, Any] = {"role": "assistant"}
    message["content"] = chat_content(said) if said else None if calls else ""
    thinking = [block for block in content if is_thinking(block)]
    if thinking:
        message["thinking_blocks"] = thinking
    return message | {"tool_calls": calls} if calls else message


def chat_content(content: object) -> Any:
    """Return the content of a message or of a result as chat content."""
    if not content:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return joined_content([_chat_part(block) for block in parts])


def _chat_part(block: Any) -> dict[str, Any]:
    if is_text_part(block, "text"):
        return text_part(block["text"])
    media = _media(block)
    if media is not None:
        return media
    return text_part(block if isinstance(block, str) else told(block))


def _media(block: object) -> dict[str, Any] | None:
    """Return an image or a document as a chat part; None for sources that a chat does not have."""
    if not isinstance(block, Mapping) or block.get("type") not in ("image", "document"):
        return None
    source = block.get("source")
    if not isinstance(source, Mapping):
        return None
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    elif source.get("type") == "url" and isinstance(source.get("url"), str):
        url = source["url"]
    else:
        return None
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data": url}}


def _unknown(content: Sequence[Any]) -> str:
    """Return the fields of known blocks that a chat does not show, as text."""
    extras = []
    for block in content:
        if is_text_part(block, "text"):
            extras.append(unknown_fields(block, _TEXT_FIELDS))
        elif is_call(block):
            extras.append(unknown_fields(block, _CALL_FIELDS))
        elif is_result(block):
            extras.append(unknown_fields(block, _RESULT_FIELDS))
            inner = block.get("content")
            extras.append(_unknown(inner) if isinstance(inner, list) else "")
        elif _media(block) is not None:
            # Such as the title and the context of a document.
            extras.append(unknown_fields(block, _MEDIA_FIELDS))
    return "".join(extras)


def _files(content: Sequence[Any]) -> int:
    """Return the number of media in blocks that a chat shows as JSON."""
    files = 0
    for block in content:
        if is_result(block):
            inner = block.get("content")
            files += _files(inner if isinstance(inner, list) else [inner])
        elif isinstance(block, Mapping) and not (is_call(block) or is_thinking(block)):
            files += files_in(block) if _media(block) is None else 0
    return files
