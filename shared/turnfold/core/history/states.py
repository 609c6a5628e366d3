"""The state of a message, derived from its compaction."""

from turnfold.messages import State


def state_of(*, is_evicted: bool, is_covered: bool) -> State:
    """Return live, pending or covered."""
    if not is_evicted:
        return State.LIVE
    return State.COVERED if is_covered else State.PENDING
