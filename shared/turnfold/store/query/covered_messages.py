"""Read the covered messages that windows still need.

These are the calls of a turn whose request is not covered, and the newest system message if all
newer ones were retracted.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from sqlalchemy import bindparam, literal_column, select

from turnfold.core.history.as_of import StateAsOf
from turnfold.core.history.blocks import pinned_message
from turnfold.messages import Message
from turnfold.ports.query import END_POSITION, SessionSnapshot
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.message_rows import FACTS, message_of
from turnfold.store.database.predicates import is_pinnable
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.query.message_cache import CachedSession

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
_SYSTEM = Prepared(
    select(*FACTS)
    .where(
        messages.c.sid == bindparam("of_sid"),
        messages.c.position <= bindparam("until"),
        is_pinnable,
    )
    .order_by(messages.c.position.desc())
    .limit(literal_column("1")),
    ("of_sid", "until"),
)


def refresh_covered(
    connection: SupportsStatements, session: SessionSnapshot, known: CachedSession, *, is_near: bool
) -> None:
    """Read the covered messages again, where those in the cache may be others.

    Raises:
        WouldBlock: too much must be read for the thread of the event loop (`is_near`).
    """
    first_request = next(_requests_in(known.messages), END_POSITION)
    calls_of = (session.version, session.evicted_changes, first_request)
    if known.calls_of != calls_of:
        known.covered_calls = ()
        if known.summary is not None and known.summary.last_position > first_request:
            if is_near:
                raise WouldBlock
            calls = _calls_in(connection, session.sid, _EVICTED_CALLS, known.messages)
            known.covered_calls = calls
        known.calls_of = calls_of
    # The newest system message is evicted only after a newer one came.
    if session.retracted_seq and known.system_of != known.arrangement:
        is_pinned = pinned_message(known.messages) is not None
        known.covered_system = None if is_pinned else _system(connection, session.sid, END_POSITION)
        known.system_of = known.arrangement


def covered_calls_as_of(
    connection: SupportsStatements, sid: int, shown: Sequence[Message]
) -> tuple[Message, ...]:
    """Return the covered calls of an earlier moment; some may be live again since."""
    return _calls_in(connection, sid, _CALLS, shown)


def covered_system_as_of(
    connection: SupportsStatements, sid: int, shown: Sequence[Message], state: StateAsOf
) -> Message | None:
    """Return the system message to pin at an earlier moment, if none of `shown` is one."""
    if pinned_message(shown) is not None:
        return None
    stored = _system(connection, sid, state.until)
    retracted = pinned_message(state.retracted)
    found = [message for message in (stored, retracted) if message is not None]
    return max(found, key=attrgetter("position"), default=None)


def _system(connection: SupportsStatements, sid: int, until: int) -> Message | None:
    return next(map(message_of, _SYSTEM.rows(connection, sid, until)), None)


def _requests_in(shown: Sequence[Message]) -> Iterator[int]:
    """Yield the positions of the requests among these messages."""
    return (message.position for message in shown if message.is_request)


def _calls_in(
    connection: SupportsStatements, sid: int, calls: Prepared, shown: Sequence[Message]
) -> tuple[Message, ...]:
    """Return the messages of this statement, of the newest turn that has any.

    `shown` are the messages that are not covered, in order; the request of that turn is one.
    """
    requests = list(_requests_in(shown))
    if not requests:
        return ()
    known = {message.position for message in shown}
    rows = calls.rows(connection, sid, requests[0], shown[-1].position)[::-1]
    covered = [message for message in map(message_of, rows) if message.position not in known]
    if not covered:
        return ()
    request = requests[bisect_right(requests, covered[-1].position) - 1]
    return tuple([message for message in covered if message.position > request])
