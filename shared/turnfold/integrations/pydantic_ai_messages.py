"""Messages of Pydantic AI as chat messages, and back."""

import base64
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from turnfold.integrations import requires
from turnfold.integrations.mirrored import Chat, chat_call, content_of, file_part

with requires("pydantic-ai"):
    from pydantic_ai.messages import (
        BinaryContent,
        FilePart,
        ImageUrl,
        ModelResponse,
        NativeToolCallPart,
        NativeToolReturnPart,
        RetryPromptPart,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )


def chat_of(value: Any) -> Chat | None:
    """Return the chat message of a response or of a part of a request; None for a record.

    Records are about instructions, tools and settings; the framework reads them.
    """
    match value:
        case ModelResponse():
            return _answer(value)
        case SystemPromptPart():
            return {"role": "system", "content": value.content}
        case UserPromptPart():
            return {"role": "user", "content": _content(value.content)}
        case ToolReturnPart() | RetryPromptPart() if value.tool_name is not None:
            return _result(value)
    if value.part_kind == "speech":
        return {"role": "user", "content": _spoken(value)}
    if value.part_kind in ("retry-prompt", "retry-feedback"):
        return {"role": "user", "content": str(value.content), "is_meta": True}
    return None


def _result(part: ToolReturnPart | RetryPromptPart) -> Chat:
    body = {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name}
    if isinstance(part, RetryPromptPart):
        return {**body, "content": part.model_response(), "is_error": True}
    texts = [part.model_response_str(), *part.files]
    error = {"is_error": True} if part.outcome in ("failed", "retried") else {}
    return {**body, "content": _content(texts if part.files else texts[0]), **error}


def _answer(response: ModelResponse) -> Chat:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Chat] = []
    for part in response.parts:
        match part:
            case TextPart():
                texts.append(part.content)
            case ThinkingPart():
                reasoning.append(part.content + (part.signature or ""))
            case ToolCallPart():
                calls.append(chat_call(part.tool_call_id, part.tool_name, part.args_as_json_str()))
            case _:
                texts.append(_named(part))
    files = [part.content for part in response.parts if isinstance(part, FilePart)]
    text = {"type": "text", "text": "\n\n".join(texts)}
    # Files that a model made are sent to it again.
    content = content_of([text, *(file_part(file.media_type) for file in files)])
    body: Chat = {"role": "assistant", "content": content}
    if any(reasoning):
        body["reasoning_content"] = "\n\n".join(reasoning)
    return body | ({"tool_calls": calls} if calls else {})


def _named(part: Any) -> str:
    """Return as text what the provider ran itself, or made; files are named."""
    match part:
        case FilePart():
            return f"[{part.content.media_type} file]"
        case NativeToolCallPart():
            return f"{part.tool_name}: {part.args_as_json_str()}"
        case NativeToolReturnPart():
            files = [f"[{file.media_type} file]" for file in part.files]
            return "\n".join([f"{part.tool_name}: {part.model_response_str()}", *files])
        case _:
            return getattr(part, "content", None) or _spoken(part)


def _spoken(part: Any) -> str:
    """Return the transcript of speech; the kind of a part without one."""
    return getattr(part, "transcript", None) or f"[{part.part_kind}]"


def _content(content: Any) -> Any:
    """Return text, or blocks of texts and images; other files are named, and count as files."""
    if isinstance(content, str):
        return content
    blocks: list[Chat] = []
    for item in content:
        url = None
        if isinstance(item, ImageUrl):
            url = item.url
        elif isinstance(item, BinaryContent) and item.is_image:
            url = f"data:{item.media_type};base64,{base64.b64encode(item.data).decode()}"
        if url is not None:
            blocks.append({"type": "image_url", "image_url": {"url": url}})
        elif isinstance(text := getattr(item, "content", item), str):
            blocks.append({"type": "text", "text": text})
        elif getattr(item, "kind", "") != "cache-point":
            kind = _media_type(item)
            # The text stays if the message is shortened.
            blocks += [{"type": "text", "text": f"[file: {kind}]"}, file_part(kind)]
    return blocks


def _media_type(file: Any) -> str:
    """Return the type of a file; of a URL without an extension it is not known."""
    try:
        return str(file.media_type)
    except (AttributeError, ValueError):
        return "?"


def rebuilt(own: Any, body: Chat) -> Any:
    """Return what a chat message is for Pydantic AI: a response, or a part of a request.

    `own` is what the message was made from, None for a message of Turnfold. Reasoning and ids of
    the provider are left out: they belong to the text as it was.
    """
    content = body.get("content") or ""
    items = [content] if isinstance(content, str) else list(_items(content))
    texts = [item if isinstance(item, str) else "" for item in items]
    if isinstance(own, (SystemPromptPart, ToolReturnPart)):
        return replace(own, content="\n".join(filter(None, texts)))
    match body.get("role"):
        case "assistant":
            return _response(texts, body.get("tool_calls") or ())
        case "tool":
            name = str(body.get("name") or "")
            return ToolReturnPart(name, "\n".join(texts), body["tool_call_id"])
        case "system":
            return SystemPromptPart("\n".join(texts))
        case _:
            return _prompt(items)


def _prompt(items: list[Any]) -> UserPromptPart:
    is_text = len(items) == 1 and isinstance(items[0], str)
    return UserPromptPart(items[0] if is_text else items)


def _response(texts: Iterable[str], calls: Iterable[Chat]) -> ModelResponse:
    parts: list[Any] = [TextPart(text) for text in texts if text]
    for call in calls:
        function = call["function"]
        parts.append(ToolCallPart(function["name"], function["arguments"], call["id"]))
    return ModelResponse(parts=parts)


def _items(blocks: Iterable[Chat]) -> Iterable[Any]:
    for block in blocks:
        url = block.get("image_url", {}).get("url", "")
        if url.startswith("data:"):
            yield BinaryContent.from_data_uri(url)
        elif url:
            yield ImageUrl(url)
        elif "text" in block:
            yield str(block["text"])
