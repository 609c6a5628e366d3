"""Chat messages as blocks of the Anthropic API.

In that API, messages of users and assistants alternate, a user speaks first, and ids are short.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from turnfold.contracts.strict_json import STRICT
from turnfold.core.text.calls import arguments_of
from turnfold.core.text.fitting import longest
from turnfold.core.text.json_text import is_encodable, json_text
from turnfold.core.text.tokens import (
    MEDIA_PARTS,
    TEXT_PARTS,
    text_of,
    token_upper_bound,
    transcript_of,
)
from turnfold.errors import BadEvent
from turnfold.messages import Ids, MessageId, ToolCall

OPENING: Final = "[The messages shown begin here.]"
"""The text of an added first message: the API requires that a user speaks first."""

SILENT: Final = "[This message is empty.]"
"""The text of an empty newest user message: the API rejects empty text."""

INSTRUCTION: Final = "<system-reminder>\n{}\n</system-reminder>"
"""The frame of a system message in mid-conversation: the API has none there."""

ID_CHARACTERS: Final = 64
NAME_CHARACTERS: Final = 128
DEEPEST_ARGUMENTS: Final = 100
IMAGE_PARTS: Final = frozenset({"image_url", "image", "input_image"})
FILE_PARTS: Final = frozenset({"file", "input_file"})
IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
PDF: Final = "application/pdf"
SOURCES: Final = ("base64", "url", "file")

_UNFIT: Final = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL: Final = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)(?:;[^;,]*)*;base64,", re.ASCII | re.IGNORECASE
)
_SIGNED: Final = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


class AlternatingTurns:
    """Collect alternating messages of users and assistants."""

    def __init__(self) -> None:
        self._turns: list[tuple[str, list[str], list[MessageId | None]]] = []
        self._empty: list[tuple[str, MessageId | None]] = []

    def add(self, role: str, blocks: Sequence[str], message_id: Ids) -> None:
        """Add a message as its content blocks."""
        own_ids = message_id if isinstance(message_id, tuple) else (message_id,)
        if not blocks:
            self._empty += [(role, own_id) for own_id in own_ids]
            return
        empty_ids = self._take_empty()
        if self._turns:
            self._turns[-1][2].extend(empty_ids)
            empty_ids = []
        if not self._turns or self._turns[-1][0] != role:
            self._turns.append((role, [], empty_ids))
        self._turns[-1][1].extend(blocks)
        self._turns[-1][2].extend(own_ids)

    def finished(self, *, is_needed: bool) -> tuple[tuple[str, ...], tuple[Ids, ...]]:
        """Return the messages and their ids; with `is_needed` at least one message."""
        if (
            self._turns
            and self._turns[-1][0] == "assistant"
            and any(role == "user" for role, _ in self._empty)
        ):
            self._turns.append(("user", [text_block(SILENT)], self._take_empty()))
        elif self._turns:
            self._turns[-1][2].extend(self._take_empty())
        elif self._empty or is_needed:
            self._turns.append(("user", [text_block(OPENING)], self._take_empty() or [None]))
        if self._turns and self._turns[0][0] != "user":
            self._turns.insert(0, ("user", [text_block(OPENING)], [None]))
        messages = tuple(
            f'{{"role":"{role}","content":[{",".join(blocks)}]}}' for role, blocks, _ in self._turns
        )
        return messages, tuple(ids[0] if len(ids) == 1 else tuple(ids) for _, _, ids in self._turns)

    def _take_empty(self) -> list[MessageId | None]:
        """Remove the pending empty messages and return their ids."""
        ids = [message_id for _, message_id in self._empty]
        self._empty.clear()
        return ids


def answer_blocks(
    body: Mapping[str, Any], calls: Sequence[ToolCall], api_ids: Mapping[str, str]
) -> list[str]:
    """Return an answer as blocks: its signed thinking, its text, and its calls."""
    blocks = [
        *_thinking(body.get("thinking_blocks")),
        *content_blocks(body.get("content"), "assistant"),
    ]
    # `function_call`, the predecessor of `tool_calls`, has no id for a result to refer to.
    old_call = body.get("function_call") or ""
    said = "" if text_of(body) else transcript_of(body.get("audio"))
    called = old_call if isinstance(old_call, str) else json_text(old_call)
    texts = (body.get("refusal"), said, called)
    blocks.extend(
        text_block(text.rstrip()) for text in texts if isinstance(text, str) and text.strip()
    )
    # Rendering has removed the calls that may not be sent, so both have the same length.
    for call, call_json in zip(calls, body.get("tool_calls") or (), strict=True):
        name = _UNFIT.sub("_", call.name)[:NAME_CHARACTERS]
        arguments = _object(arguments_of(call_json), call.tokens - token_upper_bound(call.name))
        api_id = api_ids[call.call_id]
        blocks.append(f'{{"type":"tool_use","id":"{api_id}","name":"{name}","input":{arguments}}}')
    return blocks


def instruction_blocks(body: Mapping[str, Any]) -> list[str]:
    """Return a system message in mid-conversation as a marked text of the user."""
    text = text_of(body)
    return [text_block(INSTRUCTION.format(text))] if text.strip() else []


def _thinking(blocks: object) -> Iterator[str]:
    """Return signed thinking blocks unchanged; the API rejects any change to them."""
    for block in blocks if isinstance(blocks, list) else ():
        if _is_signed(block):
            yield json_text(block)


def _is_signed(part: object) -> bool:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return (
        isinstance(part, Mapping)
        and isinstance(kind, str)
        and kind in _SIGNED
        and all(isinstance(part.get(k), str) for k in _SIGNED[kind])
    )


def unused_id(call_id: str, used: dict[str, int]) -> str:
    """Return a valid call id that is unique in the window; stored ids may repeat in later turns.

    `used` holds the ids so far, and for each prefix the last number that was appended to it.
    """
    unique_id = fit = _UNFIT.sub("_", call_id)[:ID_CHARACTERS]
    start = f"{fit[: ID_CHARACTERS - 8]}_"
    while unique_id in used:
        # Continues from the last number: starting at 1, many equal ids would take quadratic time.
        number = used[start] = max(1, used.get(start, 0)) + 1
        unique_id = f"{start}{number}"
    used.setdefault(unique_id, 0)
    return unique_id


def result_block(call_id: str, blocks: Sequence[str], *, is_error: bool = False) -> str:
    """Return the result of a call as a block."""
    content = f',"content":[{",".join(blocks)}]' if blocks else ""
    # The API rejects an error without content.
    error = ',"is_error":true' if is_error and blocks else ""
    return f'{{"type":"tool_result","tool_use_id":"{call_id}"{content}{error}}}'


# --- arguments


def _object(arguments: object, max_tokens: int) -> str:
    """Return arguments as JSON text of an object.

    Arguments that are not an object are wrapped in one, and cut to `max_tokens`.
    """
    text = arguments if isinstance(arguments, str) else json_text(arguments or {})
    if not text.strip():
        return "{}"
    try:
        value = STRICT.decode(text)
    except (ValueError, RecursionError, BadEvent):
        value = None
    if isinstance(value, dict) and _is_shallow(value, text):
        # UTF-8 has no lone surrogates, which `json_text` escapes.
        return text if is_encodable(text) else json_text(value)

    def beginning(characters: int) -> str:
        return json_text({"text": text[:characters]})

    return longest(beginning, len(text), max_tokens, token_upper_bound) or "{}"


def _is_shallow(value: object, text: str) -> bool:
    """Return whether the nesting is shallow enough for any parser."""
    # No value nests deeper than its text has opening brackets, so most need no walk.
    if text.count("{") + text.count("[") <= DEEPEST_ARGUMENTS:
        return True
    level: list[Any] = [value]
    for _ in range(DEEPEST_ARGUMENTS):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return not level


# --- content


def text_block(text: str) -> str:
    """Return a text as a block."""
    return json_text({"type": "text", "text": text})


def content_blocks(content: object, role: str) -> list[str]:
    """Return content as blocks, without empty text and trailing space of an assistant."""
    if content is None:
        return []
    parts = content if isinstance(content, list) else [content]
    blocks = []
    for part in parts:
        block = _block(part, role)
        if isinstance(block, Mapping):
            blocks.append(json_text(block))
        elif block.strip():
            blocks.append(text_block(block.rstrip() if role == "assistant" else block))
    return blocks


def _block(part: object, role: str) -> Mapping[str, Any] | str:
    """Return a part of the content as a block, or as text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return json_text(part)
    kind, text = part.get("type", "text"), part.get("text")
    if not isinstance(kind, str):
        return json_text(part)
    if kind in TEXT_PARTS and isinstance(text, str):
        return text
    if kind in MEDIA_PARTS:
        return _media_block(part, kind, role) or f"[{kind} left out]"
    return part if role == "assistant" and _is_signed(part) else json_text(part)


def _media_block(part: Mapping[str, Any], kind: str, role: str) -> Mapping[str, Any] | None:
    if role == "assistant":
        return None
    if kind in IMAGE_PARTS:
        return _image(part)
    return _document(part) if kind in FILE_PARTS else None


def _image(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    source = part.get("source")
    if isinstance(source, Mapping):
        return {"type": "image", "source": source} if source.get("type") in SOURCES else None
    place = part.get("image_url", part.get("url"))
    return _media("image", place.get("url") if isinstance(place, Mapping) else place, IMAGE_TYPES)


def _document(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    file = part.get("file")
    fields = file if isinstance(file, Mapping) else part
    return _media("document", fields.get("file_data", fields.get("file_url")), frozenset({PDF}))


def _media(kind: str, place: object, types: frozenset[str]) -> Mapping[str, Any] | None:
    """Return the block of a web address or a data URL; None for unsupported types."""
    if not isinstance(place, str):
        return None
    if place.lower().startswith(("http://", "https://")):
        return {"type": kind, "source": {"type": "url", "url": place}}
    match = _DATA_URL.match(place)
    if match is None or match[1].lower() not in types or match.end() == len(place):
        return None
    return {
        "type": kind,
        "source": {"type": "base64", "media_type": match[1].lower(), "data": place[match.end() :]},
    }
