"""Render the blocks of a window as items of the Responses API.

Items that were stored in this shape are copied byte for byte, unless the window shortens them.
Other messages are converted.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from turnfold.core.shapes.responses import (
    CALL,
    CUSTOM,
    FUNCTION,
    MESSAGE,
    OUTPUT,
    REASONING,
    chat_views,
    is_call,
    is_of_model,
    items_of,
    kind_of,
    output_of,
    response_message,
    texts_of_item,
)
from turnfold.core.text.json_text import json_text
from turnfold.core.window.forms import WHOLE
from turnfold.core.window.rendering.render import calls_by_slot, entry_body, entry_position
from turnfold.core.window.views import (
    BlockContent,
    Entry,
    RecallEntry,
    RenderedTexts,
    ShownMessage,
)
from turnfold.messages import Ids, Message, MessageId, Shape

_OWN_OUTPUTS: Final = (FUNCTION, CUSTOM)
"""The types of calls whose output may be any text."""
_APPROVAL: Final = "mcp_approval_"
_REQUEST: Final = f"{_APPROVAL}request"
_ANSWER: Final = f"{_APPROVAL}response"


def items_of_part(part: BlockContent, bodies: Mapping[int, str]) -> RenderedTexts:
    """Return the items of a block, and the message id of each.

    `bodies` holds the elements of messages that were stored as items, and chat messages otherwise.
    """
    head, *rest = part.entries
    if not isinstance(head, ShownMessage):
        return part.texts or RenderedTexts((), ())
    if is_item(head.message):
        shown, calls, rest = _items_of_response(head, rest, bodies)
    else:
        body = json.loads(bodies[head.message.position])
        items = items_of(body if head.form is WHOLE else entry_body(head, body))
        calls = {str(item["call_id"]): kind_of(item) for item in items if is_call(item)}
        shown = [(head.message.message_id, json_text(item)) for item in items]
    outputs = [
        (entry.message.message_id if isinstance(entry, ShownMessage) else None) for entry in rest
    ]
    return RenderedTexts(
        (*(text for _, text in shown), *(_output(entry, calls, bodies) for entry in rest)),
        (*(message_id for message_id, _ in shown), *outputs),
    )


def _items_of_response(
    head: ShownMessage, rest: list[Entry], bodies: Mapping[int, str]
) -> tuple[list[tuple[MessageId, str]], dict[str, str], list[Entry]]:
    """Return the items of a response with their ids, the types of its calls, and its outputs."""
    rows = (head.message, *head.joined)
    items = [json.loads(bodies[row.position]) for row in rows]
    calls = _kinds(items, head.message)
    # The state as of a message in mid-response lacks the calls after it.
    known = tuple([call for call in head.message.calls if call.call_id in calls])
    if len(known) < len(head.message.calls):
        head = head._replace(message=replace(head.message, calls=known))
    as_functions = _called_as_functions(head, rest, calls, bodies)
    own = [(row.message_id, bodies[row.position]) for row in rows]
    shown = (
        own
        if head.form is WHOLE and not as_functions
        else _shortened(head, own, items, as_functions)
    )
    # An output that came first stands first: in a block, results are in the order of calls.
    outputs = sorted([entry for entry in rest if _call_id(entry) in calls], key=entry_position)
    return shown, calls | dict.fromkeys(as_functions, FUNCTION), outputs


def _called_as_functions(
    head: ShownMessage, rest: list[Entry], calls: Mapping[str, str], bodies: Mapping[int, str]
) -> set[str]:
    """Return the ids of the answered calls that are shown as calls of functions."""
    caps = head.form.arguments or {}
    answered = [
        (entry, entry.call)
        for entry in rest
        if not isinstance(entry, RecallEntry) and entry.call is not None
    ]
    return {
        call.call_id
        for entry, call in answered
        if (kind := calls.get(call.call_id, FUNCTION)) not in _OWN_OUTPUTS
        and (call.slot in caps or not _is_own_output(entry, kind, bodies))
    }


def is_item(message: Message) -> bool:
    """Return whether a message was stored as an item."""
    return message.element.shape is Shape.RESPONSES


def item_text(text: str) -> str:
    """Return a chat message without calls as the text of an item."""
    (item,) = items_of(json.loads(text))
    return json_text(item)


def sendable(texts: Sequence[str], ids: Sequence[Ids]) -> tuple[tuple[str, ...], tuple[Ids, ...]]:
    """Return items as the API takes them.

    Reasoning that no item of its response follows is left out, and the answer to a request for
    approval that the window does not show becomes a message.
    """
    kept: list[tuple[str, Ids]] = []
    is_followed = False
    for text, message_id in zip(reversed(_with_requests(texts)), reversed(ids), strict=True):
        item = json.loads(text) if f'"{REASONING}"' in text or not kept else None
        is_reasoning = item is not None and kind_of(item) == REASONING
        if is_reasoning and not is_followed:
            # The list is built from its end, so its last text is the one that follows.
            if not kept or not is_of_model(json.loads(kept[-1][0])):
                continue
            is_followed = True
        elif not is_reasoning:
            is_followed = False
        kept.append((text, message_id))
    kept.reverse()
    return tuple([text for text, _ in kept]), tuple([message_id for _, message_id in kept])


def _with_requests(texts: Sequence[str]) -> list[str]:
    """Return items of which each answer to a request for approval has its request."""
    requested: set[str] = set()
    shown: list[str] = []
    for text in texts:
        # Few items are of these types, and JSON takes long to read.
        item = json.loads(text) if _APPROVAL in text else {}
        kind = kind_of(item)
        if kind == _REQUEST:
            # An id may be any JSON.
            requested.add(str(item.get("id")))
        is_alone = kind == _ANSWER and str(item.get("approval_request_id")) not in requested
        shown.append(item_text(json_text(_chat_of(item))) if is_alone else text)
    return shown


def _kinds(items: Iterable[Mapping[str, Any]], head: Message) -> dict[str, str]:
    """Return the type of each call by its id, without calls that cannot be sent."""
    kinds = [kind_of(item) for item in items if is_call(item)]
    return {call.call_id: kinds[call.slot] for call in head.calls if call.slot < len(kinds)}


def _is_own_output(entry: Entry, kind: str, bodies: Mapping[int, str]) -> bool:
    """Return whether a result is a whole item of the type that answers calls of this type."""
    if not isinstance(entry, ShownMessage) or entry.form is not WHOLE or not is_item(entry.message):
        return False
    output = kind_of(json.loads(bodies[entry.message.position]))
    return output in (kind + OUTPUT, kind.removesuffix(CALL) + OUTPUT)


def _call_id(entry: Entry) -> str | None:
    return None if isinstance(entry, RecallEntry) or entry.call is None else entry.call.call_id


def _shortened(
    shown: ShownMessage,
    own: Sequence[tuple[MessageId, str]],
    items: Sequence[dict[str, Any]],
    as_functions: set[str],
) -> list[tuple[MessageId, str]]:
    """Return the items of a message in its form; calls in `as_functions` become function calls."""
    if not is_of_model(items[0]):
        (item,), ((message_id, _),) = items, own
        content = entry_body(shown, _chat_of(item))["content"]
        return [(message_id, json_text(item | {"content": content}))]
    body = entry_body(shown, response_message(items))
    entries = calls_by_slot(shown, body)
    caps = shown.form.arguments or {}
    kept: list[tuple[MessageId, str]] = []
    slot, is_cut = -1, False
    for item, (message_id, text) in zip(items, own, strict=True):
        if is_call(item):
            slot += 1
            if slot in entries:
                is_same = slot not in caps and item.get("call_id") not in as_functions
                kept.append((message_id, text if is_same else _call(item, entries[slot])))
        elif shown.form.cut is None or not texts_of_item(item):
            kept.append((message_id, text))
        elif not is_cut:
            is_cut = True
            kept.append((message_id, json_text(_said(item, body["content"]))))
    return kept


def _chat_of(item: Mapping[str, Any]) -> dict[str, Any]:
    return chat_views([item], [""])[0].message


def _said(item: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a message of the model with this text instead of its own."""
    said = {"type": "output_text", "text": text, "annotations": []}
    if kind_of(item) == MESSAGE:
        return {**item, "content": [said]}
    return {"type": MESSAGE, "role": "assistant", "content": [said]}


def _call(item: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return a call with the arguments of its chat view."""
    (call,) = items_of({"role": "assistant", "content": None, "tool_calls": [entry]})
    return json_text({**item, **call} if kind_of(item) in _OWN_OUTPUTS else call)


def _output(entry: Entry, calls: Mapping[str, str], bodies: Mapping[int, str]) -> str:
    """Return the output of a call."""
    call_id = _call_id(entry)
    kind = calls.get(call_id or "", FUNCTION)
    if not isinstance(entry, ShownMessage) or not is_item(entry.message):
        chat = (
            json.loads(bodies[entry.message.position])
            if isinstance(entry, ShownMessage) and entry.form.line is None
            else {}
        )
        if not isinstance(entry, ShownMessage) or entry.form is not WHOLE:
            chat = entry_body(entry, chat)
        return json_text(output_of(chat, kind))
    text = bodies[entry.message.position]
    # A call that became a function call, or was published as one, has no output of another type.
    if entry.form is WHOLE and (kind not in _OWN_OUTPUTS or f'"{kind}{OUTPUT}"' in text):
        return text
    item = json.loads(text)
    output = output_of(entry_body(entry, _chat_of(item)), kind)
    return json_text({**item, **output} if kind_of(item) == output["type"] else output)
