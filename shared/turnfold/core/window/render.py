"""A planned window as JSON texts: what is shown whole is spliced in byte for byte."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnfold.core.text.markers import defused
from turnfold.core.text.tokens import Count, lines_of, text_of, token_upper_bound
from turnfold.core.window.framing import Placement, wrapped_digests, wrapped_summary
from turnfold.core.window.truncation import STAND_IN, WHOLE, TextCut, cut_mark
from turnfold.core.window.views import (
    BlockContent,
    Entry,
    RenderedTexts,
    ShownMessage,
    SynthesizedResult,
)
from turnfold.core.window.window import WindowPlan
from turnfold.messages import CompactionId, Message, MessageId

MOST_CHARACTERS_A_TOKEN = 8
"""No text is tried that is longer than so many to the token: few are that cheap."""
NEARLY = 16
"""A text that could be a sixteenth longer is long enough."""
REASONING_KEYS = ("reasoning_content", "thinking_blocks")


@dataclass(frozen=True, slots=True)
class Rendered:
    """The messages of a window as JSON texts, and the id of each (None beside what is no stored message).

    `summary_text` and `ledger` are what is shown of the summary; empty where there is none, or no room for it.
    """

    messages: tuple[str, ...]
    message_ids: tuple[MessageId | None, ...]
    summary_text: str
    ledger: tuple[str, ...]


def render(
    plan: WindowPlan,
    bodies: Mapping[int, str],
    *,
    digests: Mapping[CompactionId, str],
    summary_text: str = "",
    ledger: Sequence[str] = (),
) -> Rendered:
    """Put texts to a plan. `bodies` holds the stored JSON of each of the plan's positions, `digests` those it names."""
    messages: list[str] = []
    ids: list[MessageId | None] = []
    shown = plan.summary
    whole, every = _defused(summary_text, tuple(ledger))
    text = "" if shown is None else whole[: shown.characters]
    entries = every if shown is not None and shown.with_ledger else ()
    wrapped = None
    if shown is not None and plan.placement is not Placement.SEPARATE:
        wrapped = wrapped_summary(text, entries, plan.placement)
    if plan.pinned is not None:
        body = bodies[plan.pinned.position]
        messages.append(
            _appended(body, wrapped)
            if wrapped is not None and plan.placement is Placement.SYSTEM
            else body
        )
        ids.append(plan.pinned.message_id)
    if wrapped is not None and (plan.placement.is_message or plan.pinned is None):
        messages.append(_message("user" if plan.placement is Placement.USER else "system", wrapped))
        ids.append(None)
    if plan.digests:
        messages.append(_digests(tuple([digests[row] for row in plan.digests])))
        ids.append(None)
    for part in plan.parts:
        if part.texts is None:
            part.texts = _texts(part, bodies)
        messages += part.texts.messages
        ids += part.texts.ids
    return Rendered(tuple(messages), tuple(ids), text, entries)


def _texts(part: BlockContent, bodies: Mapping[int, str]) -> RenderedTexts:
    ids = [
        entry.message.message_id if isinstance(entry, ShownMessage) else None
        for entry in part.entries
    ]
    return RenderedTexts(tuple([_entry(entry, bodies) for entry in part.entries]), tuple(ids))


def _entry(entry: Entry, bodies: Mapping[int, str]) -> str:
    if isinstance(entry, SynthesizedResult) or entry.form.line is not None:
        return json_text(entry_body(entry, {}))
    body = bodies[entry.message.position]
    return body if entry.form is WHOLE else json_text(entry_body(entry, json.loads(body)))


def entry_body(
    entry: Entry, body: dict[str, Any], count: Count = token_upper_bound
) -> dict[str, Any]:
    """The message that an entry shows; `body`, a copy of the stored one, is changed for it, unless a line stands in its place.

    `count` says how long shortened arguments may be: without a vocabulary at hand a bound does, at which less is shown.
    """
    match entry:
        case SynthesizedResult(call=call):
            return _result(call.call_id, STAND_IN)
        case ShownMessage(form=form, call=call):
            if form.line is not None and call is not None:
                return _result(call.call_id, form.line)
            return _shortened(entry, body, count)


def _shortened(shown: ShownMessage, body: dict[str, Any], count: Count) -> dict[str, Any]:
    message, form = shown.message, shown.form
    if form.is_mended:
        _mend(body, message)
    if form.without_reasoning:
        for key in REASONING_KEYS:
            body.pop(key, None)
    if form.cut is not None:
        body["content"] = shortened_text(text_of(body), form.cut)
    if form.arguments:
        for place, call in enumerate(message.calls):
            if call.slot in form.arguments:
                function = body["tool_calls"][place if form.is_mended else call.slot]["function"]
                function["arguments"] = shortened_arguments(
                    function.get("arguments"), form.arguments[call.slot], call.tokens, count
                )
    return body


def _mend(body: dict[str, Any], message: Message) -> None:
    """Leave out the calls that may not be sent."""
    if message.calls:
        body["tool_calls"] = [body["tool_calls"][call.slot] for call in message.calls]
        return
    body.pop("tool_calls", None)
    if body.get("content") is None:
        body["content"] = ""


def shortened_text(text: str, cut: TextCut) -> str:
    """The text as a cut leaves it, with the number of lines that are missing."""
    return text[: cut.head] + cut_mark(cut, lines_of(text[cut.head : cut.tail])) + text[cut.tail :]


def shortened_arguments(
    arguments: object, max_tokens: int, original_tokens: int, count: Count = token_upper_bound
) -> str:
    """Arguments within so many tokens that are still a JSON object: each long text in them cut short, else a preview of all."""
    written = arguments if isinstance(arguments, str) else json_text(arguments)
    mark = f"[TRUNCATED original~{original_tokens} tokens]"
    try:
        found = json.loads(written)
        if isinstance(found, dict):
            most = min(len(written), MOST_CHARACTERS_A_TOKEN * max_tokens)
            best = longest(
                lambda characters: json_text(_clipped(found, characters, mark)),
                most,
                max_tokens,
                count,
            )
            if best is not None:
                return best
    except (ValueError, RecursionError):
        pass  # what is no JSON, or nested too deep to be taken apart, is text
    preview = longest(
        lambda characters: json_text({"preview": f"{written[:characters]}{mark}"}),
        len(written),
        max_tokens,
        count,
    )
    return preview if preview is not None else "{}"


def longest(write: Callable[[int], str], most: int, max_tokens: int, count: Count) -> str | None:
    """What is written with nearly the most characters that stay within the tokens."""
    best = write(0)
    fixed = count(best)
    if fixed > max_tokens:
        return None
    # Aimed a little below, so that the next one is likely to be within.
    aim = max_tokens - fixed - max_tokens // (2 * NEARLY)
    # A first, short one shows how dense the text is.
    low, high, characters = 1, most, min(most, max(1, aim // 4))
    while low <= high:
        text = write(characters)
        tokens = count(text)
        if tokens <= max_tokens:
            best, low = text, characters + 1
            if max_tokens - tokens <= max_tokens // NEARLY:
                break
        else:
            high = characters - 1
        # Beyond what is always written, tokens grow about as characters do.
        likely = characters * aim // max(tokens - fixed, 1)
        characters = likely if low <= likely <= high else (low + high) // 2
    return best


def _clipped(value: Any, characters: int, mark: str) -> Any:
    if isinstance(value, str):
        return value if len(value) <= characters + len(mark) else value[:characters] + mark
    if isinstance(value, list):
        return [_clipped(item, characters, mark) for item in value]
    if isinstance(value, dict):
        return {key: _clipped(item, characters, mark) for key, item in value.items()}
    return value


def _appended(body: str, text: str) -> str:
    """A system message with more text at its end."""
    message = json.loads(body)
    content = message.get("content")
    if isinstance(content, str) and content:
        message["content"] = f"{content}\n\n{text}"
    elif isinstance(content, list):
        message["content"] = [*content, {"type": "text", "text": text}]
    else:
        message["content"] = text
    return json_text(message)


@lru_cache(maxsize=128)
def _defused(text: str, ledger: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A version's text and ledger as they may be shown; until the next version they are the same in every window."""
    return defused(text), tuple([defused(entry) for entry in ledger])


@lru_cache(maxsize=128)
def _digests(digests: tuple[str, ...]) -> str:
    """The message that tells of these; until a summary comes it is the same in every window."""
    return _message("user", wrapped_digests(digests))


def _message(role: str, content: str) -> str:
    return json_text({"role": role, "content": content})


def _result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def json_text(value: object) -> str:
    """Compact JSON that can be encoded: what holds half a character pair is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text
