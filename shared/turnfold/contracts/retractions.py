"""The content of `turn.retracted`: which messages their user takes back."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from turnfold.contracts.strict_json import wrong_shape
from turnfold.contracts.subjects import ID_MAX_BYTES

MESSAGE_ID_MAX_CHARACTERS = ID_MAX_BYTES + 5
"""The longest id of a message: an event id, `#` and an index below 1,024."""
RETRACTED_AT_MOST = 10_000
"""The most message ids of one retraction."""


class Retraction(NamedTuple):
    """The named messages, those after one, or all.

    It concerns only messages that stand before it in the stream.
    """

    message_ids: tuple[str, ...] = ()
    after: str | None = None
    is_all: bool = False


def read_retraction(fields: Mapping[str, Any]) -> Retraction:
    """Read the fields of an event.

    Raises:
        BadEvent: they do not name messages in exactly one way.
    """
    ids, after, is_all = (fields.get(name) for name in ("message_ids", "after", "all"))
    if not isinstance(is_all, bool | None) or (
        [ids is not None, after is not None, is_all is True].count(True) != 1
    ):
        raise wrong_shape("name the messages by exactly one of message_ids, after or all: true")
    if ids is not None and not (isinstance(ids, list) and 1 <= len(ids) <= RETRACTED_AT_MOST):
        raise wrong_shape(f"message_ids must be a list of 1 to {RETRACTED_AT_MOST} ids")
    named = ids if ids is not None else [] if after is None else [after]
    if not all(isinstance(id, str) and len(id) <= MESSAGE_ID_MAX_CHARACTERS for id in named):
        raise wrong_shape("a message id is not a string, or is too long")
    return Retraction(tuple(ids or ()), after, is_all is True)
