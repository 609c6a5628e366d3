"""Sizes of many messages at once: the most that they can take, and a cap that frees enough."""

from collections.abc import Sequence

from turnfold.core.window.truncation import STAND_IN_TOKENS
from turnfold.messages import Message


def upper_bounds(messages: Sequence[Message]) -> tuple[int, int]:
    """Return the most tokens and messages that these can take, with a stand-in per result."""
    calls = sum([len(message.calls) for message in messages])
    return sum([message.tokens for message in messages]) + STAND_IN_TOKENS * calls, len(
        messages
    ) + calls


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
