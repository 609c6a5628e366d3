"""Write the gist of a message, when it is stored. See `turnfold.core.history.gist`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from turnfold.core.history.gist import (
    SEAM_TOKENS,
    SEPARATOR,
    SHORT_CHARACTERS,
    Gist,
    Item,
    RankedValue,
    best_values,
    call_text,
    encode,
    encode_short,
    is_told_from_body,
    opening_of,
    stated_values,
)
from turnfold.core.summary.eviction_digest import main_arguments
from turnfold.core.summary.ledger.collect import values_of_call
from turnfold.core.text.calls import arguments_of
from turnfold.core.text.defuse import defused
from turnfold.core.text.json_text import compact
from turnfold.core.text.lines import printable, whole_words
from turnfold.core.text.tokens import Count, text_of
from turnfold.core.text.values import KIND_WEIGHTS, RANK_BY_CALL
from turnfold.messages import Json, ToolCall

READ_CHARACTERS: Final = 2_000
MOST_CALLS: Final = 32
"""Caps of one gist. Calls beyond the cap are named by their tool and file alone."""


def write_gist(body: Json, calls: Sequence[ToolCall], count: Count) -> str:
    """Return the encoded gist of a chat message; empty if its body suffices or shows nothing.

    `calls` are those of its calls that may be sent.
    """
    role, content = body.get("role"), body.get("content")
    if role == "user" and isinstance(content, str):
        # Most messages of users end here.
        return "" if is_told_from_body(content) else _gist_of_user(content, None, count)
    text_tokens = count(text_of(body)) if isinstance(content, list) else None
    if role == "user":
        return _gist_of_user(text_of(body), text_tokens, count)
    is_told = role == "assistant" and (calls or isinstance(content, list))
    return _gist_of_calls(body, calls[:MOST_CALLS], text_tokens, count) if is_told else ""


def _gist_of_user(text: str, text_tokens: int | None, count: Count) -> str:
    opening = opening_of(text)
    item = Item(opening, _tokens(opening, count))
    if text_tokens is None and len(text) <= SHORT_CHARACTERS:
        return encode_short(item) if opening else ""
    values = _counted(stated_values(whole_words(text, READ_CHARACTERS)), count)
    return encode(Gist(item if opening else None, (), values, text_tokens))


def _gist_of_calls(
    body: Json, calls: Sequence[ToolCall], text_tokens: int | None, count: Count
) -> str:
    arguments = [_arguments(body, call) for call in calls]
    texts = [
        call_text(printable(call.name), printable(main_arguments(argument, call.path)))
        for call, argument in zip(calls, arguments, strict=True)
    ]
    ranked = [
        (value, RANK_BY_CALL + KIND_WEIGHTS[value.kind])
        for call, argument in zip(calls, arguments, strict=True)
        for value in values_of_call(printable(call.name), argument)
    ]
    items = tuple([Item(text, _tokens(text, count)) for text in texts])
    return encode(Gist(None, items, _counted(best_values(ranked), count), text_tokens))


def _counted(values: Iterable[tuple[str, int]], count: Count) -> tuple[RankedValue, ...]:
    shown = [(defused(text), rank) for text, rank in values]
    return tuple([RankedValue(text, _tokens(text, count), rank) for text, rank in shown])


def _tokens(text: str, count: Count) -> int:
    return SEAM_TOKENS + count(SEPARATOR + text)


def _arguments(body: Mapping[str, Any], call: ToolCall) -> str:
    arguments = arguments_of(body["tool_calls"][call.slot])
    if arguments is None:
        return ""
    return (arguments if isinstance(arguments, str) else compact(arguments))[:READ_CHARACTERS]
