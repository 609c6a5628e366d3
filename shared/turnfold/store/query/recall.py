"""Find earlier messages by the word index, as places in the order of their session.

One snapshot answers everything: the order of the session, the places of each lookup, and the texts
of the messages that were chosen. On PostgreSQL, statements in no transaction do if the order is
cached, and the last one sees the session as the first one did.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    bindparam,
    literal_column,
    null,
    select,
    true,
    union_all,
)

from turnfold.cache import LRUCache
from turnfold.core.recall.mask_ranking import MOST_MASKED
from turnfold.core.recall.question import RecallQuestion
from turnfold.core.recall.quotes import LEAST_LINE_BYTES, MarkedLine, read_marks
from turnfold.core.text.search import Lookup
from turnfold.messages import MESSAGES_PER_EVENT
from turnfold.ports.recall import (
    Choice,
    Recollection,
    SearchedSession,
    SessionMoved,
)
from turnfold.store.database.engine import Database
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.predicates import is_kept, of_messages, unseen
from turnfold.store.database.schema import marked_lines, messages, sessions
from turnfold.store.database.statements import (
    Prepared,
    PreparedIn,
    SupportsStatements,
    all_rows,
)
from turnfold.store.database.word_segments import LISTED, SegmentCaches, is_listed, newest_known
from turnfold.store.query.recalled_messages import StoredMessages, few, read_chosen
from turnfold.store.query.session_order import (
    MOST_NEWEST,
    ORDER,
    UNINDEXED_CHARACTERS,
    UNINDEXED_MESSAGES,
    NewestMarks,
    Rows,
    SessionOrder,
    marks_before,
    read_bodies,
    read_newest,
)
from turnfold.store.query.word_matches import SessionLookups, WordMatches

ORDERS_BYTES = 32_000_000
"""The most bytes of cached session orders: about 24 for a message, 300 for a lookup, and 400 for a
marked line, of which the newest messages may have 20,000.

One session may take all: the order of a million messages takes more than a second to read.
"""
HEADERS_BYTES, PIECES_BYTES = 8_000_000, 16_000_000
"""The most bytes of cached headers of segments, and of other pieces, on PostgreSQL."""
MOST_NEW_INLINE, MOST_READ_INLINE = 100, 400
"""A session is searched in the event loop's thread, in a few milliseconds however long it is.

At most `MOST_NEW_INLINE` messages may be missing in its cached order or in the index, and at most
`MOST_READ_INLINE` are read.
"""
MOST_TOKENS_INLINE = 2_000_000
"""The most tokens of a short session there: FTS5 reads all places of the words with a beginning."""
MOST_LINES_INLINE = 1_000
"""The most marked lines that are compared there: a few large results may have 256 each."""

MOST_NAMING = 64
"""The most older messages whose lines are read because they hold a name of the question."""

_session = select(
    sessions.c.revision - sessions.c.appends,
    sessions.c.messages_total,
    sessions.c.unindexed_from,
    sessions.c.tokens_total,
    sessions.c.retracted_seq,
    sessions.c.evicted_changes,
).where(sessions.c.sid == bindparam("of_sid", type_=BigInteger))
_SESSION, _WIDTH, _GONE = Prepared(_session, ("of_sid",)), 6, (-1, 0, None, 0, 0, 0)
_newest = (
    ORDER.where(messages.c.position > unseen(bindparam("after", type_=BigInteger)))
    .limit(literal_column(str(MOST_NEWEST)))
    .subquery()
)


def _nulls(number: int) -> list[ColumnElement[Any]]:
    return [null().label(f"none_{place}") for place in range(number)]


_newest_and_segments = union_all(
    select(*_newest.c, *_nulls(len(LISTED))),
    select(*_nulls(len(_newest.c)), *LISTED).where(is_listed),
).subquery()
_FIRST = Prepared(
    _session.where(is_kept)
    .add_columns(sessions.c.revision, _newest_and_segments)
    .select_from(sessions.outerjoin(_newest_and_segments, true())),
    ("of_sid", "after", "most", "known"),
)
"""A session, its newest messages and the segments of its index, for PostgreSQL."""
_MESSAGES_AT, _SEGMENTS_AT = _WIDTH + 1, _WIDTH + 1 + len(_newest.c)
_BODY = Prepared(
    select(messages.c.body).where(
        of_messages, messages.c.position == bindparam("at", type_=BigInteger)
    ),
    ("of_sid", "at"),
)

_MARKED_AT = PreparedIn(
    select(marked_lines.c.position, marked_lines.c.lines).where(
        marked_lines.c.sid == bindparam("of_sid")
    ),
    marked_lines.c.position,
    "of_sid",
)
Marked = Mapping[int, Sequence[MarkedLine]]
"""The marked lines of messages, by ordinals."""
Question = Callable[[Callable[[int], str]], RecallQuestion]
"""Makes a question; it is given a function that returns the body of the message at a position."""


class _First(NamedTuple):
    """Rows of the first statement of a read in no transaction, after the counters of the session.

    Others have no revision, and read the rest by statements of their own.
    """

    newest: Rows = ()
    segments: Rows | None = None
    revision: int | None = None


class _Asked(NamedTuple):
    """A session with its number of messages, and those that are searched: before `until`."""

    sid: int
    until: int
    total: int
    unindexed_from: int | None
    is_inline: bool
    first: _First


class SqlRecallStore:
    """Recall in SQL; see `turnfold.ports.recall.RecallStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._orders: LRUCache[int, SessionOrder] = LRUCache(ORDERS_BYTES, ORDERS_BYTES)
        self._segments = SegmentCaches(LRUCache(HEADERS_BYTES), LRUCache(PIECES_BYTES))
        self.caches: tuple[LRUCache[Any, Any], ...] = (self._orders, *self._segments)

    async def recall(
        self,
        sid: int,
        *,
        until: int,
        question: Question,
        choose: Callable[[SearchedSession], Choice],
        changes: int | None = None,
    ) -> Recollection:
        """Return the chosen messages and lines, as they were at one moment."""
        is_sqlite = self._database.is_sqlite

        def read(connection: SupportsStatements, *, at_once: bool = False) -> Recollection:
            is_inline, first = at_once and is_sqlite, _First()
            if at_once and not is_sqlite:
                counters, first = self._read_first(connection, sid)
            else:
                counters = next(iter(_SESSION.rows(connection, sid)), _GONE)
            changed, total, unindexed_from, tokens, *voiding = counters
            if changes not in (None, changed):
                raise SessionMoved
            if is_inline and total <= MOST_MASKED and tokens > MOST_TOKENS_INLINE:
                raise WouldBlock
            most = MOST_NEW_INLINE if is_inline else total
            order = self._order(connection, sid, total, tuple(voiding), most, first.newest)
            if is_inline and order.has_many_lines:
                self._keep(sid, order)
                raise WouldBlock
            asked = _Asked(sid, until, total, unindexed_from, is_inline, first)
            try:
                found = self._recall(connection, order, asked, question, choose)
            except WouldBlock:
                # A thread goes on with it. After another error, it may be half.
                self._keep(sid, order)
                raise
            self._keep(sid, order)
            return found

        known = self._orders.get(sid)
        if is_sqlite or (known is not None and known.positions):
            try:
                # Tried first: a thread takes up to a quarter longer, and a transaction of
                # PostgreSQL costs as much as two statements.
                return await self._database.read_at_once(partial(read, at_once=True))
            except WouldBlock:
                pass
        return await self._database.snapshot(read)

    def _read_first(self, connection: SupportsStatements, sid: int) -> tuple[Sequence[Any], _First]:
        """Read the counters of a session, its newest messages and the list of its segments.

        Raises:
            WouldBlock: its order is not cached, or it is erased.
        """
        order = self._orders.get(sid)
        if order is None or not order.positions:
            raise WouldBlock
        after, known = order.positions[-1], newest_known(self._segments.headers, sid)
        rows = _FIRST.rows(connection, sid, after, UNINDEXED_CHARACTERS, known)
        if not rows:
            raise WouldBlock
        newest = [row[_MESSAGES_AT:_SEGMENTS_AT] for row in rows if row[_MESSAGES_AT] is not None]
        segments = [row[_SEGMENTS_AT:] for row in rows if row[_SEGMENTS_AT] is not None]
        by_number = itemgetter(0)
        newest.sort(key=by_number)
        segments.sort(key=by_number)
        return rows[0][:_WIDTH], _First(newest, segments, rows[0][_WIDTH])

    def _recall(
        self,
        connection: SupportsStatements,
        order: SessionOrder,
        asked: _Asked,
        question: Question,
        choose: Callable[[SearchedSession], Choice],
    ) -> Recollection:
        """Search a session in its order.

        Raises:
            WouldBlock: it takes too long for the event loop's thread.
        """
        sid, until, total, unindexed_from, is_inline, first = asked
        wanted = question(lambda position: _body(connection, sid, position))
        end = bisect_left(order.positions, until)
        # A speaker who speaks only later must not change an earlier decision.
        spoken = wanted.words & order.speakers.keys()
        named = {word for word in spoken if order.speakers[word].speaks_before(end)}
        lookups = wanted.lookups_without(named)

        is_short = end <= MOST_MASKED
        indexed_to = until if unindexed_from is None else min(unindexed_from, until)
        indexed = bisect_left(order.positions, indexed_to)
        _add_words(connection, sid, order, indexed, end, MOST_NEW_INLINE if is_inline else total)
        words = WordMatches(
            connection, sid, until, messages=total, caches=self._segments, listed=first.segments,
            is_inline=is_inline,
        )  # fmt: skip
        of_session = SessionLookups(words, order, indexed, end)

        def marked_lines(most: int, lookups: Sequence[Lookup]) -> Marked:
            return _marked_lines(connection, sid, of_session, most, lookups, is_inline=is_inline)

        state = None if first.revision is None else (first.revision, unindexed_from)
        stored = StoredMessages(connection, sid, few if is_inline else all_rows, state)
        session = SearchedSession(
            wanted,
            order.positions if end == total else order.positions[:end],
            order.tokens if end == total else order.tokens[:end],
            of_session.found_masks(lookups) if is_short else None,
            () if is_short else of_session.found(lookups),
            [order.speakers[word] for word in sorted(named)],
            of_session.rare_masks,
            lambda ordinals: stored.texts([order.positions[ordinal] for ordinal in ordinals]),
            marked_lines,
            order.is_own,
        )
        choice = choose(session)
        if is_inline and len(choice.messages) > MOST_READ_INLINE:
            raise WouldBlock
        material = read_chosen(stored, choice, until, order)
        is_partial = end - indexed > UNINDEXED_MESSAGES
        return Recollection(material, indexed_to // MESSAGES_PER_EVENT, is_partial)

    def _order(
        self,
        connection: SupportsStatements,
        sid: int,
        total: int,
        changes: tuple[int, ...],
        most: int,
        newest: Rows,
    ) -> SessionOrder:
        """Return the order of a session; read only what the cached one and `newest` lack.

        Events may be ingested late, before others: then the counts differ, and all is read again.

        Raises:
            WouldBlock: more than `most` messages must be read.
        """
        # Taken out while it is used: two reader threads must not change one order.
        order = self._orders.pop(sid)
        if order is None or order.changes != changes:
            order = SessionOrder(changes)
        for _ in range(2):
            if total - len(order.positions) > most:
                self._keep(sid, order)
                raise WouldBlock
            read_newest(connection, sid, order, total, newest)
            if len(order.positions) == total:
                break
            # Masks, words and lines go by ordinals, which a late message shifts: none is kept.
            order = SessionOrder(changes)
        return order

    def _keep(self, sid: int, order: SessionOrder) -> None:
        order.newest.trim()
        order.new_bodies = {}
        weight = order.weight
        # Lines are of a few hundred messages, and soon read again; the order is of all messages.
        if weight > self._orders.max_entry_weight:
            weight -= order.marks.weight
            order.marks = NewestMarks()
        self._orders.put(sid, order, weight)


def _add_words(
    connection: SupportsStatements, sid: int, order: SessionOrder, indexed: int, end: int, most: int
) -> None:
    """Bring the newest words up to the ordinal `end`; the index has the messages to `indexed`.

    Raises:
        WouldBlock: more than `most` messages must be read.
    """
    newest = order.newest
    has_known = bool(order.known or order.places or order.newest_places)
    newest.prepare(indexed, end, has_known=has_known)
    if end - newest.end > most:
        raise WouldBlock
    if order.new_bodies and newest.end >= order.new_from:
        known = order.new_bodies.items()
        bodies = {at: body for at, body in known if newest.end <= at < end}
    else:
        bodies = read_bodies(connection, sid, order.positions, newest.end, end)
    newest.add(bodies, end)


def _marked_lines(
    connection: SupportsStatements, sid: int, found: SessionLookups, most: int,
    lookups: Sequence[Lookup], *, is_inline: bool,
) -> Marked:  # fmt: skip
    """Return the marked lines of the newest messages, and of older ones that match a lookup.

    Raises:
        WouldBlock: they are too many for the event loop's thread.
    """
    order, end = found.order, found.end
    marked = marks_before(connection, sid, order, found.indexed, end, most)
    stored: dict[int, bytes] = {}
    if lookups and most < end:
        first = order.positions[end - most]
        matches = {at for at in chain.from_iterable(found.found(lookups)) if at < first}
        older = order.ordinals(sorted(matches)[-MOST_NAMING:])
        ordinals = {order.positions[at]: at for at in older if order.tokens[at]}
        rows = _MARKED_AT.rows(connection, sid, list(ordinals))
        stored = {ordinals[position]: lines for position, lines in rows}
    # By their bytes, because reading the lines takes long, too.
    of_older = sum(map(len, stored.values())) // LEAST_LINE_BYTES
    order.has_many_lines = of_older + sum(map(len, marked.values())) > MOST_LINES_INLINE
    if is_inline and order.has_many_lines:
        raise WouldBlock
    return {**{at: read_marks(lines) for at, lines in stored.items()}, **marked}


def _body(connection: SupportsStatements, sid: int, position: int) -> str:
    # The request may have been retracted or erased since the window was read.
    return next((row[0] for row in _BODY.rows(connection, sid, position)), "{}")
