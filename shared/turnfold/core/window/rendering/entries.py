"""Say in which form a window shows each message, so that a host keeps its own copy of the rest."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from turnfold.core.recall.block import HEADING as RECALL_HEADING
from turnfold.core.shapes.anthropic import is_thinking
from turnfold.core.shapes.responses import REASONING, kind_of
from turnfold.core.text.tokens import REASONING_FIELDS, text_of
from turnfold.core.window.framing import DIGEST_TITLE
from turnfold.core.window.framing import HEADING as SUMMARY_HEADING
from turnfold.core.window.views import ShownMessage
from turnfold.core.window.window import WindowPlan
from turnfold.messages import Ids, MessageId

EntryForm = Literal["whole", "cut", "line", "mended", "stand_in", "summary", "digest", "recall"]


class ShownForm(NamedTuple):
    """The form of one message of an answer.

    `whole` is the published message verbatim, `mended` another way to write all of it but what a
    format has no place for. `without` names parts that are left out or shortened.
    """

    form: EntryForm
    without: tuple[str, ...] = ()


_SHORTENED: Final[tuple[EntryForm, ...]] = ("line", "cut")
_HEADINGS: Final[tuple[tuple[EntryForm, str], ...]] = (
    ("summary", SUMMARY_HEADING),
    ("digest", DIGEST_TITLE),
    ("recall", RECALL_HEADING),
)
_MENDED: Final = ShownForm("mended")


def stored_positions(plan: WindowPlan) -> list[int]:
    """Return the positions of all stored messages in a window."""
    messages = [] if plan.pinned is None else [plan.pinned]
    for entry in plan.entries:
        if isinstance(entry, ShownMessage):
            messages += (entry.message, *entry.joined)
    return [message.position for message in messages]


def planned_forms(plan: WindowPlan) -> dict[MessageId, ShownForm]:
    """Return the form in which a plan shows each stored message, if that is shortened."""
    forms: dict[MessageId, ShownForm] = {}
    for entry in plan.entries:
        if isinstance(entry, ShownMessage) and not entry.form.is_whole:
            forms |= dict.fromkeys(
                [message.message_id for message in (entry.message, *entry.joined)],
                _planned(entry),
            )
    return forms


def entry_of(
    text: str, ids: Ids, forms: Mapping[MessageId, ShownForm], originals: Mapping[MessageId, str]
) -> ShownForm:
    """Return the form of one message of an answer.

    `text` is its JSON, in any format, `forms` are the planned ones, and `originals` the published
    messages as JSON; those that no format can show are not among them.
    """
    stored = [name for name in (ids if isinstance(ids, tuple) else (ids,)) if name is not None]
    if not stored:
        return ShownForm(_addition(text))
    if isinstance(ids, str) and _is_same(text, originals.get(ids)):
        return ShownForm("whole")
    parts = [forms.get(message_id, _MENDED) for message_id in stored]
    found = {part.form for part in parts}
    published = [originals[message_id] for message_id in stored if message_id in originals]
    without = _omissions(text, parts, published)
    # The strongest form of the merged messages shows that something is missing.
    for form in _SHORTENED:
        if form in found:
            return ShownForm(form, without)
    return ShownForm("mended", without)


def _omissions(text: str, parts: Sequence[ShownForm], published: Iterable[str]) -> tuple[str, ...]:
    """Return what a message lacks of the published messages that it is made of."""
    without = dict.fromkeys(name for part in parts for name in part.without)
    if any(map(_has_reasoning, published)) and not _has_reasoning(text):
        without["reasoning"] = None
    return tuple(without)


def _planned(shown: ShownMessage) -> ShownForm:
    form = shown.form
    without: list[str] = []
    if form.without_reasoning:
        without.append("reasoning")
    if form.arguments:
        without.append("arguments")
    if form.line is not None:
        return ShownForm("line", tuple(without))
    return ShownForm("cut" if form.cut is not None or without else "mended", tuple(without))


def _addition(text: str) -> EntryForm:
    """Return the kind of a message that is not stored, but written by this service."""
    written = text_of(json.loads(text))
    for form, heading in _HEADINGS:
        if written.startswith(heading):
            return form
    return "stand_in"


def _has_reasoning(text: str) -> bool:
    """Return whether a message has reasoning, in any format."""
    message = json.loads(text)
    content = message.get("content")
    if kind_of(message) == REASONING or any(message.get(name) for name in REASONING_FIELDS):
        return True
    return isinstance(content, list) and any(map(is_thinking, content))


def _is_same(text: str, original: str | None) -> bool:
    if original is None or text == original:
        return original is not None
    # Formats may order the fields of a message differently, and still show all of it.
    return _canonical(text) == _canonical(original)


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)
