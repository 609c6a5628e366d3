"""Render a planned window as JSON texts. Whole messages are copied byte for byte."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnfold.core.text.caches import cached_text
from turnfold.core.text.calls import shorten_arguments
from turnfold.core.text.defuse import defused
from turnfold.core.text.fitting import longest
from turnfold.core.text.json_text import json_text, with_texts
from turnfold.core.text.tokens import (
    REASONING_FIELDS,
    Count,
    lines_of,
    text_of,
    token_upper_bound,
)
from turnfold.core.window.digest.digest import DigestText
from turnfold.core.window.forms import STAND_IN, WHOLE, TextCut, cut_mark
from turnfold.core.window.framing import Placement, beginning, wrapped_digests, wrapped_summary
from turnfold.core.window.views import (
    BlockContent,
    Entry,
    RecallEntry,
    RenderedTexts,
    ShownMessage,
    SynthesizedResult,
)
from turnfold.core.window.window import WindowPlan
from turnfold.messages import CompactionId, Ids, Message

MOST_CHARACTERS_A_TOKEN = 8
"""The search for the longest text starts below this ratio, which few texts exceed."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The messages of a window as JSON texts, and their ids (None if not a stored message).

    `summary_text` and `ledger` are the visible parts of the summary, empty if there are none.
    """

    messages: tuple[str, ...]
    message_ids: tuple[Ids, ...]
    summary_text: str
    ledger: tuple[str, ...]


def render(
    plan: WindowPlan,
    bodies: Mapping[int, str],
    *,
    digests: Mapping[CompactionId, str],
    summary_text: str = "",
    ledger: Sequence[str] = (),
    texts_of: Callable[[BlockContent, Mapping[int, str]], RenderedTexts],
) -> Rendered:
    """Add the texts to a plan.

    `bodies` holds the stored JSON of the plan's positions, `digests` the texts of its compactions.
    `texts_of` renders a block.
    """
    messages: list[str] = []
    ids: list[Ids] = []
    text, entries = visible_summary(plan, summary_text, ledger)
    framed = None
    if plan.summary is not None and plan.placement is not Placement.SEPARATE:
        framed = wrapped_summary(text, entries, plan.placement)
    if plan.pinned is not None:
        body = bodies[plan.pinned.position]
        if framed is not None and plan.placement is Placement.SYSTEM:
            body = _appended(body, framed)
        messages.append(body)
        ids.append(plan.pinned.message_id)
    if framed is not None and (plan.placement.is_message or plan.pinned is None):
        messages.append(_message("user" if plan.placement is Placement.USER else "system", framed))
        ids.append(None)
    if plan.digest.is_shown:
        messages.append(
            digest_message(plan.digest, tuple([digests[row] for row in plan.digest.compaction_ids]))
        )
        ids.append(None)
    for part in plan.parts:
        # Cached with the block, which the next window of the session mostly shows again.
        if part.texts is None:
            part.texts = texts_of(part, bodies)
        messages += part.texts.messages
        ids += part.texts.ids
    return Rendered(tuple(messages), tuple(ids), text, entries)


def visible_summary(
    plan: WindowPlan, summary_text: str, ledger: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """Return the parts of the summary that the plan shows."""
    form = plan.summary
    if form is None:
        return "", ()
    text, entries = _defused(summary_text, tuple(ledger))
    # Defusing keeps lengths, so the planned number of characters still holds.
    shown = text if form.characters is None else beginning(text, form.characters)
    return shown, entries[: form.entries]


def chat_texts(part: BlockContent, bodies: Mapping[int, str]) -> RenderedTexts:
    """Return the chat messages of a block."""
    ids = [ids_of(entry) for entry in part.entries]
    return RenderedTexts(tuple([_entry(entry, bodies) for entry in part.entries]), tuple(ids))


def ids_of(entry: Entry) -> Ids:
    """Return the id of an entry, or the ids of a response, which is one chat message."""
    if not isinstance(entry, ShownMessage):
        return None
    message_id = entry.message.message_id
    if not entry.joined:
        return message_id
    return (message_id, *[message.message_id for message in entry.joined])


def _entry(entry: Entry, bodies: Mapping[int, str]) -> str:
    if not isinstance(entry, ShownMessage) or entry.form.line is not None:
        return json_text(entry_body(entry, {}))
    body = bodies[entry.message.position]
    return body if entry.form is WHOLE else json_text(entry_body(entry, json.loads(body)))


def entry_position(entry: Entry) -> int:
    """Return the position of a stored message; other messages sort after all of them."""
    return entry.message.position if isinstance(entry, ShownMessage) else 1 << 62


def entry_body(
    entry: Entry, body: dict[str, Any], count: Count = token_upper_bound
) -> dict[str, Any]:
    """Return the message of an entry. `body` is a copy of the stored message, and is modified.

    `count` measures shortened arguments. The default is an upper bound that needs no tokenizer,
    and keeps less of them.
    """
    match entry:
        case RecallEntry():
            raise ValueError("the recall block is rendered when it is planned")
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
        # Under any provider's name for it.
        for key in REASONING_FIELDS:
            body.pop(key, None)
    if form.cut is not None:
        # The cut counts characters of the joined text, so parts become one text.
        body["content"] = shortened_text(text_of(body), form.cut)
    if form.arguments:
        entries = calls_by_slot(shown, body)
        for call in message.calls:
            if (cap := form.arguments.get(call.slot)) is not None:
                shorten = partial(
                    shortened_arguments, max_tokens=cap, original_tokens=call.tokens, count=count
                )
                shorten_arguments(entries[call.slot], shorten)
    return body


def calls_by_slot(shown: ShownMessage, body: Mapping[str, Any]) -> dict[int, Any]:
    """Return the calls of a message in its form; a mended one lacks those that may not be sent."""
    calls = body.get("tool_calls") or ()
    if shown.form.is_mended:
        return dict(zip([call.slot for call in shown.message.calls], calls, strict=True))
    return dict(enumerate(calls))


def _mend(body: dict[str, Any], message: Message) -> None:
    """Remove calls that the model's API would reject."""
    if message.calls:
        body["tool_calls"] = [body["tool_calls"][call.slot] for call in message.calls]
        return
    body.pop("tool_calls", None)
    if body.get("content") is None:
        body["content"] = ""


def shortened_text(text: str, cut: TextCut) -> str:
    """Apply a cut to a text."""
    return text[: cut.head] + cut_mark(cut, lines_of(text[cut.head : cut.tail])) + text[cut.tail :]


def shortened_arguments(
    arguments: object, max_tokens: int, original_tokens: int, count: Count = token_upper_bound
) -> str:
    """Shorten arguments to a JSON object within `max_tokens`.

    Each long string in them is cut. If that is not enough, the object holds one preview of all.
    """
    written = arguments if isinstance(arguments, str) else json_text(arguments)
    mark = f"[TRUNCATED original~{original_tokens} tokens]"

    def clipped(characters: int) -> str:
        def clip(text: str) -> str:
            return text if len(text) <= characters + len(mark) else text[:characters] + mark

        return json_text(with_texts(value, clip))

    def preview(characters: int) -> str:
        return json_text({"preview": f"{written[:characters]}{mark}"})

    shortened = None
    # Arguments that are not JSON, or nested too deeply, are a text.
    with suppress(ValueError, RecursionError):
        value = json.loads(written)
        if isinstance(value, dict):
            most = min(len(written), MOST_CHARACTERS_A_TOKEN * max_tokens)
            shortened = longest(clipped, most, max_tokens, count)
    return shortened or longest(preview, len(written), max_tokens, count) or "{}"


def _appended(body: str, text: str) -> str:
    """Append text to a system message."""
    message = json.loads(body)
    content = message.get("content")
    if isinstance(content, str) and content:
        message["content"] = f"{content}\n\n{text}"
    elif isinstance(content, list):
        message["content"] = [*content, {"type": "text", "text": text}]
    else:
        message["content"] = text
    return json_text(message)


@cached_text(128)
def _defused(text: str, ledger: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Escape the text and ledger of a version. Cached, because all its windows show the same."""
    return defused(text), tuple([defused(entry) for entry in ledger])


@cached_text(128)
def digest_message(digest: DigestText, digests: tuple[str, ...]) -> str:
    """Return the message with a digest. Cached, because it stays the same until the next trim."""
    if not digest.is_framed:
        return _message("user", digest.text)
    return _message("user", wrapped_digests([*digests, digest.text] if digest.text else digests))


def _message(role: str, content: str) -> str:
    return json_text({"role": role, "content": content})


def _result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}
