"""Grow a window message by message, and trim it whenever it exceeds its limits.

A window is not cut from a list: messages are added in order, and each trim is permanent. So its
content after n messages depends on these n alone, messages only ever get shorter, and the windows
of two requests have the same beginning until the limits are exceeded again. Prompt caches stay
valid.
"""

from collections.abc import Sequence
from typing import Final

from turnfold.core.history.blocks import is_turn_boundary
from turnfold.core.window.budget_shares import MOST_TURN_SHARE, WindowLimits
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.ladder import trim_to_budget
from turnfold.core.window.protected import is_hopeless
from turnfold.messages import Message

FREE_LOOKS: Final = 256
LOOKS_PER_MESSAGE: Final = 8
"""Trimming is delayed by one message per this many examined parts that stayed unchanged.

The first `FREE_LOOKS` are free. The total cost therefore stays proportional to the session.
"""
LEAST_SUMMARY: Final = 0.1
"""Each trim shows at least this share of a budget of the summary again, if that much fits."""
LEAST_GROWTH: Final = 0.1
"""A window grows by this share of its budget before a running turn is trimmed for recall again."""


def grow(window: WindowBuilder, messages: Sequence[Message]) -> None:
    """Add the next messages, in order of position, and trim the window after each that needs it."""
    first, makes_room = len(window.taken), window.limits.makes_room
    window.take(messages)
    is_postponed = False
    for number, message in enumerate(messages, start=first):
        # It is already in the prefix: a trim that was postponed before it stays postponed.
        if message.is_pinnable:
            continue
        window.add(message)
        # While it is hopeless, a trim would only leave out what fits once the model has seen the
        # results.
        is_postponed = window.is_over and (number < window.next_trim or is_hopeless(window))
        if is_postponed:
            continue
        if window.is_over:
            _restore_summary(window, message)
            _trim(window, window.limits_by_turns, number)
            window.trimmed_after = message
        # After the trim, not instead of it: a recall block may need more room than that has made.
        if makes_room and (limits := _limits_with_room(window, message, number)) is not None:
            _restore_summary(window, message)
            _trim(window, limits, number, is_for_recall=True)
            window.made_room_after = message
    window.name_covered_calls()
    if is_postponed or window.is_over:
        # The window must fit now, even one of only a system message and a summary. But if it were
        # continued, it would be trimmed at another message: only a window built from the start
        # has the content that follows from these messages.
        window.begin_trim()
        trim_to_budget(window)
        window.can_continue = False


def _restore_summary(window: WindowBuilder, message: Message) -> None:
    """Show again what earlier trims took of the summary, before the next one decides.

    Between turns all that the limits allow, unless the budget is small. Otherwise only its
    beginning, because the newest messages are worth more.
    """
    most = window.limits.summary_tokens
    if window.limits.is_small or not is_turn_boundary(message):
        most = min(most, int(LEAST_SUMMARY * window.limits.tokens))
    shown = window.summary.tokens if window.summary else 0
    # In talk, the limit may be lower than it was.
    if (most := min(max(shown, most), window.limits.summary_tokens)) != shown:
        window.show_summary(most)


def _limits_with_room(window: WindowBuilder, message: Message, number: int) -> WindowLimits | None:
    """Return the limits that leave room for recall, if the window must be trimmed to them now.

    It must if a message begins or ends a turn. Within a turn that has outgrown its room, it must if
    the window has grown enough since its last trim: a block of lines is worth more than the oldest
    messages that it replaces.
    """
    if is_turn_boundary(message):
        if window.total <= window.limits.arrival_tokens or not window.has_hidden:
            return None
        limits = window.limits_by_turns.at_arrival
        # If only the answer that stayed is too much, its trim also does for the next request.
        if window.total - _kept_answer_tokens(window) <= limits.tokens:
            return None
    else:
        limits = window.limits.within_turn
        growth = window.total - window.trimmed_to
        if number < window.next_trim or growth < LEAST_GROWTH * window.limits.tokens:
            return None
        if window.total <= limits.tokens or not _has_outgrown_room(window):
            return None
        limits = window.limits_by_turns.within_turn
    return limits if window.total > limits.tokens else None


def _kept_answer_tokens(window: WindowBuilder) -> int:
    """Return the tokens of the last answer if it stayed when it made room; otherwise 0."""
    answers = [block for block in window.blocks[-2:-1] if block.is_shown]
    return sum([block.tokens for block in answers if block.head.message is window.made_room_after])


def _has_outgrown_room(window: WindowBuilder) -> bool:
    """Return whether the running turn has taken all the room that its request could leave to it.

    Small windows leave out calls of the turn by then. Others have been full before, so that a
    session whose messages only make room for recall evicts none.
    """
    if window.limits.is_small:
        return window.digest.names_calls
    most = MOST_TURN_SHARE * window.limits.tokens
    return window.trimmed_after is not None and window.turns.after_request > most


def _trim(
    window: WindowBuilder, limits: WindowLimits, number: int, *, is_for_recall: bool = False
) -> None:
    """Trim to these limits after message `number`; unchanged parts delay the next trim."""
    own_limits, window.limits = window.limits, limits
    window.looked_at = 0
    window.begin_trim()
    trim_to_budget(window, is_for_recall=is_for_recall)
    window.limits = own_limits
    # A trim for recall spares protected messages. If the digest was in its shortest form before, it
    # is now larger than the window has room for.
    if window.is_over:
        trim_to_budget(window)
    window.trimmed_to = window.total
    window.next_trim = number + 1 + max(0, window.looked_at - FREE_LOOKS) // LOOKS_PER_MESSAGE
