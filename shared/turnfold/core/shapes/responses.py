"""Items of the Responses API as chat messages, and back.

A response is a run of items that the model wrote: reasoning, messages, calls, and items of types
that are unknown here. In a chat it is one message of the assistant, without the reasoning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from turnfold.core.shapes.views import (
    NOTHING_SAID,
    ChatView,
    files_in,
    is_text_part,
    joined_content,
    text_part,
    told,
    unknown_fields,
)
from turnfold.core.text.calls import call_entries, chat_call
from turnfold.core.text.json_text import compact
from turnfold.core.text.tokens import is_media, text_of, transcript_of
from turnfold.messages import Element

REASONING: Final = "reasoning"
MESSAGE: Final = "message"
FUNCTION: Final = "function_call"
CUSTOM: Final = "custom_tool_call"
IMAGE: Final = "image_generation_call"
_LOCAL_SHELL_OUTPUT: Final = "local_shell_call_output"
OUTPUT: Final = "_output"
CALL: Final = "_call"
_FROM_CLIENT: Final = (OUTPUT, "_response", "_reference")
"""The endings of the types of items that are not part of a response."""

_SAID: Final = ("text", "output_text")
_TEXTS: Final = (*_SAID, "input_text")
_IMAGES: Final = ("input_image", "computer_screenshot")
_GIVEN: Final = (*_TEXTS, *_IMAGES, "input_file", "input_audio")
"""The types of parts of the model and of the client that a chat has, too."""

_ARGUMENTS: Final = ("action", "operation")
"""The fields of calls that hold what the tools of OpenAI are to do."""

_FIELDS: Final = frozenset({"id", "type", "status", "created_by", "phase"})
_MESSAGE_FIELDS: Final = _FIELDS | {"role", "content"}
_CALL_FIELDS: Final = _FIELDS | {"call_id", "name", "arguments", "input"}
_OUTPUT_FIELDS: Final = _FIELDS | {"call_id", "output"}
_TEXT_FIELDS: Final = frozenset({"type", "text", "annotations"})

Item = Mapping[str, Any]


def chat_views(items: Sequence[Item], texts: Sequence[str]) -> list[ChatView]:
    """Return the chat view of each item, in order; `texts` are the items verbatim."""
    views: list[ChatView] = []
    start = 0
    while start < len(items):
        end = _end_of_response(items, start)
        if end > start:
            views += _response(items[start:end], texts[start:end], start)
            start = end
        else:
            views.append(_from_client(items[start], texts[start], start))
            start += 1
    return views


def _end_of_response(items: Sequence[Item], start: int) -> int:
    """Return the place after the response that begins at a place, or this place without any.

    A message that follows another one, without reasoning or calls before it, needs none of them.
    """
    end, has_messages_alone = start, True
    while end < len(items) and is_of_model(items[end]):
        is_message = kind_of(items[end]) == MESSAGE
        # The API returns one message per response unless reasoning or calls come between: this is
        # the next response.
        if is_message and has_messages_alone and end > start:
            break
        has_messages_alone = has_messages_alone and is_message
        end += 1
    return end


def is_of_model(item: Item) -> bool:
    """Return whether the model wrote an item, so that it is part of a response."""
    kind = kind_of(item)
    if kind == MESSAGE:
        return item.get("role") == "assistant"
    return _is_of_server(item) or not kind.endswith(_FROM_CLIENT)


def _is_of_server(item: Item) -> bool:
    """Return whether the provider runs this call itself, or wrote this result of it."""
    return item.get("execution") == "server"


def kind_of(item: Item) -> str:
    """Return the type of an item; a message may leave it out."""
    return str(item.get("type", MESSAGE))


def is_call(item: Item) -> bool:
    """Return whether an item calls a tool of the client, which answers in an item of its own."""
    kind = kind_of(item)
    return kind in (FUNCTION, CUSTOM) or (
        kind.endswith(CALL) and isinstance(item.get("call_id"), str) and not _is_of_server(item)
    )


def answered_id(item: Item) -> Any:
    """Return the id of the call that an output answers; None if it has none."""
    if "call_id" in item or kind_of(item) != _LOCAL_SHELL_OUTPUT:
        return item.get("call_id")
    # In the API, the id of this output is that of its call.
    return item.get("id")


def _response(items: Sequence[Item], texts: Sequence[str], start: int) -> Iterator[ChatView]:
    message = response_message(items)
    element = Element.ITEM
    for index, (item, text) in enumerate(zip(items, texts, strict=True), start=start):
        yield ChatView(message, text, element, index, _extra(item), files=_files_of_model(item))
        # The first item holds the message of the whole response; the others join it.
        message, element = NOTHING_SAID, Element.JOINED


def response_message(items: Sequence[Item]) -> dict[str, Any]:
    """Return the items of one response as one message of the assistant."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for item in items:
        if is_call(item):
            calls.append(_chat_call(item))
        else:
            parts += map(text_part, texts_of_item(item))
    message: dict[str, Any] = {"role": "assistant"}
    # Chat APIs want null beside calls, and refuse null without any.
    message["content"] = joined_content(parts) if parts else None if calls else ""
    return message | {"tool_calls": calls} if calls else message


def texts_of_item(item: Item) -> list[str]:
    """Return the chat text of an item of the model; empty for calls and reasoning."""
    kind = kind_of(item)
    if kind == REASONING or is_call(item):
        return []
    if kind == IMAGE:
        # Its bytes are not text.
        return [compact({**item, "result": "[image]"})]
    if kind != MESSAGE:
        return [told(item)]
    content = item.get("content")
    if content is None or isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return [compact(content)]
    return [_text_of_part(part) for part in content]


def _text_of_part(part: Any) -> str:
    if is_text_part(part, "output_text") or is_text_part(part, "text"):
        return str(part["text"])
    if isinstance(part, Mapping) and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    return part if isinstance(part, str) else told(part)


def _files_of_model(item: Item) -> int:
    """Return the number of media in what a chat shows of an item of the model as JSON."""
    kind = kind_of(item)
    if kind in (REASONING, IMAGE) or is_call(item):
        return 0
    return _files(item.get("content"), _SAID) if kind == MESSAGE else files_in(item)


def _files(content: object, shown: Sequence[str]) -> int:
    """Return the number of media in parts that a chat shows as JSON, which are not `shown`."""
    parts = content if isinstance(content, list) else ()
    return sum(
        files_in(part)
        for part in parts
        if isinstance(part, Mapping) and part.get("type") not in shown
    )


def _chat_call(item: Item) -> dict[str, Any]:
    kind, call_id = kind_of(item), item.get("call_id")
    if kind == CUSTOM:
        custom = {"name": item.get("name"), "input": item.get("input")}
        return {"id": call_id, "type": "custom", "custom": custom}
    if kind == FUNCTION:
        return chat_call(call_id, item.get("name"), item.get("arguments"))
    arguments = {name: value for name, value in item.items() if name not in _CALL_FIELDS}
    for name in _ARGUMENTS:
        # One level up, where calls of functions have a command or the path of a file.
        inner = arguments.get(name)
        if isinstance(inner, Mapping) and not inner.keys() & arguments.keys():
            del arguments[name]
            arguments |= inner
    return chat_call(call_id, kind.removesuffix(CALL), compact(arguments))


def _from_client(item: Item, text: str, index: int) -> ChatView:
    kind, call_id = kind_of(item), answered_id(item)
    if kind == MESSAGE:
        content = chat_content(item.get("content"))
        message = {"role": item["role"], "content": content}
        files = _files(item.get("content"), _GIVEN)
        return ChatView(message, text, Element.ITEM, index, _extra(item), files=files)
    is_result = "output" in item or item.get("execution") == "client"
    if kind.endswith(OUTPUT) and isinstance(call_id, str) and is_result:
        content = chat_content(item["output"]) if "output" in item else _fields_text(item)
        result = {"role": "tool", "tool_call_id": call_id, "content": content}
        files = _files(item.get("output"), _GIVEN)
        return ChatView(result, text, Element.ITEM, index, _extra(item), files=files)
    message, files = {"role": "user", "content": told(item)}, files_in(item)
    return ChatView(message, text, Element.ITEM, index, is_meta=True, files=files)


def chat_content(content: object) -> Any:
    """Return the content of a message, or the output of a call, as chat content."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return joined_content([_chat_part(part) for part in content])
    if isinstance(content, Mapping) and content.get("type") == "computer_screenshot":
        return [_chat_image(content)]
    return compact(content)


def _chat_part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return text_part(part["text"])
    if kind in _IMAGES:
        return _chat_image(part)
    if kind == "input_file":
        fields = {name: value for name, value in part.items() if name != "type"}
        return {"type": "file", "file": fields}
    if kind == "input_audio":
        return dict(part)
    return text_part(part if isinstance(part, str) else told(part))


def _chat_image(part: Mapping[str, Any]) -> dict[str, Any]:
    url = part.get("image_url")
    if not isinstance(url, str):
        return {"type": "file", "file": {"file_id": part.get("file_id")}}
    detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def _extra(item: Item) -> str:
    """Return the text of an item that the chat does not show, and that costs tokens."""
    kind = kind_of(item)
    if kind == REASONING:
        return "\n".join(_reasoning_texts(item))
    if kind == MESSAGE:
        content = item.get("content")
        parts = content if isinstance(content, list) else ()
        extras = [
            unknown_fields(part, _TEXT_FIELDS)
            for part in parts
            if is_text_part(part, "output_text") or is_text_part(part, "input_text")
        ]
        return "".join([unknown_fields(item, _MESSAGE_FIELDS), *extras])
    if kind in (FUNCTION, CUSTOM):
        return unknown_fields(item, _CALL_FIELDS)
    is_told = "output" not in item or _is_of_server(item)
    return "" if is_told or not kind.endswith(OUTPUT) else unknown_fields(item, _OUTPUT_FIELDS)


def _fields_text(item: Item) -> str:
    """Return an output that has no text, such as the tools that a search found, as JSON."""
    return compact({name: value for name, value in item.items() if name not in _OUTPUT_FIELDS})


def _reasoning_texts(item: Item) -> Iterator[str]:
    for name, value in item.items():
        if name in ("summary", "content") and isinstance(value, list):
            for part in value:
                text = part.get("text") if isinstance(part, Mapping) else part
                yield text if isinstance(text, str) else compact(part)
        elif name not in _FIELDS and value is not None:
            yield value if isinstance(value, str) else compact(value)


# --- from chat to items


def items_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a chat message as items: its text first, then each of its calls.

    A result is none of them; see `output_of`.
    """
    role = message["role"]
    if role != "assistant":
        return [{"type": MESSAGE, "role": role, "content": _input(message.get("content"))}]
    calls = [item for item in map(_call_item, call_entries(message)) if item]
    texts = list(_answer_texts(message))
    if not texts and calls:
        return calls
    said: Any = [{"type": "output_text", "text": text} for text in texts]
    if len(texts) == 1:
        said = texts[0]
    return [{"type": MESSAGE, "role": role, "content": said or ""}, *calls]


def _answer_texts(message: Mapping[str, Any]) -> Iterator[str]:
    content, refusal = message.get("content"), message.get("refusal")
    if content:
        yield from map(_said, content if isinstance(content, list) else [content])
    if refusal and isinstance(refusal, str):
        yield refusal
    if not text_of(message) and (transcript := transcript_of(message.get("audio"))):
        yield transcript


def output_of(message: Mapping[str, Any], call_kind: str) -> dict[str, Any]:
    """Return a chat result as the output of a call of this type."""
    output = _input(message.get("content"))
    return {"type": call_kind + OUTPUT, "call_id": message.get("tool_call_id"), "output": output}


def _call_item(call: Any) -> dict[str, Any] | None:
    if not isinstance(call, Mapping):
        return None
    if isinstance(tool := call.get("custom"), Mapping):
        kind, field, value = CUSTOM, "input", tool.get("input")
    elif isinstance(tool := call.get("function"), Mapping):
        kind, field, value = FUNCTION, "arguments", tool.get("arguments")
        value = {} if value is None else value
    else:
        return None
    text = value if isinstance(value, str) else compact(value)
    return {"type": kind, "call_id": call.get("id"), "name": tool.get("name"), field: text}


def _said(part: Any) -> str:
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else _left_out(part)


def _input(content: object) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return [_input_part(part) for part in (content if isinstance(content, list) else [content])]


def _input_part(part: Any) -> dict[str, Any]:
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return {"type": "input_text", "text": part["text"]}
    if kind == "image_url":
        place = part.get("image_url")
        url = place.get("url") if isinstance(place, Mapping) else place
        if isinstance(url, str):
            detail = place.get("detail") if isinstance(place, Mapping) else None
            shown = detail if isinstance(detail, str) else "auto"
            return {"type": "input_image", "image_url": url, "detail": shown}
    if kind == "file" and isinstance(part.get("file"), Mapping):
        return {"type": "input_file", **part["file"]}
    if kind in ("input_image", "input_file", "input_audio"):
        return dict(part)
    return {"type": "input_text", "text": part if isinstance(part, str) else _left_out(part)}


def _left_out(part: Any) -> str:
    """Return the JSON of a part without a text. Media have a note: their bytes are not text."""
    return f"[{part['type']} left out]" if is_media(part) else compact(part)
