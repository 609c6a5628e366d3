"""The messages of a session that are kept in memory between windows.

Windows still need some covered ones: the calls of a turn whose request is not covered, and the
newest system message if all newer ones were retracted. They are read for the past as well.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import ColumnElement, bindparam, literal_column, select

from turnfold.core.history.as_of import StateAsOf
from turnfold.core.history.blocks import pinned_message
from turnfold.messages import Message
from turnfold.ports.query import END_POSITION, SessionSnapshot, StoredSummary
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.message_rows import FACTS, message_of
from turnfold.store.database.predicates import in_range, is_live, is_pinnable, of_messages
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared, SupportsStatements

CHANGING_COLUMNS = [
    messages.c[name] for name in ("position", "answers_position", "answers_slot", "is_copy")
]
"""The columns that can change while a message stays live: which call it answers."""
READ_INLINE = 512
"""The most messages that are read in the event loop's thread; more would delay other requests."""

KNOWN_INLINE = 2_048
"""The most messages, most of them cached, for which a window is decided in the loop's thread."""

KNOWN = 32_768
"""The most cached messages of all sessions together."""
MESSAGE_BYTES = 512
"""About how many bytes a cached message takes."""
MOST_CACHED = KNOWN // 4
"""The most messages of one session that the cache keeps."""

State = tuple[Any, ...]
"""The columns `CHANGING_COLUMNS` of a live message.

A position belongs to one message forever, and everything else that is stored of a live message
never changes. A message that was read in a state is therefore valid whenever that state is found
again.
"""


def arrangement_of(session: SessionSnapshot) -> State:
    """Return what differs whenever windows are built from other than the same and new messages.

    The hash tells two histories with equal counts apart, as after the failover of a database.
    """
    return session.changes, session.evicted_changes, session.audit_hash


@dataclass(slots=True)
class CachedSession:
    """A session as it was read: its summary, live messages by state, evicted ones by eviction.

    A summary never changes, and evicted messages hardly ever do; the session counts when they do
    (`changes`). `messages` are all that are not covered, in order, when the session had `total`
    messages and these `evictions`. While its `arrangement` is the same, others only follow.
    `covered_calls` are those of the windows of `calls_of`: a version, and the requests before its
    end.
    `covered_system` is that of the state `system_of`.
    """

    arrangement: State = ()
    total: int = 0
    evictions: Sequence[Sequence[Any]] = ()
    messages: list[Message] = field(default_factory=list)
    changes: int = 0
    live: dict[State, Message] = field(default_factory=dict)
    evicted: dict[int, list[Message]] = field(default_factory=dict)
    summary: StoredSummary | None = None
    calls_of: State = ()
    covered_calls: tuple[Message, ...] = ()
    system_of: State = ()
    covered_system: Message | None = None

    @property
    def size(self) -> int:
        """The number of messages, and how many messages take as much memory as the summary."""
        messages = len(self.messages) + len(self.covered_calls)
        if self.summary is None:
            return messages
        texts = (self.summary.text, self.summary.sections, self.summary.ledger)
        return messages + sum(map(len, texts)) // MESSAGE_BYTES

    def has_all_but_new(self, session: SessionSnapshot) -> bool:
        """Return whether only new messages must be read."""
        return self.arrangement == arrangement_of(session) and self.total <= session.messages_total

    def can_read_inline(self, session: SessionSnapshot, evictions: Sequence[Sequence[Any]]) -> bool:
        """Return whether few enough messages must be read to do it in the loop's thread."""
        live = session.live_messages
        # After a change, none is known: all evicted messages are then read again.
        known = self.evicted if self.changes == session.evicted_changes else {}
        unknown: int = sum([row[1] for row in evictions if row[0] not in known])
        size: int = live + sum([row[1] for row in evictions])
        return size <= KNOWN_INLINE and max(0, live - len(self.live)) + unknown <= READ_INLINE


_POSITION = FACTS.index(messages.c.position)
state_of_row = itemgetter(*(FACTS.index(column) for column in CHANGING_COLUMNS))

_live = select(*CHANGING_COLUMNS).where(of_messages, is_live).order_by(messages.c.position)
_LIVE = Prepared(_live, ("of_sid",))
READ_AT_ONCE = 2_000
"""The most live messages that one statement reads: rows take three times what messages do."""
FEW = 64
"""Up to this many new messages are read with their texts: nearly every window shows them."""


def _after(*more: ColumnElement[Any]) -> Prepared:
    return Prepared(
        _live.with_only_columns(*FACTS, *more)
        .where(messages.c.position > bindparam("after"))
        .limit(literal_column(str(READ_AT_ONCE))),
        ("of_sid", "after"),
    )


_LIVE_FACTS, _LIVE_TEXTS = _after(), _after(messages.c.body)


def append_new(
    connection: SupportsStatements,
    session: SessionSnapshot,
    known: CachedSession,
    newest: Sequence[Sequence[Any]] | None = None,
) -> Mapping[int, str] | None:
    """Add the new messages to the cache, which has all others; return their texts, if few.

    `newest` are rows of messages with their texts that were read with the session, if so.
    None if a message arrived late: it stands before others, so all must be read.
    """
    number, texts = session.messages_total - known.total, dict[int, str]()
    if not number:
        return texts
    after, with_texts = known.messages[-1].position if known.messages else -1, number <= FEW
    if newest is None:
        rows = list(_rows_after(connection, session.sid, after, with_texts=with_texts))
    else:
        rows = [row for row in newest if row[_POSITION] > after]
    # While the arrangement is the same, new messages are live, so later ones are all found.
    if len(rows) != number:
        return None
    for row in rows:
        message = known.live[state_of_row(row)] = message_of(row)
        known.messages.append(message)
        if with_texts:
            texts[message.position] = row[-1]
    known.total = session.messages_total
    return texts


def live_messages(
    connection: SupportsStatements, sid: int, known: CachedSession, live: int
) -> tuple[list[Message], Mapping[int, str]]:
    """Return the live messages in order, and the texts of new ones, if they are few.

    Read only messages that are not cached in this state. A session with more than `MOST_CACHED` is
    read without the cache, in half of the memory.
    """
    if live > MOST_CACHED:
        known.live.clear()
        return [message_of(row) for row in _rows_after(connection, sid, -1)], {}
    states = [tuple(row) for row in _LIVE.rows(connection, sid)]
    # From the first unknown one on: what is new nearly always stands at the end.
    unknown = (place for place, state in enumerate(states) if state not in known.live)
    first = next(unknown, len(states))
    found = [known.live[state] for state in states[:first]]
    new, texts = len(states) - first, dict[int, str]()
    if not new:
        return found, texts
    after: dict[State, Message] = {}
    for row in _rows_after(connection, sid, states[first][0] - 1, with_texts=new <= FEW):
        after[state_of_row(row)] = message_of(row)
        if new <= FEW:
            texts[row[_POSITION]] = row[-1]
    found += [after[state] for state in states[first:]]
    # Without what was evicted since, or the cache of a long session would grow without end.
    known.live = dict(zip(states, found, strict=True))
    return found, texts


def _rows_after(
    connection: SupportsStatements, sid: int, position: int, *, with_texts: bool = False
) -> Iterator[Sequence[Any]]:
    """Yield the facts of the live messages after a position in order, and then their texts."""
    statement = _LIVE_TEXTS if with_texts else _LIVE_FACTS
    while rows := statement.rows(connection, sid, position):
        yield from rows
        position = rows[-1][_POSITION]
        if len(rows) < READ_AT_ONCE:
            return


_CALLS = Prepared(
    select(*FACTS)
    .where(in_range(messages), messages.c.calls.is_not(None))
    .order_by(messages.c.position.desc())
    .limit(literal_column("2048")),  # more names than any budget has room for
    ("of_sid", "first", "last"),
)
_SYSTEM = Prepared(
    select(*FACTS)
    .where(of_messages, messages.c.position <= bindparam("until"), is_pinnable)
    .order_by(messages.c.position.desc())
    .limit(literal_column("1")),
    ("of_sid", "until"),
)


def refresh_covered(
    connection: SupportsStatements,
    session: SessionSnapshot,
    known: CachedSession,
    *,
    at_once: bool,
) -> None:
    """Read the covered messages again, where those in the cache may be others.

    Raises:
        WouldBlock: too much must be read `at_once`.
    """
    requests = _requests_within(known.summary, known.messages)
    calls_of = (session.version, session.evicted_changes, *requests)
    if known.calls_of != calls_of:
        if requests and at_once:
            raise WouldBlock
        known.covered_calls = _calls_in(connection, session.sid, known.messages, known.summary)
        known.calls_of = calls_of
    # The newest system message is evicted only after a newer one came.
    if session.retracted_seq and known.system_of != known.arrangement:
        is_pinned = pinned_message(known.messages) is not None
        if at_once and not is_pinned:
            raise WouldBlock
        known.covered_system = None if is_pinned else _system(connection, session.sid, END_POSITION)
        known.system_of = known.arrangement


def covered_calls_as_of(
    connection: SupportsStatements,
    sid: int,
    shown: Sequence[Message],
    summary: StoredSummary | None,
    state: StateAsOf,
) -> tuple[Message, ...]:
    """Return the covered calls of an earlier moment; some may be live again or retracted since."""
    return _calls_in(connection, sid, shown, summary, retracted=state.retracted)


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


def _requests_within(summary: StoredSummary | None, shown: Sequence[Message]) -> list[int]:
    """Return the positions of the shown requests that stand before the end of a summary."""
    end = 0 if summary is None else summary.last_position
    until_end = takewhile(lambda message: message.position < end, shown)
    return [message.position for message in until_end if message.is_request]


def _calls_in(
    connection: SupportsStatements,
    sid: int,
    shown: Sequence[Message],
    summary: StoredSummary | None,
    *,
    retracted: Sequence[Message] = (),
) -> tuple[Message, ...]:
    """Return the covered messages with calls and `retracted` ones, of the newest turn with any.

    `shown` are the messages that the summary does not cover, in order; the request of that turn is
    one.
    """
    requests = _requests_within(summary, shown)
    if summary is None or not requests:
        return ()
    known = {message.position for message in shown}
    # What is shown after the summary changes without a new version.
    first, last = requests[0], summary.last_position
    found = [message_of(row) for row in _CALLS.rows(connection, sid, first, last)]
    found += [
        message for message in retracted if message.calls and first <= message.position <= last
    ]
    covered = sorted(
        [message for message in found if message.position not in known], key=attrgetter("position")
    )
    if not covered:
        return ()
    request = requests[bisect_right(requests, covered[-1].position) - 1]
    return tuple([message for message in covered if message.position > request])
