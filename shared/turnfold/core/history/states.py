"""The state of a message, derived from its compaction and its retraction."""

from turnfold.messages import State


def state_of(*, is_evicted: bool, is_covered: bool, is_retracted: bool = False) -> State:
    """Return live, pending, covered or retracted."""
    if is_retracted:
        return State.RETRACTED
    if not is_evicted:
        return State.LIVE
    return State.COVERED if is_covered else State.PENDING
