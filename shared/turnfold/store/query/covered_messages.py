"""Read the covered messages that windows still need.

These are the calls of a turn whose request is not covered, and the newest system message if all
newer ones were retracted.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter

from sqlalchemy import bindparam, literal_column, select

from turnfold.core.history.as_of import StateAsOf
from turnfold.core.history.blocks import pinned_message
from turnfold.messages import Message
from turnfold.ports.query import END_POSITION, SessionSnapshot, StoredSummary
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.message_rows import FACTS, message_of
from turnfold.store.database.predicates import in_range, is_pinnable, of_messages
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.query.message_cache import CachedSession

Summary = StoredSummary | None
_position = attrgetter("position")

_calls = (
    select(*FACTS)
    .where(
        in_range(messages),
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
        of_messages,
        messages.c.position <= bindparam("until"),
        is_pinnable,
    )
    .order_by(messages.c.position.desc())
    .limit(literal_column("1")),
    ("of_sid", "until"),
)


def refresh_covered(
    connection: SupportsStatements,
    session: SessionSnapshot,
    known: CachedSession,
    *,
    is_inline: bool,
) -> None:
    """Read the covered messages again, where those in the cache may be others.

    Raises:
        WouldBlock: too much must be read for the thread of the event loop (`is_inline`).
    """
    requests = _requests_within(known.summary, known.messages)
    calls_of = (session.version, session.evicted_changes, *requests)
    if known.calls_of != calls_of:
        known.covered_calls = ()
        if requests and is_inline:
            raise WouldBlock
        known.covered_calls = _calls_in(
            connection, session.sid, _EVICTED_CALLS, known.messages, known.summary
        )
        known.calls_of = calls_of
    # The newest system message is evicted only after a newer one came.
    if session.retracted_seq and known.system_of != known.arrangement:
        is_pinned = pinned_message(known.messages) is not None
        known.covered_system = None if is_pinned else _system(connection, session.sid, END_POSITION)
        known.system_of = known.arrangement


def covered_calls_as_of(
    connection: SupportsStatements,
    sid: int,
    shown: Sequence[Message],
    summary: Summary,
    state: StateAsOf,
) -> tuple[Message, ...]:
    """Return the covered calls of an earlier moment; some may be live again or retracted since."""
    return _calls_in(connection, sid, _CALLS, shown, summary, retracted=state.retracted)


def covered_system_as_of(
    connection: SupportsStatements, sid: int, shown: Sequence[Message], state: StateAsOf
) -> Message | None:
    """Return the system message to pin at an earlier moment, if none of `shown` is one."""
    if pinned_message(shown) is not None:
        return None
    stored = _system(connection, sid, state.until)
    retracted = pinned_message(state.retracted)
    found = [message for message in (stored, retracted) if message is not None]
    return max(found, key=_position, default=None)


def _system(connection: SupportsStatements, sid: int, until: int) -> Message | None:
    return next(map(message_of, _SYSTEM.rows(connection, sid, until)), None)


def _requests_within(summary: Summary, shown: Sequence[Message]) -> list[int]:
    """Return the positions of the shown requests that stand before the end of a summary."""
    end = 0 if summary is None else summary.last_position
    until_end = takewhile(lambda message: message.position < end, shown)
    return [message.position for message in until_end if message.is_request]


def _calls_in(
    connection: SupportsStatements,
    sid: int,
    calls: Prepared,
    shown: Sequence[Message],
    summary: Summary,
    *,
    retracted: Sequence[Message] = (),
) -> tuple[Message, ...]:
    """Return the messages of this statement and `retracted` calls, of the newest turn with any.

    `shown` are the messages that the summary does not cover, in order; the request of that turn is
    one.
    """
    requests = _requests_within(summary, shown)
    if summary is None or not requests:
        return ()
    known = {message.position for message in shown}
    # What is shown after the summary changes without a new version.
    first, last = requests[0], summary.last_position
    found = [message_of(row) for row in calls.rows(connection, sid, first, last)]
    found += [
        message for message in retracted if message.calls and first <= message.position <= last
    ]
    covered = sorted([message for message in found if message.position not in known], key=_position)
    if not covered:
        return ()
    request = requests[bisect_right(requests, covered[-1].position) - 1]
    return tuple([message for message in covered if message.position > request])
