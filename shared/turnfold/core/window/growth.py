"""Grow a window message by message, and trim it whenever it exceeds its limits.

A window is not cut from a list: messages are added as they came, and each trim lasts. So its
content after n messages depends on these n alone, messages only ever get shorter, and the windows
of two requests begin alike until the limits are next exceeded. A prompt cache stays valid.
"""

from collections.abc import Sequence
from typing import Final

from turnfold.core.history.blocks import is_turn_boundary
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.ladder import trim_to_budget
from turnfold.core.window.limits import WindowLimits
from turnfold.messages import Message

FREE_LOOKS: Final = 256
LOOKS_PER_MESSAGE: Final = 8
"""Trimming is delayed by one message per so many examined parts that stayed unchanged.

The first `FREE_LOOKS` are free. The total cost therefore stays proportional to the session.
"""


def grow(window: WindowBuilder, messages: Sequence[Message]) -> None:
    """Add the next messages, in order of position, and trim the window after each that needs it."""
    first, makes_room = len(window.taken), window.limits.makes_room
    window.take(messages)
    is_postponed = False
    for number, message in enumerate(messages, start=first):
        if message.is_pinnable:
            continue
        window.add(message)
        is_postponed = window.is_over and number < window.next_trim
        if is_postponed:
            continue
        if window.is_over:
            _trim(window, window.limits_by_turns, number)
            window.trimmed_after = message
        # After the trim, not instead of it: a recall block may need more room than that has made.
        if makes_room and _lacks_room(window, message):
            _trim(window, window.limits_by_turns.at_arrival, number, is_for_recall=True)
            window.made_room_after = message
    window.name_covered_calls()
    if is_postponed or window.is_over:
        # The window must fit now, also one of a system message and a summary alone. But a window
        # that grew on would be trimmed at another message: only one built from the start has the
        # content that these messages give.
        window.begin_trim()
        trim_to_budget(window)
        window.can_continue = False


def _lacks_room(window: WindowBuilder, message: Message) -> bool:
    """Return whether a message begins or ends a turn, and leaves too little room for recall."""
    return (
        window.total > window.limits.arrival_tokens
        and window.has_hidden
        and is_turn_boundary(message)
        and window.total > window.limits_by_turns.arrival_tokens
    )


def _trim(
    window: WindowBuilder, limits: WindowLimits, number: int, *, is_for_recall: bool = False
) -> None:
    """Trim to these limits after message `number`, and delay the next by the parts seen in vain."""
    own_limits, window.limits = window.limits, limits
    window.looked_at = 0
    window.begin_trim()
    trim_to_budget(window, is_for_recall=is_for_recall)
    window.limits = own_limits
    window.next_trim = number + 1 + max(0, window.looked_at - FREE_LOOKS) // LOOKS_PER_MESSAGE
