"""Shorten several texts and arguments to one length, so that the longest lose most."""

from collections.abc import Iterable, Sequence
from typing import Final

from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.forms import LEAST_ARGUMENTS_TOKENS
from turnfold.core.window.views import BlockView, MessageView

LEVEL_STEP_TOKENS: Final = 4
"""The least tokens by which the length falls when it is lowered again."""

NEWEST_SHARE: Final = 0.2
"""The newest block keeps this share of what a trim leaves, if it has so many tokens."""


def keep_longer_cut(window: WindowBuilder, block: BlockView, target: int) -> bool:
    """Shorten the longest parts of a block until the window just meets its target.

    A block that needs its round is shortened together with it. Return False if that is not
    possible, or if too little would remain.
    """
    blocks = window.leaving_with(block)
    excess = window.total - target
    if sum([block.tokens for block in blocks]) - excess <= window.waste_tokens:
        return False
    return level(window, blocks, target, least=LEAST_ARGUMENTS_TOKENS)


def keep_newest(window: WindowBuilder, block: BlockView, target: int) -> bool:
    """Shorten the newest block if the window fits with it; return whether it stays.

    Room for later messages or recall is not worth the answer to the newest request, which would
    seem unanswered.
    """
    if block is not window.blocks[-1] or window.total > window.budget_tokens:
        return False
    level(window, [block], target, least=int(NEWEST_SHARE * window.limits.tokens))
    return True


def level(window: WindowBuilder, blocks: Sequence[BlockView], target: int, *, least: int) -> bool:
    """Shorten the longest texts and arguments of these blocks to one length, at least `least`.

    Return whether that meets the target.
    """
    texts = [
        (block, view)
        for block in blocks
        for view in block.views
        if view.message.cuts and view.line is None and _may_be_cut(window, block, view)
    ]
    length = max([view.text for _, view in texts], default=0)
    length += max(_arguments_sizes(blocks), default=0)
    while window.total > target and length > least:
        sizes = [*[view.text for _, view in texts], *_arguments_sizes(blocks)]
        window.looked_at += len(sizes)
        # Names of calls may cost more than their estimate. Then another iteration is needed.
        enough = level_sizes(sizes, window.total - target)
        length = max(least, min(length - LEVEL_STEP_TOKENS, enough))
        _shorten_to(window, length, texts, blocks)
    return window.total <= target


def _may_be_cut(window: WindowBuilder, block: BlockView, view: MessageView) -> bool:
    """Return whether a text may be cut: a result that its publisher has cut, only as a last resort.

    Protected blocks are shortened last, and cannot be left out instead.
    """
    return view.call is None or not view.message.is_truncated or window.is_protected(block)


def level_sizes(sizes: Sequence[int], excess: int) -> int:
    """Return the cap for the largest sizes that makes their sum fall by `excess`."""
    remaining = sorted(sizes, reverse=True)
    for count, size in enumerate(remaining, start=1):
        lower = remaining[count] if count < len(remaining) else 0
        gain = count * (size - lower)
        if gain >= excess:
            return size - -(-excess // count)
        excess -= gain
    return 0


def _arguments_sizes(blocks: Iterable[BlockView]) -> list[int]:
    return [size for block in blocks for size in block.head.arguments_sizes]


def _shorten_to(
    window: WindowBuilder,
    length: int,
    texts: Iterable[tuple[BlockView, MessageView]],
    blocks: Iterable[BlockView],
) -> None:
    for block, view in texts:
        if view.text > length:
            window.apply(block, view, lambda view: view.shorten_to(length))
    if length >= LEAST_ARGUMENTS_TOKENS:
        for block in blocks:
            window.apply(block, block.head, lambda view: view.preview_arguments(length, length))
