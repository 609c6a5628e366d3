"""Render a window in the shape that its request asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from turnfold.core.window.rendering.blocks import blocks_of_part
from turnfold.core.window.rendering.items import is_item, item_text, items_of_part, sendable
from turnfold.core.window.rendering.render import Rendered, chat_texts, render
from turnfold.core.window.views import BlockContent, RenderedTexts
from turnfold.core.window.window import WindowPlan
from turnfold.messages import CompactionId, Shape

_TEXTS: Final[Mapping[Shape, Callable[[BlockContent, Mapping[int, str]], RenderedTexts]]] = {
    Shape.CHAT: chat_texts,
    Shape.RESPONSES: items_of_part,
    Shape.ANTHROPIC: blocks_of_part,
}


def render_shaped(
    plan: WindowPlan,
    bodies: Mapping[int, str],
    *,
    digests: Mapping[CompactionId, str],
    summary_text: str = "",
    ledger: Sequence[str] = (),
) -> Rendered:
    """Add the texts to a plan, in its shape; `bodies` holds elements where the plan asks for them.

    Messages in the shape of Anthropic are merged later, by `to_anthropic`.
    """
    rendered = render(
        plan,
        bodies,
        digests=digests,
        summary_text=summary_text,
        ledger=ledger,
        texts_of=_TEXTS[plan.shape],
    )
    if plan.shape is not Shape.RESPONSES:
        return rendered
    before = len(rendered.messages) - sum(
        [len(part.texts.messages) for part in plan.parts if part.texts]
    )
    texts = list(rendered.messages)
    is_stored = plan.pinned is not None and is_item(plan.pinned) and plan.shows_pinned_as_stored
    # A system message that was stored as an item comes first, and stays verbatim.
    for place in range(is_stored, before):
        texts[place] = item_text(texts[place])
    messages, ids = sendable(texts, rendered.message_ids)
    return replace(rendered, messages=messages, message_ids=ids)
