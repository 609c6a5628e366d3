"""Events that HTTP receives: read at once, or in the lane if that takes long."""

from typing import NamedTuple

from turnfold.contracts.events import EventLimits, check_copy, read_typed
from turnfold.contracts.json_values import most_values
from turnfold.errors import BadEvent, BadRequest, EventFault, TooLarge
from turnfold.messages import EventId, SessionKey

LANE_BYTES = 512 * 1024
LANE_VALUES = 10_000
"""From here on, reading takes longer than most windows: 10 to 20 ms."""


class EventBody(NamedTuple):
    """The body of an event; with `stored`, what the stream holds under its id."""

    body: bytes
    limits: EventLimits
    stored: bytes | None = None

    @property
    def takes_long(self) -> bool:
        """Whether reading it would hold up others."""
        return any(
            len(text) > LANE_BYTES or most_values(text) > LANE_VALUES
            for text in (self.body, self.stored or b"")
        )


class PostedEvent(NamedTuple):
    """An event of an HTTP request: the fields with which it is published."""

    event_type: str
    key: SessionKey
    event_id: EventId


def read_posted(posted: EventBody) -> PostedEvent:
    """Read an event, and compare it with the stored one.

    Raises:
        BadRequest: it can never be stored; `TooLarge` if that is the reason.
        Conflict: the stored one differs.
    """
    try:
        event_type, event = read_typed(posted.body, posted.limits)
    except BadEvent as error:
        is_large = error.reason is EventFault.TOO_LARGE
        raise (TooLarge if is_large else BadRequest)(str(error)) from None
    if posted.stored is not None:
        check_copy(event_type, posted.body, posted.stored, posted.limits)
    return PostedEvent(event_type, event.key, event.event_id)
