"""Where a message is, derived from its compaction; nothing else is stored about it."""

from turnfold.messages import State


def state_of(*, is_evicted: bool, is_covered: bool) -> State:
    """Live until a compaction takes the message; covered when the summary in force speaks for that compaction."""
    if not is_evicted:
        return State.LIVE
    return State.COVERED if is_covered else State.PENDING
