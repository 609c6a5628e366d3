"""Write the forms of a window's messages as JSON."""

import json
from collections.abc import Mapping, Sequence

from turnfold.core.window.rendering.entries import ShownForm, entry_of, planned_forms
from turnfold.core.window.window import WindowPlan
from turnfold.messages import Ids, MessageId
from turnfold.ports.query import (
    OriginalMessage,
)

Originals = Mapping[MessageId, OriginalMessage]
"""The stored messages of a window by id."""


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


def entry_json(ids: Ids, entry: ShownForm, originals: Originals) -> str:
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
