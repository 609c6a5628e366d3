"""The ladder: the steps that shorten a window when it exceeds its limits.

`trim_to_budget` applies the steps of the policy's view in order, until the window is down to its
target. Numbers in parentheses are those of the requirements.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from turnfold.core.policy.presets import View
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.digest import DigestForm
from turnfold.core.window.sizes import level_sizes
from turnfold.core.window.truncation import (
    LEAST_ARGUMENTS_TOKENS,
    LEAST_CHARACTERS,
    cut_characters,
    cut_to,
    cut_within,
)
from turnfold.core.window.views import BlockView, MessageView
from turnfold.messages import Role

Step = Callable[[WindowBuilder, int], None]

PLAIN_CHARACTERS: Final = 2_048
"""Shorter results always become the preview of (5), even if that frees more than needed."""


def trim_to_budget(window: WindowBuilder) -> None:
    """Trim a window that exceeds its limits to its targets, protected messages last."""
    if window.total > window.limits.tokens:
        for step in STEPS[window.policy.view]:
            if window.total <= window.limits.target_tokens:
                break
            step(window, window.limits.target_tokens)
        trim_protected(window)
    if window.size > window.limits.messages:
        window.fold_oldest(lambda: window.size <= window.limits.target_messages)
        if window.size > window.limits.messages:
            window.shorten_digest(DigestForm.NONE)


def trim_for_recall(window: WindowBuilder) -> None:
    """Trim a window further at the start or end of a turn, so that a recall block fits."""
    limits = window.limits
    window.limits = replace(
        limits, tokens=limits.arrival_tokens, target_tokens=limits.arrival_target_tokens
    )
    try:
        trim_to_budget(window)
    finally:
        window.limits = limits


def drop_old_reasoning(window: WindowBuilder, target: int) -> None:
    """(1) Remove long reasoning from before the latest round."""
    window.apply_step(
        window.candidates.with_reasoning, lambda _, view: view.drop_reasoning(), target
    )


def trim_large_results(window: WindowBuilder, target: int) -> None:
    """(2) Cut single large results to their first 20 and last 10 lines.

    If that frees far more than needed, keep as many lines as fit.
    """
    cap = window.policy.tool_result_max_chars

    def trim(_: BlockView, view: MessageView) -> int:
        brief = cut_within(
            view.message,
            view.offsets,
            max_tokens=window.soft_tokens,
            max_characters=cap,
            is_brief=True,
        )
        may_keep = view.text - (window.total - target)
        if brief is not None and may_keep - brief.tokens > window.large_waste_tokens:
            longer = cut_within(
                view.message, view.offsets, max_tokens=may_keep, max_characters=cap, is_brief=False
            )
            return view.shorten(longer or brief)
        return view.shorten(brief)

    window.apply_step(window.candidates.large_results, trim, target)


def replace_results(window: WindowBuilder, target: int) -> None:
    """(3) While all results together take too large a share, replace them by one line each.

    A result of which only a part must go is cut.
    """

    def replace(_: BlockView, view: MessageView) -> int:
        excess = window.total - target
        if view.text - excess > window.waste_tokens:
            freed = view.shorten(cut_to(view.message, view.offsets, view.text - excess))
            if freed >= excess:
                return freed
            return freed + view.to_line(window.line_starts)
        return view.to_line(window.line_starts)

    window.apply_step(
        window.candidates.seen_results,
        replace,
        target,
        above=int(window.policy.hard_ratio * window.limits.tokens),
    )


def shorten_long_texts(window: WindowBuilder, target: int) -> None:
    """(4) Cut very long texts of users and assistants in the middle."""

    def shorten(_: BlockView, view: MessageView) -> int:
        is_user = view.message.role is Role.USER
        cap = window.policy.user_max_chars if is_user else window.policy.assistant_max_chars
        return view.shorten(cut_characters(view.message, view.offsets, cap))

    window.apply_step(window.candidates.long_texts, shorten, target)


def preview_costly(window: WindowBuilder, target: int) -> None:
    """(5) Replace large arguments and results of calls that the model has seen by previews.

    The previews are longer if short ones would free far more than needed.
    """
    policy = window.policy

    def preview(_: BlockView, view: MessageView) -> int:
        excess = window.total - target
        if view.call is None:
            may_keep = level_sizes(view.arguments_sizes, excess)
            freed = (
                view.preview_arguments(policy.arguments_max_tokens, may_keep)
                if is_waste(may_keep)
                else 0
            )
            return freed or view.preview_arguments(
                policy.arguments_max_tokens, policy.preview_tokens
            )
        may_keep = view.text - excess
        is_softened = view.message.characters > PLAIN_CHARACTERS and is_waste(may_keep)
        freed = view.shorten(cut_to(view.message, view.offsets, may_keep)) if is_softened else 0
        return freed or view.shorten(
            cut_to(view.message, view.offsets, policy.preview_tokens, is_preview=True)
        )

    def is_waste(may_keep: int) -> bool:
        return may_keep - policy.preview_tokens > window.large_waste_tokens

    window.apply_step(window.candidates.costly, preview, target)


def cap_unseen_results(window: WindowBuilder, _: int) -> None:
    """Cut results not seen by the model yet to the caps of (2), only if the window does not fit."""
    _cap_unseen(window, window.soft_tokens, window.policy.tool_result_max_chars)


def fold_old_tool_blocks(window: WindowBuilder, target: int) -> None:
    """(6) Leave out the tool blocks of closed rounds, except the newest few."""
    if window.is_worth_folding:
        window.apply_step(window.candidates.tool_blocks, _fold_or_soften(window, target), target)


def digest_pending(window: WindowBuilder, target: int) -> None:
    """(7) Show evicted messages without a summary as their digest, the oldest compaction first."""
    for row in window.prefix.pending.values():
        if window.total <= target:
            return
        if row.compaction_id in window.digested:
            window.looked_at += 1
            continue
        pending_blocks = window.pending_blocks.get(row.compaction_id, ())
        window.looked_at += 1 + len(pending_blocks)
        blocks = [
            block for block in pending_blocks if block.is_shown and not window.is_protected(block)
        ]
        if sum(block.tokens for block in blocks) <= window.digest.cost_of(row):
            continue
        window.digested.add(row.compaction_id)
        for block in blocks:
            if block is block.in_round.request:
                window.leave_out(block)
            elif block.is_shown:
                window.fold(block)


def fold_blocks(window: WindowBuilder, target: int) -> None:
    """(7) Leave out closed rounds, then the blocks of the open one."""
    if not window.is_worth_folding:
        return
    act = _fold_or_soften(window, target)
    window.apply_step(window.candidates.closed_blocks, act, target)
    if window.total > target:
        window.apply_step(window.candidates.open_blocks, act, target)


def fold_oldest(window: WindowBuilder, target: int) -> None:
    """Leave out the oldest blocks, of any priority; cut the last of them if that is enough."""
    if not window.is_worth_folding:
        return
    act = _fold_or_soften(window, target)
    for block in window.oldest(lambda: window.total <= target):
        window.free(block, block.head, act)


def _fold_or_soften(window: WindowBuilder, target: int) -> Callable[[BlockView, MessageView], int]:
    def act(block: BlockView, _: MessageView) -> int:
        if not window.keep_longer_cut(block, target):
            window.leave_out(block)
        return 0

    return act


STEPS: Final[Mapping[View, tuple[Step, ...]]] = {
    View.FULL: (
        drop_old_reasoning,
        trim_large_results,
        replace_results,
        shorten_long_texts,
        preview_costly,
        cap_unseen_results,
        fold_old_tool_blocks,
        digest_pending,
        fold_blocks,
    ),
    View.NEWEST: (
        shorten_long_texts,
        trim_large_results,
        cap_unseen_results,
        digest_pending,
        fold_oldest,
    ),
    View.PREVIEWS: (preview_costly, cap_unseen_results, digest_pending, fold_blocks),
    View.PRIORITY: (cap_unseen_results, digest_pending, fold_blocks),
}


def trim_protected(window: WindowBuilder) -> None:
    """Shorten protected messages, only as far as needed, after every other step."""
    for step in PROTECTED_STEPS:
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
            level_sizes(block.head.arguments_sizes, window.total - window.limits.tokens),
        )
        window.free(
            block,
            block.head,
            lambda _, view: view.preview_arguments(max(cap, policy.arguments_max_tokens), cap),
        )


def _shorten_unseen_results(window: WindowBuilder) -> None:
    _cap_unseen(window, window.policy.preview_tokens)


def _level_unseen(window: WindowBuilder) -> None:
    """Shorten the longest texts, arguments and results of the block to one length."""
    if block := window.unseen:
        window.level([block], window.limits.tokens, least=window.policy.preview_tokens)


def _reduce_unseen(window: WindowBuilder) -> None:
    """Shorten each part of the block as far as possible, one after the other."""
    block = window.unseen
    if block is None:
        return
    results = [view for view in block.results if view is not None]
    window.looked_at += len(block.results)
    for shorten in (
        lambda _, view: view.to_line(window.line_starts),
        lambda _, view: view.to_mark(),
    ):
        for view in results:
            if window.total > window.limits.tokens:
                window.free(block, view, shorten)
    window.level([block], window.limits.tokens, least=LEAST_ARGUMENTS_TOKENS)
    if window.total > window.limits.tokens:
        window.free(block, block.head, lambda _, view: view.to_mark())


def _shorten_request(window: WindowBuilder) -> None:
    """Cut the newest request, or without one the newest block, to its beginning."""
    block = window.request or window.unseen or (window.blocks[-1] if window.blocks else None)
    if block is not None and block.is_shown:
        _keep_beginning(window, block)


def _shorten_interrupted_request(window: WindowBuilder) -> None:
    """Cut the request that a newer one interrupted to its beginning."""
    if window.interrupted_request is not None:
        _keep_beginning(window, window.interrupted_request)


def _keep_beginning(window: WindowBuilder, block: BlockView) -> None:
    view = block.head
    room = view.text - (window.total - window.limits.tokens)
    window.free(
        block,
        view,
        lambda _, view: view.shorten(
            cut_to(view.message, view.offsets, room, least_head=LEAST_CHARACTERS)
        ),
    )


def _drop_newest_reasoning(window: WindowBuilder) -> None:
    for block in (window.request, window.unseen, window.blocks[-1] if window.blocks else None):
        if block is not None and block.is_shown and window.total > window.limits.tokens:
            window.free(block, block.head, lambda _, view: view.drop_reasoning())


def _name_open_round_only(window: WindowBuilder) -> None:
    window.shorten_digest(DigestForm.NAMES)


def _count_only(window: WindowBuilder) -> None:
    window.shorten_digest(DigestForm.SHORT)


def _fold_rest(window: WindowBuilder) -> None:
    """Leave out blocks that stayed because their digest takes more tokens than they do."""
    window.fold_oldest(lambda: not window.is_over)


def _tell_nothing(window: WindowBuilder) -> None:
    window.shorten_digest(DigestForm.NONE)


PROTECTED_STEPS: Final[tuple[Callable[[WindowBuilder], None], ...]] = (
    _preview_unseen_arguments,
    _name_open_round_only,
    _shorten_unseen_results,
    WindowBuilder.cut_summary,
    _shorten_interrupted_request,
    _level_unseen,
    _reduce_unseen,
    _count_only,
    _shorten_request,
    _drop_newest_reasoning,
    _fold_rest,
    _tell_nothing,
)


def _cap_unseen(window: WindowBuilder, least: int, max_characters: int = 0) -> None:
    """Shorten the longest unseen results, none below `least` tokens, until the window fits."""
    block = window.unseen
    excess = window.total - window.limits.tokens
    if block is None or excess <= 0:
        return
    window.looked_at += len(block.results)
    views = [view for view in block.results if view is not None and view.line is None]
    cap = max(least, level_sizes([view.text for view in views], excess))

    def shorten(_: BlockView, view: MessageView) -> int:
        return view.shorten(
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
            window.free(block, view, shorten)


def trim_for_emergency(window: WindowBuilder) -> None:
    """(8) Trim a window to its emergency budget.

    Remove reasoning, and replace results by one line each. If that is not enough, keep 5 rounds,
    then 2, then leave out the oldest blocks.
    """
    window.begin_trim()
    for block in window.blocks:
        if not window.is_protected(block):
            window.free(block, block.head, lambda _, view: view.drop_reasoning())
            for view in block.results:
                if view is not None:
                    window.free(block, view, lambda _, view: view.to_line(window.line_starts))
    limit = window.limits.tokens
    for step in (shorten_long_texts, preview_costly, cap_unseen_results, digest_pending):
        step(window, limit)
    for rounds in (5, 2):
        if window.is_over:
            _keep_rounds(window, rounds)
    window.fold_oldest(lambda: not window.is_over)
    trim_protected(window)
    if window.size > window.limits.messages:
        window.shorten_digest(DigestForm.NONE)


def _keep_rounds(window: WindowBuilder, rounds: int) -> None:
    starts = [index for index, block in enumerate(window.blocks) if block.head.message.is_request]
    if len(starts) > rounds:
        for block in window.blocks[: starts[-rounds]]:
            if block.is_shown and not window.is_protected(block):
                window.fold(block)
