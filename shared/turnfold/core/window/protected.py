"""Shorten protected parts of a window: the last resort of the ladder, only as far as needed.

The newest request, the results that the model has not seen, and the summary are shortened before
any of them is left out.
"""

from collections.abc import Callable
from typing import Final

from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.digest.digest import DigestForm
from turnfold.core.window.forms import (
    LEAST_ARGUMENTS_TOKENS,
    LEAST_CHARACTERS,
    cut_within,
)
from turnfold.core.window.leveling import level, level_sizes
from turnfold.core.window.views import BlockView, MessageView

Step = Callable[[WindowBuilder], None]

MOST_REASONING: Final = 0.9
"""The largest share of the room beside the system message that the newest reasoning takes."""


def trim_protected(window: WindowBuilder, *, is_for_recall: bool = False) -> None:
    """Shorten protected messages, only as far as needed, after every other step.

    Room for recall may cost a part of digest and summary, but no part of a message.
    """
    for step in STEPS_FOR_RECALL if is_for_recall else PROTECTED_STEPS:
        if window.total <= window.limits.tokens:
            return
        step(window)


def _preview_unseen_arguments(window: WindowBuilder) -> None:
    """Replace long arguments by previews, no shorter than needed."""
    policy = window.policy
    if block := window.unseen:
        window.looked_at += len(block.results)
        cap = max(
            policy.preview_tokens,
            LEAST_ARGUMENTS_TOKENS,
            level_sizes(block.head.arguments_sizes, window.total - window.limits.tokens),
        )
        window.apply(
            block,
            block.head,
            lambda view: view.preview_arguments(max(cap, policy.arguments_max_tokens), cap),
        )


def _level_unseen(window: WindowBuilder) -> None:
    """Shorten the longest texts, arguments and results of the block to one length."""
    if block := window.unseen:
        level(window, [block], window.limits.tokens, least=window.policy.preview_tokens)


def _reduce_unseen(window: WindowBuilder) -> None:
    """Shorten each part of the block as far as possible, one after the other."""
    block = window.unseen
    if block is None:
        return
    results = [view for view in block.results if view is not None]
    window.looked_at += len(block.results)
    # Lines come first, because they name the id of the original, which marks do not.
    for shorten in (
        lambda view: view.to_line(window.line_starts),
        MessageView.to_mark,
    ):
        for view in results:
            if window.total > window.limits.tokens:
                window.apply(block, view, shorten)
    level(window, [block], window.limits.tokens, least=LEAST_ARGUMENTS_TOKENS)
    if window.total > window.limits.tokens:
        window.apply(block, block.head, MessageView.to_mark)


def _shorten_request(window: WindowBuilder) -> None:
    """Cut the newest request, or without one the newest block, to its beginning."""
    block = window.request or window.unseen or (window.blocks[-1] if window.blocks else None)
    if block is not None and block.is_shown:
        _keep_beginning(window, block)


def _cut_summary(window: WindowBuilder) -> None:
    """Shorten the summary to the tokens that the rest of the window leaves."""
    if window.summary is not None:
        window.show_summary(window.summary.tokens - (window.total - window.limits.tokens))


def _shorten_interrupted_request(window: WindowBuilder) -> None:
    """Keep only the beginning of a request that a newer one interrupted."""
    if window.interrupted_request is not None:
        _keep_beginning(window, window.interrupted_request)


def _keep_beginning(window: WindowBuilder, block: BlockView) -> None:
    view = block.head
    room = view.text - (window.total - window.limits.tokens)
    window.apply(block, view, lambda view: view.shorten_to(room, least_head=LEAST_CHARACTERS))


def drop_excessive_reasoning(window: WindowBuilder) -> None:
    """Remove the newest reasoning first if it leaves no room for anything else.

    Otherwise everything else would be left out for it, before it leaves as well. A response whose
    reasoning is an item of its own leaves as a whole.
    """
    if window.total <= window.budget_tokens or not window.blocks:
        return
    pinned = window.prefix.pinned
    room = window.budget_tokens - (pinned.tokens if pinned else 0)
    if window.blocks[-1].head.message.reasoning_tokens > MOST_REASONING * room:
        _drop_newest_reasoning(window)
    # The model may have seen the results of the last two since the last trim.
    for block in (window.hopeless, *window.blocks[-2:]):
        if block is None or not block.is_shown or window.is_protected(block):
            continue
        if _fixed_tokens(block) > MOST_REASONING * room:
            window.leave_out(block)


def is_hopeless(window: WindowBuilder) -> bool:
    """Return whether calls must stay that no trim makes fit, and remember their block."""
    block = window.unseen
    # Its parts are added up once, not with each of its results.
    if block and block is not window.hopeless and _fixed_tokens(block) > window.budget_tokens:
        window.hopeless = block
    return block is not None and block is window.hopeless


def _fixed_tokens(block: BlockView) -> int:
    """Return the tokens of a response that cannot be shortened, such as its items of reasoning."""
    message = block.head.message
    shortened = message.content_tokens + message.reasoning_tokens
    joined = sum([view.tokens for view in block.joined])
    return message.tokens - shortened - sum([call.tokens for call in message.calls]) + joined


def _drop_newest_reasoning(window: WindowBuilder) -> None:
    for block in (window.request, window.unseen, window.blocks[-1] if window.blocks else None):
        if block is not None and block.is_shown and window.total > window.limits.tokens:
            window.apply(block, block.head, MessageView.drop_reasoning)


def leave_out_oldest(window: WindowBuilder, is_enough: Callable[[], bool]) -> None:
    """Leave out the oldest blocks, of any priority, until it is enough."""
    for block in window.oldest(is_enough):
        window.leave_out(block)


def is_worth_folding(window: WindowBuilder) -> bool:
    """Return whether leaving out all possible blocks frees more tokens than their digest takes."""
    if window.digest.size:
        return True
    leaving = [
        block for block in window.blocks if block.is_shown and not window.is_protected(block)
    ]
    return sum([block.tokens for block in leaving]) > window.digest.first_cost


def _fold_for_count(window: WindowBuilder) -> None:
    """Leave out blocks that take less than their full digest, but more than a count of them."""
    if is_worth_folding(window):
        leave_out_oldest(window, lambda: not window.is_over)


def _fold_rest(window: WindowBuilder) -> None:
    """Leave out blocks that stayed because even a count of them takes more tokens."""
    leave_out_oldest(window, lambda: not window.is_over)


# Results go before the summary and an interrupted request, and the newest request is cut last. The
# digest becomes shorter if that suffices to keep a text, and empty only as the last resort.
PROTECTED_STEPS: Final[tuple[Step, ...]] = (
    _preview_unseen_arguments,
    lambda window: window.shorten_digest(DigestForm.NAMES),
    lambda window: cap_unseen(window, window.policy.preview_tokens),
    _cut_summary,
    _shorten_interrupted_request,
    _level_unseen,
    _reduce_unseen,
    lambda window: window.shorten_digest(DigestForm.SHORT),
    _fold_for_count,
    _shorten_request,
    _drop_newest_reasoning,
    _fold_rest,
    lambda window: window.shorten_digest(DigestForm.NONE),
)
STEPS_FOR_RECALL: Final[tuple[Step, ...]] = (
    lambda window: window.shorten_digest(DigestForm.NAMES),
    _cut_summary,
)


def cap_unseen(
    window: WindowBuilder, least: int, max_characters: int = 0, *, spares_truncated: bool = False
) -> None:
    """Shorten the longest unseen results, none below `least` tokens, until the window fits.

    With `spares_truncated`, results that their publisher has cut stay as they are.
    """
    block = window.unseen
    excess = window.total - window.limits.tokens
    if block is None or excess <= 0:
        return
    window.looked_at += len(block.results)
    views = [
        view
        for view in block.results
        if view is not None
        and view.line is None
        and not (spares_truncated and view.message.is_truncated)
    ]
    cap = max(least, level_sizes([view.text for view in views], excess))

    def shorten(view: MessageView) -> None:
        view.shorten(
            cut_within(
                view.message,
                view.offsets,
                max_tokens=cap,
                max_characters=max_characters,
                is_brief=False,
            )
        )

    for view in views:
        if view.text > cap:
            window.apply(block, view, shorten)
