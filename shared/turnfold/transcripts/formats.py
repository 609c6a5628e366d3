"""The formats of conversation files, and how to tell them apart."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from turnfold.messages import Json
from turnfold.transcripts.saved_history import is_page, is_stored_message


class Format(StrEnum):
    """The program that wrote a file, or the API whose messages it has."""

    TURNFOLD = "turnfold"
    HISTORY = "history"
    OPENAI = "openai"
    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    NANOBOT = "nanobot"


_ITEMS: Final = frozenset({"message", "reasoning", "item_reference"})
_ITEM_ENDINGS: Final = ("_call", "_call_output", "_output", "_approval_request", "_list_tools")
_ITEM_PARTS: Final = ("input_text", "input_image", "input_file", "output_text")


def format_of(value: Any) -> Format | None:
    """Return the format of a file by its first JSON value; None if it has none of them."""
    if isinstance(value, list):
        is_conversations = bool(value) and all(map(is_conversation, value))
        return Format.TURNFOLD if is_conversations else Format.OPENAI
    if not isinstance(value, Mapping):
        return None
    return next((form for form, fits in _FITS if fits(value)), None)


def is_conversation(value: Any) -> bool:
    """Return whether a value is an object with messages."""
    return isinstance(value, Mapping) and "messages" in value


def is_item(value: Json) -> bool:
    """Return whether an object can only be an item of the Responses API."""
    kind = value.get("type")
    if isinstance(kind, str):
        return kind.endswith(_ITEM_ENDINGS) or (
            kind in _ITEMS and (kind != "message" or "role" in value)
        )
    content = value.get("content")
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") in _ITEM_PARTS for part in content
    )


_FITS: Final[tuple[tuple[Format, Callable[[Json], bool]], ...]] = (
    (Format.HISTORY, lambda value: is_page(value) or is_stored_message(value)),
    (Format.TURNFOLD, is_conversation),
    (Format.NANOBOT, lambda value: "_type" in value),
    # Before Claude Code, whose only sign is a type: lines of rollouts and items have one, too.
    (Format.CODEX, lambda value: isinstance(value.get("payload"), Mapping)),
    (Format.CODEX, lambda value: "record_type" in value),
    (Format.OPENAI, lambda value: is_item(value) or "role" in value),
    (Format.CLAUDE_CODE, lambda value: isinstance(value.get("type"), str)),
    (Format.OPENAI, lambda value: isinstance(value.get("input"), list)),
    # The first line of older rollouts, whose items follow.
    (Format.CODEX, lambda value: {"id", "timestamp"} <= value.keys()),
)
"""The test of a file's first value for each format; the first format that passes is taken."""
