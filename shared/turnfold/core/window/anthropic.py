"""A rendered window in the shape that Anthropic's interface takes: system text apart, users and assistants in turn."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from turnfold.core.text.tokens import (
    MEDIA_PARTS,
    MESSAGE_TOKENS,
    TEXT_PARTS,
    text_of,
    token_upper_bound,
)
from turnfold.core.window.render import Rendered, json_text, longest
from turnfold.core.window.truncation import STAND_IN
from turnfold.core.window.views import ShownMessage, SynthesizedResult
from turnfold.core.window.window import WindowPlan
from turnfold.messages import MessageId, Role, ToolCall

OPENING: Final = "[The messages shown begin here.]"
"""The first message has to be a user's; this stands there where it is not."""

SILENT: Final = "[This message is empty.]"
"""Text that holds nothing is refused; this stands for a newest user message that says nothing."""

ASIDE_TOKENS: Final = MESSAGE_TOKENS + token_upper_bound(OPENING) + token_upper_bound(SILENT)
ASIDE_MESSAGES: Final = 1
"""What the shape may add to a window; the rest of it costs no more than what was counted."""

ID_CHARACTERS: Final = 64
NAME_CHARACTERS: Final = 128
DEEPEST_ARGUMENTS: Final = 100
IMAGE_PARTS: Final = frozenset({"image_url", "image", "input_image"})
FILE_PARTS: Final = frozenset({"file", "input_file"})
IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
PDF: Final = "application/pdf"
SOURCES: Final = frozenset({"base64", "url", "file"})

_UNFIT: Final = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL: Final = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)(?:;[^;,]*)*;base64,", re.ASCII | re.IGNORECASE
)
_SIGNED: Final = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}

Ids = MessageId | None | tuple[MessageId | None, ...]
"""What a message stands for: a stored one, none, or, where several became one, these in order."""


@dataclass(frozen=True, slots=True)
class AnthropicWindow:
    """The system text (None where there is none), the messages as JSON texts, and for each the ids of what it was."""

    system: str | None
    messages: tuple[str, ...]
    message_ids: tuple[Ids, ...]


def to_anthropic(plan: WindowPlan, rendered: Rendered) -> AnthropicWindow:
    """The window of a plan in the Anthropic shape; `rendered` is the same window in the shape of OpenAI.

    Neighbours of one role become one message. All results of a turn stand first in the user message after it. A message
    that says nothing shows only by its id, beside those of the message before it.
    """
    turns = _Turns()
    system: list[str] = []
    entries = plan.entries
    before = len(rendered.messages) - len(entries)
    for text, message_id in zip(
        rendered.messages[:before], rendered.message_ids[:before], strict=True
    ):
        body = json.loads(text)
        if Role(body["role"]).is_system:
            system.append(text_of(body))
        else:
            turns.add("user", _content(body.get("content"), "user"), message_id)
    names: dict[str, str] = {}
    used: dict[str, int] = {}
    for entry, text, message_id in zip(
        entries, rendered.messages[before:], rendered.message_ids[before:], strict=True
    ):
        match entry:
            case SynthesizedResult(call=call):
                turns.add("user", [_result(names[call.call_id], [_text(STAND_IN)])], message_id)
            case ShownMessage(message=message, call=ToolCall(call_id=call_id)):
                body = json.loads(text)
                is_error = message.is_error or body.get("is_error") is True
                turns.add(
                    "user",
                    [
                        _result(
                            names[call_id], _content(body.get("content"), "tool"), is_error=is_error
                        )
                    ],
                    message_id,
                )
            case ShownMessage(message=message) if message.role is Role.USER:
                turns.add("user", _content(json.loads(text).get("content"), "user"), message_id)
            case ShownMessage(message=message):
                names = {call.call_id: _unused(call.call_id, used) for call in message.calls}
                turns.add(
                    "assistant", _assistant(json.loads(text), message.calls, names), message_id
                )
    told = "\n\n".join(text for text in system if text.strip())
    messages, ids = turns.finished(is_needed=bool(rendered.messages))
    return AnthropicWindow(told or None, messages, ids)


class _Turns:
    """Messages that take turns."""

    def __init__(self) -> None:
        self._turns: list[tuple[str, list[str], list[MessageId | None]]] = []
        self._silent: list[tuple[str, MessageId | None]] = []

    def add(self, role: str, blocks: Sequence[str], message_id: MessageId | None) -> None:
        """Take in a message as its blocks."""
        if not blocks:
            self._silent.append((role, message_id))
            return
        unspoken = self._unspoken()
        if self._turns:
            self._turns[-1][2].extend(unspoken)
            unspoken = []
        if not self._turns or self._turns[-1][0] != role:
            self._turns.append((role, [], unspoken))
        self._turns[-1][1].extend(blocks)
        self._turns[-1][2].append(message_id)

    def finished(self, *, is_needed: bool) -> tuple[tuple[str, ...], tuple[Ids, ...]]:
        """The messages and their ids; with `is_needed` there is one at least."""
        if (
            self._turns
            and self._turns[-1][0] == "assistant"
            and any(role == "user" for role, _ in self._silent)
        ):
            self._turns.append(("user", [_text(SILENT)], self._unspoken()))
        elif self._turns:
            self._turns[-1][2].extend(self._unspoken())
        elif self._silent or is_needed:
            self._turns.append(("user", [_text(OPENING)], self._unspoken() or [None]))
        if self._turns and self._turns[0][0] != "user":
            self._turns.insert(0, ("user", [_text(OPENING)], [None]))
        messages = tuple(
            f'{{"role":"{role}","content":[{",".join(blocks)}]}}' for role, blocks, _ in self._turns
        )
        return messages, tuple(ids[0] if len(ids) == 1 else tuple(ids) for _, _, ids in self._turns)

    def _unspoken(self) -> list[MessageId | None]:
        ids = [message_id for _, message_id in self._silent]
        self._silent.clear()
        return ids


def _assistant(
    body: Mapping[str, Any], calls: Sequence[ToolCall], names: Mapping[str, str]
) -> list[str]:
    blocks = [*_thinking(body.get("thinking_blocks")), *_content(body.get("content"), "assistant")]
    # The shape before `tool_calls` has no id that a result could name.
    old_call = body.get("function_call") or ""
    beside = (body.get("refusal"), old_call if isinstance(old_call, str) else json_text(old_call))
    blocks.extend(_text(said.rstrip()) for said in beside if isinstance(said, str) and said.strip())
    for call, found in zip(calls, body.get("tool_calls") or (), strict=True):
        name = _UNFIT.sub("_", call.name)[:NAME_CHARACTERS]
        arguments = _object(
            found["function"].get("arguments"), call.tokens - token_upper_bound(call.name)
        )
        blocks.append(
            f'{{"type":"tool_use","id":"{names[call.call_id]}","name":"{name}","input":{arguments}}}'
        )
    return blocks


def _thinking(found: object) -> Iterator[str]:
    """Thinking as it was signed: to the letter, or not at all."""
    for block in found if isinstance(found, list) else ():
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


def _unused(call_id: str, used: dict[str, int]) -> str:
    """A call id as it may be sent, unlike any before it in the window: ids come again in later turns, and may not here.

    `used` holds them, and for each beginning the last number that was given to it.
    """
    found = fit = _UNFIT.sub("_", call_id)[:ID_CHARACTERS]
    start = f"{fit[: ID_CHARACTERS - 8]}_"
    while found in used:
        number = used[start] = max(1, used.get(start, 0)) + 1
        found = f"{start}{number}"
    used.setdefault(found, 0)
    return found


def _result(call_id: str, blocks: Sequence[str], *, is_error: bool = False) -> str:
    content = f',"content":[{",".join(blocks)}]' if blocks else ""
    # An error that says nothing is refused.
    told = ',"is_error":true' if is_error and blocks else ""
    return f'{{"type":"tool_result","tool_use_id":"{call_id}"{content}{told}}}'


# --- arguments


def _object(arguments: object, max_tokens: int) -> str:
    """Arguments as the JSON object they are, spliced; else an object around as much of the text as its tokens allow."""
    text = arguments if isinstance(arguments, str) else json_text(arguments or {})
    if not text.strip():
        return "{}"
    try:
        found = _strict(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and _is_shallow(found, text):
        return text if _is_encodable(text) else json_text(found)
    return (
        longest(
            lambda characters: json_text({"text": text[:characters]}),
            len(text),
            max_tokens,
            token_upper_bound,
        )
        or "{}"
    )


def _strict(text: str) -> object:
    """The value of a JSON text without numbers that are none."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    return value if value - value == 0 else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:12]} is no JSON number")


def _is_shallow(value: object, text: str) -> bool:
    """Whether a reader follows it however it reads."""
    if text.count("{") + text.count("[") <= DEEPEST_ARGUMENTS:
        return True
    level: list[Any] = [value]
    for _ in range(DEEPEST_ARGUMENTS):
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
    return not level


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- content


def _text(text: str) -> str:
    return json_text({"type": "text", "text": text})


def _content(content: object, role: str) -> list[str]:
    """Content as blocks; text that holds nothing is left out, and an assistant's ends with no space."""
    if content is None:
        return []
    parts = content if isinstance(content, list) else [content]
    blocks = []
    for part in parts:
        block = _block(part, role)
        if isinstance(block, Mapping):
            blocks.append(json_text(block))
        elif block.strip():
            blocks.append(_text(block.rstrip() if role == "assistant" else block))
    return blocks


def _block(part: object, role: str) -> Mapping[str, Any] | str:
    """A part as a block, or as the text that stands for it."""
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
        found = (
            None
            if role == "assistant"
            else _image(part)
            if kind in IMAGE_PARTS
            else _document(part)
            if kind in FILE_PARTS
            else None
        )
        return found or f"[{kind} left out]"
    return part if role == "assistant" and _is_signed(part) else json_text(part)


def _image(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    source = part.get("source")
    if isinstance(source, Mapping):
        return {"type": "image", "source": source} if source.get("type") in SOURCES else None
    place = part.get("image_url", part.get("url"))
    return _media("image", place.get("url") if isinstance(place, Mapping) else place, IMAGE_TYPES)


def _document(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    file = part.get("file")
    held = file if isinstance(file, Mapping) else part
    return _media("document", held.get("file_data", held.get("file_url")), frozenset({PDF}))


def _media(kind: str, place: object, types: frozenset[str]) -> Mapping[str, Any] | None:
    """What lies at an address, or in one."""
    if not isinstance(place, str):
        return None
    if place.lower().startswith(("http://", "https://")):
        return {"type": kind, "source": {"type": "url", "url": place}}
    held = _DATA_URL.match(place)
    if held is None or held[1].lower() not in types or held.end() == len(place):
        return None
    return {
        "type": kind,
        "source": {"type": "base64", "media_type": held[1].lower(), "data": place[held.end() :]},
    }
