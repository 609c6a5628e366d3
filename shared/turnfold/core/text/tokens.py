"""Count the tokens of messages and of their parts."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from turnfold.core.text.estimates import estimate, token_upper_bound
from turnfold.core.text.token_offsets import Count, CutPoint, TokenOffsets, is_long
from turnfold.messages import ToolCall

__all__ = [
    "Count",
    "CutPoint",
    "MessageTokens",
    "TokenOffsets",
    "count_message",
    "estimate",
    "is_long",
    "lines_of",
    "measure_with",
    "path_in",
    "text_of",
    "token_upper_bound",
]

MESSAGE_TOKENS: Final = 4
CALL_TOKENS: Final = 4
IMAGE_TOKENS: Final = 1_200
PATH_CHARACTERS: Final = 300

TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
MEDIA_PARTS: Final = frozenset(
    {
        "image_url",
        "image",
        "input_image",
        "input_audio",
        "audio",
        "file",
        "input_file",
        "video",
        "video_url",
    }
)
PATH_KEYS: Final = ("path", "file_path", "filename", "file", "notebook_path")
NAMES_A_PATH: Final = re.compile(rf'"(?:{"|".join(PATH_KEYS)})"')


# Not frozen, because freezing triples the cost of construction, and thousands are made per second.
# No code changes one.
@dataclass(slots=True, unsafe_hash=True)
class MessageTokens:
    """Counts of one message. `tokens` is the total with overhead; the other token counts are parts.

    `characters` and `lines` are those of its text (`text_of`). `cuts` encodes its `TokenOffsets`,
    empty for texts up to 512 bytes. `is_irregular` if `tool_calls` contains entries that cannot be
    sent.
    """

    tokens: int
    content_tokens: int
    reasoning_tokens: int
    characters: int
    lines: int
    calls: tuple[ToolCall, ...]
    is_irregular: bool
    cuts: str


def count_message(
    body: Mapping[str, Any], count: Count, *, image_tokens: int = IMAGE_TOKENS
) -> MessageTokens:
    """Count a chat message of any shape. Each image or file costs `image_tokens`."""
    text = text_of(body)
    if not is_long(text):
        return measure_with(
            body, text, count(text) if text else 0, count, image_tokens=image_tokens
        )
    grid = TokenOffsets.of(text, count)
    return measure_with(
        body, text, grid.total, count, image_tokens=image_tokens, cuts=grid.encode()
    )


def measure_with(
    body: Mapping[str, Any],
    text: str,
    text_tokens: int,
    count: Count,
    *,
    image_tokens: int = IMAGE_TOKENS,
    cuts: str = "",
) -> MessageTokens:
    """Count a chat message whose text was counted before; `cuts` is passed through.

    A long text counted as a whole may be slightly below the sum of its parts.
    """
    content = body.get("content")
    is_text = content is None or isinstance(content, str)
    content_tokens = (
        text_tokens if is_text else text_tokens + _other_parts(content, count, image_tokens)
    )
    tokens = MESSAGE_TOKENS + content_tokens
    calls: tuple[ToolCall, ...] = ()
    is_irregular = False
    reasoning_tokens = 0
    # Most messages have a role and a content, and nothing else to be looked for.
    if len(body) > 2 or "content" not in body:
        reasoning_tokens = _reasoning(body, count)
        calls, calls_tokens, is_irregular = _calls(body.get("tool_calls"), count)
        tokens += reasoning_tokens + calls_tokens + _extras(body, count)
    return MessageTokens(
        tokens,
        content_tokens,
        reasoning_tokens,
        len(text),
        lines_of(text),
        calls,
        is_irregular,
        cuts,
    )


def text_of(body: Mapping[str, Any]) -> str:
    """Return the text of a message; several text parts are joined by line ends."""
    content = body.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(text for part in content if (text := _text_of_part(part)) is not None)


def lines_of(text: str) -> int:
    """Return the number of lines; a final line end starts no further line."""
    return text.count("\n") + (0 if text.endswith("\n") else 1) if text else 0


def _text_of_part(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text, kind = part.get("text"), part.get("type", "text")
        if isinstance(text, str) and isinstance(kind, str) and kind in TEXT_PARTS:
            return text
    return None


def _other_parts(content: object, count: Count, image_tokens: int) -> int:
    """Return the tokens of content parts that are not text."""
    tokens = 0
    for part in content if isinstance(content, list) else (content,):
        if isinstance(content, list) and _text_of_part(part) is not None:
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        tokens += (
            image_tokens if isinstance(kind, str) and kind in MEDIA_PARTS else count(_json(part))
        )
    return tokens


def _reasoning(body: Mapping[str, Any], count: Count) -> int:
    text = body.get("reasoning_content")
    tokens = 0 if text is None else count(text if isinstance(text, str) else _json(text))
    blocks = body.get("thinking_blocks")
    if blocks is None:
        return tokens
    for block in blocks if isinstance(blocks, list) else (blocks,):
        if not isinstance(block, Mapping):
            tokens += count(_json(block))
            continue
        for key, value in block.items():
            if key not in ("type", "cache_control") and value is not None:
                tokens += count(value if isinstance(value, str) else _json(value))
    return tokens


def _calls(entries: object, count: Count) -> tuple[tuple[ToolCall, ...], int, bool]:
    """Return the valid calls, the tokens of all entries, and whether others exist."""
    if entries is None:
        return (), 0, False
    if not isinstance(entries, list):
        return (), count(_json(entries)), True
    calls: list[ToolCall] = []
    ids: set[str] = set()
    tokens = 0
    for slot, entry in enumerate(entries):
        call_id, function = (
            (entry.get("id"), entry.get("function")) if isinstance(entry, Mapping) else (None, None)
        )
        name, arguments = (
            (function.get("name"), function.get("arguments"))
            if isinstance(function, Mapping)
            else (None, None)
        )
        if (
            not (isinstance(call_id, str) and isinstance(name, str) and call_id and name)
            or call_id in ids
        ):
            tokens += CALL_TOKENS + count(_json(entry))
            continue
        ids.add(call_id)
        written = (
            arguments
            if isinstance(arguments, str)
            else ""
            if arguments is None
            else _json(arguments)
        )
        call = ToolCall(
            slot,
            call_id,
            name,
            CALL_TOKENS + count(name) + (count(written) if written else 0),
            path_in(written),
        )
        calls.append(call)
        tokens += call.tokens
    return tuple(calls), tokens, len(calls) != len(entries)


def _extras(body: Mapping[str, Any], count: Count) -> int:
    """Yield the other texts that a model receives: names, refusals and legacy calls."""
    tokens = 0
    for key in ("name", "refusal", "function_call"):
        value = body.get(key)
        if value is not None and value != "":
            tokens += count(value if isinstance(value, str) else _json(value))
    return tokens


def path_in(arguments: str) -> str | None:
    """Return the file that JSON arguments name, if any, of at most 300 characters."""
    if NAMES_A_PATH.search(arguments) is None:
        return None
    try:
        arguments_json = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments_json, dict):
        return None
    paths = (arguments_json.get(key) for key in PATH_KEYS)
    return next(
        (path for path in paths if isinstance(path, str) and 0 < len(path) <= PATH_CHARACTERS), None
    )


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    except (TypeError, ValueError, RecursionError):
        return ""
