"""Read the calls of a turn that a summary covers though the request of the turn is not covered."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from sqlalchemy import bindparam, literal_column, select

from turnfold.messages import Message
from turnfold.store.database.message_rows import FACTS, message_of
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared, SupportsStatements

_calls = (
    select(*FACTS)
    .where(
        messages.c.sid == bindparam("of_sid"),
        messages.c.position.between(bindparam("first"), bindparam("last")),
        messages.c.calls.is_not(None),
    )
    .order_by(messages.c.position.desc())
    .limit(literal_column("2048"))  # more names than any budget has room for
)
_CALLS = Prepared(_calls, ("of_sid", "first", "last"))
_EVICTED_CALLS = Prepared(
    _calls.where(messages.c.compaction_id.is_not(None)), ("of_sid", "first", "last")
)


def covered_calls(
    connection: SupportsStatements, sid: int, shown: Sequence[Message]
) -> tuple[Message, ...]:
    """Return the covered messages with calls of the newest turn that has any.

    `shown` are the messages that are not covered, in order; the request of that turn is one.
    """
    return _read(connection, sid, _EVICTED_CALLS, shown)


def covered_calls_as_of(
    connection: SupportsStatements, sid: int, shown: Sequence[Message]
) -> tuple[Message, ...]:
    """Return them as they were at an earlier moment; some may be live again since."""
    return _read(connection, sid, _CALLS, shown)


def requests_in(shown: Sequence[Message]) -> Iterator[int]:
    """Yield the positions of the requests among these messages."""
    return (message.position for message in shown if message.is_request)


def _read(
    connection: SupportsStatements, sid: int, calls: Prepared, shown: Sequence[Message]
) -> tuple[Message, ...]:
    """Return the messages of this statement, of the newest turn that has any.

    `shown` are the messages that are not covered, in order; the request of that turn is one.
    """
    requests = list(requests_in(shown))
    if not requests:
        return ()
    known = {message.position for message in shown}
    rows = calls.rows(connection, sid, requests[0], shown[-1].position)[::-1]
    covered = [message for message in map(message_of, rows) if message.position not in known]
    if not covered:
        return ()
    request = requests[bisect_right(requests, covered[-1].position) - 1]
    return tuple([message for message in covered if message.position > request])
