"""The ladder: the steps that shorten a window when it exceeds its limits.

`trim_to_budget` applies the steps of the policy's view in order, until the window is down to its
target. Numbers in parentheses are those of the requirements.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from turnfold.core.policy.presets import View
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.digest.digest import DigestForm
from turnfold.core.window.forms import (
    NO_ARGUMENTS_TOKENS,
    cut_characters,
    cut_within,
)
from turnfold.core.window.leveling import keep_longer_cut, keep_newest, level_sizes
from turnfold.core.window.protected import (
    cap_unseen,
    drop_excessive_reasoning,
    is_worth_folding,
    leave_out_oldest,
    trim_protected,
)
from turnfold.core.window.views import BlockView, MessageView
from turnfold.messages import Role

Step = Callable[[WindowBuilder, int], None]

PLAIN_CHARACTERS: Final = 2_048
"""Shorter results always become the preview of (5), even if that frees more than needed."""


def trim_to_budget(window: WindowBuilder, *, is_for_recall: bool = False) -> None:
    """Trim a window that exceeds its limits to its targets, protected messages last.

    If it only makes room for recall, protected messages stay as they are.
    """
    drop_excessive_reasoning(window)
    if window.total > window.limits.tokens:
        for step in STEPS[window.policy.view]:
            if window.total <= window.limits.target_tokens:
                break
            step(window, window.limits.target_tokens)
        # Only down to the limit: room for later messages is not worth cutting protected ones.
        trim_protected(window, is_for_recall=is_for_recall)
    if window.size > window.limits.messages:
        leave_out_oldest(window, lambda: window.size <= window.limits.target_messages)
        # The digest is a message, too.
        if window.size > window.limits.messages:
            window.shorten_digest(DigestForm.NONE)


def drop_old_reasoning(window: WindowBuilder, target: int) -> None:
    """(1) Remove long reasoning from before the latest round."""
    window.apply_step(window.candidates.with_reasoning, MessageView.drop_reasoning, target)


def trim_large_results(window: WindowBuilder, target: int) -> None:
    """(2) Cut single large results to their first 20 and last 10 lines.

    If that frees far more than needed, keep as many lines as fit.
    """
    cut = partial(cut_within, max_characters=window.policy.tool_result_max_chars)

    def trim(view: MessageView) -> None:
        brief = cut(view.message, view.offsets, max_tokens=window.soft_tokens, is_brief=True)
        longer = None
        may_keep = view.text - (window.total - target)
        if brief is not None and may_keep - brief.tokens > window.large_waste_tokens:
            longer = cut(view.message, view.offsets, max_tokens=may_keep, is_brief=False)
        view.shorten(longer or brief)

    window.apply_step(window.candidates.large_results, trim, target)


def replace_results(window: WindowBuilder, target: int) -> None:
    """(3) While all results together take too large a share, replace them by one line each.

    A result is only cut if that frees enough, unless its publisher has already cut it.
    """

    def replace(view: MessageView) -> None:
        excess = window.total - target
        may_keep = view.text - excess
        may_be_cut = may_keep > window.waste_tokens and not view.message.is_truncated
        if not (may_be_cut and view.shorten_to(may_keep) >= excess):
            view.to_line(window.line_starts)

    window.apply_step(
        window.candidates.seen_results,
        replace,
        target,
        results_above=int(window.policy.hard_ratio * window.limits.tokens),
    )


def shorten_long_texts(window: WindowBuilder, target: int) -> None:
    """(4) Cut very long texts of users and assistants in the middle."""

    def shorten(view: MessageView) -> None:
        is_user = view.message.role is Role.USER
        cap = window.policy.user_max_chars if is_user else window.policy.assistant_max_chars
        view.shorten(cut_characters(view.message, view.offsets, cap))

    window.apply_step(window.candidates.long_texts, shorten, target)


def preview_costly(window: WindowBuilder, target: int) -> None:
    """(5) Replace large arguments and results of calls that the model has seen by previews.

    The previews are longer if short ones would free far more than needed.
    """
    policy = window.policy

    def is_waste(may_keep: int) -> bool:
        return may_keep - policy.preview_tokens > window.large_waste_tokens

    def preview(view: MessageView) -> None:
        if view.call is None:
            preview_arguments(view)
        else:
            preview_result(view)

    def preview_arguments(view: MessageView) -> None:
        above = policy.arguments_max_tokens
        may_keep = level_sizes(view.arguments_sizes, window.total - target)
        if not (is_waste(may_keep) and view.preview_arguments(above, may_keep)):
            view.preview_arguments(above, max(policy.preview_tokens, NO_ARGUMENTS_TOKENS))

    def preview_result(view: MessageView) -> None:
        may_keep = view.text - (window.total - target)
        may_be_longer = view.message.characters > PLAIN_CHARACTERS and is_waste(may_keep)
        if not (may_be_longer and view.shorten_to(may_keep)):
            view.shorten_to(policy.preview_tokens, is_preview=True)

    window.apply_step(window.candidates.costly, preview, target)


def cap_unseen_results(window: WindowBuilder, _: int) -> None:
    """Cut results not seen by the model yet to the caps of (2), only if the window does not fit."""
    cap_unseen(
        window, window.soft_tokens, window.policy.tool_result_max_chars, spares_truncated=True
    )


def fold_old_tool_blocks(window: WindowBuilder, target: int) -> None:
    """(6) Leave out the tool blocks of closed rounds, except the newest few."""
    if is_worth_folding(window):
        window.fold_step(window.candidates.tool_blocks, _cut_or_leave_out(window, target), target)


def digest_pending(window: WindowBuilder, target: int) -> None:
    """(7) Show evicted messages without a summary as their digest, the oldest compaction first."""
    for pending in window.prefix.pending.values():
        if window.total <= target:
            return
        window.looked_at += 1
        if pending.compaction_id in window.digested:
            continue
        blocks = window.pending_blocks.get(pending.compaction_id, ())
        window.looked_at += len(blocks)
        leaving = [block for block in blocks if block.is_shown and not window.is_protected(block)]
        # A compaction of few short messages stays: its digest would take more than they do.
        if sum([block.tokens for block in leaving]) <= window.digest.cost_of(pending):
            continue
        window.show_digest_of(pending.compaction_id, blocks)


def fold_blocks(window: WindowBuilder, target: int) -> None:
    """(7) Leave out closed rounds, then the blocks of the open one."""
    if not is_worth_folding(window):
        return
    stays = _cut_or_leave_out(window, target)
    window.fold_step(window.candidates.closed_blocks, stays, target)
    if window.total > target:
        window.fold_step(window.candidates.open_blocks, stays, target)


def fold_oldest(window: WindowBuilder, target: int) -> None:
    """Leave out the oldest blocks, of any priority; cut the last of them if that is enough."""
    if not is_worth_folding(window):
        return
    stays = _cut_or_leave_out(window, target)
    for block in window.oldest(lambda: window.total <= target):
        stays(block)


def _cut_or_leave_out(window: WindowBuilder, target: int) -> Callable[[BlockView], bool]:
    """Return what leaves a block out, or returns True if shortening it was enough."""

    def stays(block: BlockView) -> bool:
        if keep_longer_cut(window, block, target) or keep_newest(window, block, target):
            return True
        window.leave_out(block)
        return False

    return stays


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


def trim_for_emergency(window: WindowBuilder) -> None:
    """(8) Trim a window to its emergency budget.

    Remove reasoning, and replace results by one line each. If that is not enough, keep 5 rounds,
    then 2, then leave out the oldest blocks.
    """
    window.begin_trim()
    drop_excessive_reasoning(window)
    for block in window.blocks:
        if not window.is_protected(block):
            window.apply(block, block.head, MessageView.drop_reasoning)
            for view in block.results:
                if view is not None:
                    window.apply(block, view, lambda view: view.to_line(window.line_starts))
    # Down to the limit, not to a target below it: no later window continues this one.
    limit = window.limits.tokens
    for step in (shorten_long_texts, preview_costly, cap_unseen_results, digest_pending):
        step(window, limit)
    for rounds in (5, 2):
        if window.is_over:
            _keep_rounds(window, rounds)
    leave_out_oldest(window, lambda: not window.is_over)
    trim_protected(window)
    if window.size > window.limits.messages:
        window.shorten_digest(DigestForm.NONE)


def _keep_rounds(window: WindowBuilder, rounds: int) -> None:
    starts = [index for index, block in enumerate(window.blocks) if block.head.message.is_request]
    if len(starts) > rounds:
        # Whole rounds precede a request, so only protected blocks can split one.
        for block in window.blocks[: starts[-rounds]]:
            if block.is_shown and not window.is_protected(block):
                window.fold(block)
