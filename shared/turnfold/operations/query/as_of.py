"""Read the `as_of` of a request."""

import re
from datetime import UTC, datetime, timedelta

from turnfold.contracts.subjects import id_fault
from turnfold.core.history.as_of import AsOf, AtMessage, AtTime, AtVersion
from turnfold.errors import BadRequest
from turnfold.messages import MOST_INT32, split_message_id

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+ -]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_as_of(text: str | int) -> AsOf:
    """Read a moment: digits are a version, `…#` and digits a message, the rest RFC 3339 times.

    Raises:
        BadRequest: it is none of these.
    """
    named = str(text)
    if named.isascii() and named.isdigit():
        if int(named) > MOST_INT32:
            raise BadRequest("as_of: no session has that many versions")
        return AtVersion(int(named))
    message = split_message_id(named)
    if message is not None and id_fault(message[0]) is None:
        return AtMessage(*message)
    at_ms = _milliseconds(named)
    if at_ms is None:
        raise BadRequest(
            "as_of: give a version, a message id, or a time such as 2026-11-20T10:00:00Z"
        )
    return AtTime(at_ms)


def _milliseconds(text: str) -> int | None:
    """Read an RFC 3339 time, rounded down to milliseconds.

    In a URL the `+` of an offset arrives as a space. A leap second counts as the next second.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    date, minutes, second, fraction, offset = match.groups()
    is_leap = second == "60"
    zone = "+00:00" if offset in "Zz" else offset.replace(" ", "+")
    try:
        at = datetime.fromisoformat(
            f"{date}T{minutes}{'59' if is_leap else second}{(fraction or '')[:7]}{zone}"
        )
        return (at - _EPOCH + timedelta(seconds=is_leap)) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None
