"""Count the tokens of messages and of their parts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnfold.core.text.calls import read_call
from turnfold.core.text.estimates import estimate, token_upper_bound
from turnfold.core.text.token_offsets import Count, TokenOffsets, is_long
from turnfold.messages import ToolCall

__all__ = [
    "Count",
    "MessageTokens",
    "TokenOffsets",
    "count_message",
    "estimate",
    "is_long",
    "lines_of",
    "measure_with",
    "path_in",
    "spoken_text",
    "text_of",
    "token_upper_bound",
    "transcript_of",
]

MESSAGE_TOKENS: Final = 4
CALL_TOKENS: Final = 4
IMAGE_TOKENS: Final = 1_200
INSTRUCTION_TOKENS: Final = 16
"""The frame of a system message in mid-conversation, in formats that have none."""
PATH_CHARACTERS: Final = 300

TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
MEDIA_PARTS: Final = frozenset(
    {
        "image_url",
        "image",
        "input_image",
        "input_audio",
        "audio",
        "output_audio",
        "file",
        "input_file",
        "video",
        "video_url",
        # Types that servers of open models accept.
        "audio_url",
        "audio_embeds",
        "image_embeds",
    }
)
REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""The reasoning of a message, as providers name it. It can be left out."""

UNCOUNTED_FIELDS: Final = frozenset({"role", "content", "tool_call_id", "cache_control"})
TEXT_PART_FIELDS: Final = frozenset({"type", "text", "cache_control"})
MEDIA_PART_FIELDS: Final = MEDIA_PARTS | frozenset(
    "type source url detail format data media_type mime_type cache_control".split()
    + "file_id file_data file_url filename".split()
)
CALL_FIELDS: Final = frozenset({"id", "index", "type", "function", "custom", "cache_control"})
CALLED_TOOL_FIELDS: Final = frozenset({"name", "arguments", "input"})

PATH_KEYS: Final = ("path", "file_path", "filename", "file", "notebook_path")
NAMES_A_PATH: Final = re.compile(rf'"(?:{"|".join(PATH_KEYS)})"')
# Created once: `json.dumps` creates one per value.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=repr)


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
    # Most messages have only a role and a content.
    if len(body) > 2 or "content" not in body:
        for key, value in body.items():
            if value is None or key in UNCOUNTED_FIELDS:
                continue
            if key == "tool_calls":
                calls, field_tokens, is_irregular = _calls(value, count, image_tokens)
            elif key in REASONING_FIELDS:
                field_tokens = _reasoning(value, count)
                reasoning_tokens += field_tokens
            else:
                field_tokens = _field(key, value, count, image_tokens)
            tokens += field_tokens
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


def spoken_text(body: Mapping[str, Any]) -> str:
    """Return the text of a message; without any, its refusal or the transcript of its audio."""
    return text_of(body) or "\n".join(_texts_elsewhere(body))


def _texts_elsewhere(body: Mapping[str, Any]) -> Iterator[str]:
    content = body.get("content")
    for part in (*(content if isinstance(content, list) else ()), body, body.get("audio")):
        refusal = part.get("refusal") if isinstance(part, Mapping) else None
        if isinstance(refusal, str) and refusal:
            yield refusal
        if transcript := transcript_of(part):
            yield transcript


def transcript_of(audio: object) -> str:
    """Return the transcript of speech; empty if there is none."""
    text = audio.get("transcript") if isinstance(audio, Mapping) else None
    return text if isinstance(text, str) else ""


def lines_of(text: str) -> int:
    """Return the number of lines; a final line end starts no further line."""
    return text.count("\n") + (0 if text.endswith("\n") else 1) if text else 0


def _text_of_part(part: object) -> str | None:
    if isinstance(part, str):
        return part
    # An abstract class is checked slowly, and nearly all parts are dictionaries.
    if isinstance(part, (dict, Mapping)):
        text, kind = part.get("text"), part.get("type", "text")
        if isinstance(text, str) and isinstance(kind, str) and kind in TEXT_PARTS:
            return text
    return None


def _other_parts(content: object, count: Count, image_tokens: int) -> int:
    """Return the tokens of content parts without their texts."""
    if not isinstance(content, list):
        return _parts([content], count, image_tokens)
    tokens = 0
    others: list[Any] = []
    for part in content:
        if _text_of_part(part) is None:
            others.append(part)
        elif isinstance(part, Mapping):
            tokens += _beside(part, TEXT_PART_FIELDS, count, image_tokens)
    return tokens + _parts(others, count, image_tokens)


def _parts(parts: Sequence[Any], count: Count, image_tokens: int) -> int:
    """Return the tokens of media, and of parts of unknown types."""
    tokens = 0
    odd: list[Any] = []
    for part in parts:
        if is_media(part):
            tokens += image_tokens + _beside(part, MEDIA_PART_FIELDS, count, image_tokens)
        else:
            odd.append(part)
    return tokens + _odd(odd, count)


def _odd(values: Sequence[Any], count: Count) -> int:
    """Return the tokens of values of unknown types.

    They count as one list: an event may hold two million, and counting each takes seconds.
    """
    return count(_json(values)[1:-1]) if values else 0


def is_media(part: object) -> bool:
    """Return whether a content part is an image, audio, a video or a file."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in MEDIA_PARTS


def _reasoning(blocks: object, count: Count) -> int:
    values: list[Any] = []
    for block in blocks if isinstance(blocks, list) else (blocks,):
        if isinstance(block, Mapping):
            values += [
                value
                for key, value in block.items()
                if key not in ("type", "cache_control") and value is not None
            ]
        else:
            values.append(block)
    odd = [value for value in values if not isinstance(value, str)]
    return sum([count(value) for value in values if isinstance(value, str)]) + _odd(odd, count)


def _calls(
    entries: object, count: Count, image_tokens: int
) -> tuple[tuple[ToolCall, ...], int, bool]:
    """Return the valid calls, the tokens of all entries, and whether others exist.

    Unknown fields count separately, because they stay when the call is shortened.
    """
    if not isinstance(entries, list):
        return (), count(_json(entries)), True
    calls: list[ToolCall] = []
    odd: list[Any] = []
    ids: set[str] = set()
    tokens = 0
    for slot, entry in enumerate(entries):
        tool, arguments = read_call(entry)
        call_id, name = (None, None) if tool is None else (entry.get("id"), tool.get("name"))
        if (
            tool is None
            or not (isinstance(call_id, str) and isinstance(name, str) and call_id and name)
            # A call id takes exactly one result, so a second call with this id cannot be sent.
            or call_id in ids
        ):
            odd.append(entry)
            continue
        ids.add(call_id)
        written = "" if arguments is None else _text_or_json(arguments)
        call = ToolCall(
            slot,
            call_id,
            name,
            CALL_TOKENS + count(name) + (count(written) if written else 0),
            path_in(written),
        )
        calls.append(call)
        tokens += (
            call.tokens
            + _beside(entry, CALL_FIELDS, count, image_tokens)
            + _beside(tool, CALLED_TOOL_FIELDS, count, image_tokens)
        )
    tokens += CALL_TOKENS * len(odd) + _odd(odd, count)
    return tuple(calls), tokens, bool(odd)


def _beside(fields: Mapping[str, Any], known: frozenset[str], count: Count, image: int) -> int:
    """Return the tokens of unknown fields."""
    if fields.keys() <= known:
        return 0
    return sum([_field(key, fields[key], count, image) for key in fields.keys() - known])


def _field(key: str, value: object, count: Count, image_tokens: int) -> int:
    """Return the tokens of any other field, as text or media, because a provider may bill it."""
    if not value:
        return 0
    if key in MEDIA_PARTS:
        # APIs without speech are given what was said.
        transcript = transcript_of(value)
        return image_tokens + (count(transcript) if transcript else 0)
    if isinstance(value, list) and any(map(is_media, value)):
        return _parts(value, count, image_tokens)
    return count(_text_or_json(value))


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


def _text_or_json(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        return ""
