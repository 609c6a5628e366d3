"""Budgets in characters, for callers that do not count tokens.

The query service assumes a number of characters per token, and raises it until the window fits.
"""

import json
from typing import Any, Final

from turnfold.core.shapes.anthropic import chat_views
from turnfold.core.text.json_text import json_text
from turnfold.core.text.tokens import UNCOUNTED_FIELDS, is_media, text_of
from turnfold.core.window.rendering.anthropic import AnthropicWindow
from turnfold.core.window.rendering.render import Rendered

STEP: Final = 1.25
"""The factor between attempts. Large steps, so that a window seldom moves from one to another."""


def characters_of(rendered: Rendered, *, with_summary: bool) -> int:
    """Count the characters of a window: texts, reasoning, names and arguments, but no media.

    `with_summary` adds those of a summary in its own field.
    """
    summary = _summary_characters(rendered) if with_summary else 0
    return summary + sum([_characters(json.loads(message)) for message in rendered.messages])


def characters_of_blocks(rendered: Rendered, window: AnthropicWindow, *, with_summary: bool) -> int:
    """Count the characters of a window in the format of Anthropic, whose conversion adds texts.

    `rendered` is the same window before its conversion.
    """
    summary = _summary_characters(rendered) if with_summary else 0
    views = chat_views([json.loads(message) for message in window.messages], window.messages)
    return summary + len(window.system or "") + sum([_characters(view.message) for view in views])


def next_chars_per_token(assumed: float, characters: int, max_characters: int) -> float:
    """Return what to assume next, after `assumed` gave a window of too many characters."""
    needed = assumed * characters / max(1, max_characters)
    following = assumed * STEP
    while following < needed:
        following *= STEP
    return following


def _summary_characters(rendered: Rendered) -> int:
    return sum(map(len, (rendered.summary_text, *rendered.ledger)))


def _characters(body: dict[str, Any]) -> int:
    content = body.get("content")
    if isinstance(content, list):
        parts = content
    elif content is None or isinstance(content, str):
        parts = []
    else:
        parts = [content]
    fields = [value for key, value in body.items() if key not in UNCOUNTED_FIELDS]
    # `text_of` reads the texts. Other parts count as JSON, media not at all.
    others = [part for part in parts if not (is_media(part) or text_of({"content": [part]}))]
    return len(text_of(body)) + sum([_length(value) for value in [*fields, *others]])


def _length(value: object) -> int:
    if not value:
        return 0
    return len(value) if isinstance(value, str) else len(json_text(value))
