"""Write the answer of `context.get`, whose model is `turnfold.contracts.answers.window`.

It is written field by field, because a JSON encoder that runs only now and then is slow each time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from json.encoder import encode_basestring_ascii as _quoted

from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.rendering.entries import ShownForm, entry_of, planned_forms
from turnfold.core.window.rendering.render import Rendered
from turnfold.core.window.window import WindowAccount, WindowPlan, billed
from turnfold.messages import Ids, MessageId
from turnfold.operations.query.planning import PlannedWindow
from turnfold.operations.query.replies import rfc3339, shown_summary_json
from turnfold.ports.query import OriginalMessage, PendingEviction

Originals = Mapping[MessageId, OriginalMessage]
"""The stored messages of a window by id."""

_COUNTS = tuple([count.name for count in fields(WindowAccount)])


def window_json(planned: PlannedWindow, rendered: Rendered, originals: Originals) -> bytes:
    """Write a window in the format that its request asks for; messages are copied, not parsed.

    `originals` are the shown messages as stored, if the request asks for their forms.
    """
    plan, request, system, entries = planned.plan, planned.request, "", ""
    messages: Sequence[str] = rendered.messages
    message_ids: Sequence[Ids] = rendered.message_ids
    if planned.is_anthropic:
        shape = to_anthropic(plan, rendered)
        messages, message_ids = shape.messages, shape.message_ids
        system = f'"system": {json.dumps(shape.system)}, '
    if request.entries or request.bodies == "changed":
        shown = shown_entries(plan, messages, message_ids, originals)
        if request.entries:
            pairs = zip(message_ids, shown, strict=True)
            written = [_entry_json(ids, entry, originals) for ids, entry in pairs]
            entries = f'"entries": [{", ".join(written)}], '
        if request.bodies == "changed":
            messages = [
                "null" if entry.form == "whole" else text
                for text, entry in zip(messages, shown, strict=True)
            ]
    ids = ", ".join(
        [_quoted(ids) if isinstance(ids, str) else json.dumps(ids) for ids in message_ids]
    )
    budget = "null" if plan.budget_tokens is None else plan.budget_tokens
    counts = ", ".join([f'"{name}": {getattr(plan.account, name)}' for name in _COUNTS])
    head = (
        f'{{"agent_id": {_quoted(planned.key.agent_id)}, '
        f'"session_id": {_quoted(planned.key.session_id)}, '
        f'"fresh": {"true" if planned.is_fresh else "false"}, "etag": "{planned.etag}", '
        f'"refused": {planned.snapshot.refused}, '
        f'"summary": {shown_summary_json(planned.snapshot.summary, rendered)}, '
        f'{system}"messages": ['
    )
    tail = (
        f'], "message_ids": [{ids}], {entries}'
        f'"window": {{"tokens": {plan.tokens}, "budget_tokens": {budget}, '
        f'"messages": {len(messages)}, "model_window": {planned.model_window}}}, '
        f'"account": {{{counts}}}, '
        f'"recall": {_recall_json(planned)}, "pending": {_pending_json(planned.snapshot.pending)}}}'
    )
    # Each text by itself: one non-ASCII character would make a joined string several times as
    # large.
    return b"".join(
        (head.encode(), b", ".join([message.encode() for message in messages]), tail.encode())
    )


def shown_entries(
    plan: WindowPlan, messages: Sequence[str], message_ids: Sequence[Ids], originals: Originals
) -> list[ShownForm]:
    """Return one entry per message of an answer, in the format that it has."""
    forms = planned_forms(plan)
    # A chat message cannot have other JSON as its content: no window shows it as published.
    published = {
        message_id: original.element or original.body
        for message_id, original in originals.items()
        if original.original_content is None
    }
    return [
        entry_of(text, ids, forms, published)
        for text, ids in zip(messages, message_ids, strict=True)
    ]


def _entry_json(ids: Ids, entry: ShownForm, originals: Originals) -> str:
    """Write an entry, with what was carried for its message."""
    fields = json.dumps({"id": ids, "form": entry.form, "without": entry.without})
    carried = [
        None if message_id is None or message_id not in originals else originals[message_id].carry
        for message_id in (ids if isinstance(ids, tuple) else (ids,))
    ]
    if not any(carried):
        return fields
    texts = [text or "null" for text in carried]
    carry = f"[{', '.join(texts)}]" if isinstance(ids, tuple) else texts[0]
    return f'{fields[:-1]}, "carry": {carry}}}'


def _pending_json(pending: Sequence[PendingEviction]) -> str:
    since = _quoted(rfc3339(min(row.requested_at_ms for row in pending))) if pending else "null"
    messages = sum([row.messages for row in pending])
    tokens = sum([row.tokens for row in pending])
    return f'{{"messages": {messages}, "tokens": {tokens}, "since": {since}}}'


def _recall_json(planned: PlannedWindow) -> str:
    if planned.recall is None or planned.block is None:
        return "null"
    block = planned.block
    return json.dumps(
        {
            "tokens": billed(block.tokens, planned.stored.factor),
            "messages": len(block.positions),
            "message_ids": block.message_ids,
            "is_partial": planned.recall.is_partial,
            "indexed_to": planned.recall.recollection.indexed_to,
        }
    )
