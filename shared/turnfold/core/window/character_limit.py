"""A budget in characters, where no tokens are known: tokens are reckoned at so many characters each until the window fits."""

import json
from typing import Any, Final

from turnfold.core.text.tokens import MEDIA_PARTS, text_of
from turnfold.core.window.render import REASONING_KEYS, Rendered, json_text

STEP: Final = 1.25
"""From one number of characters a token to the next that is tried: few, so that a window seldom changes from one to the other."""


def characters_of(rendered: Rendered, *, with_summary: bool) -> int:
    """The characters of a window: its texts, reasoning, names and arguments, and the summary where it stands beside. Media are none."""
    beside = [rendered.summary_text, *rendered.ledger] if with_summary else []
    return sum(map(len, beside)) + sum(
        [_characters(json.loads(message)) for message in rendered.messages]
    )


def next_spread(spread: float, characters: int, max_characters: int) -> float:
    """How many characters to reckon a token at, after a window reckoned at `spread` came out with too many."""
    needed = spread * characters / max(1, max_characters)
    found = spread * STEP
    while found < needed:
        found *= STEP
    return found


def _characters(body: dict[str, Any]) -> int:
    content = body.get("content")
    others = (
        content
        if isinstance(content, list)
        else []
        if content is None or isinstance(content, str)
        else [content]
    )
    told = [
        body.get(key) for key in (*REASONING_KEYS, "tool_calls", "function_call", "refusal", "name")
    ]
    odd = [
        part
        for part in others
        if not (
            isinstance(part, dict)
            and (part.get("type") in MEDIA_PARTS or isinstance(part.get("text"), str))
        )
    ]
    return len(text_of(body)) + sum([_length(value) for value in [*told, *odd]])


def _length(value: object) -> int:
    return 0 if not value else len(value) if isinstance(value, str) else len(json_text(value))
