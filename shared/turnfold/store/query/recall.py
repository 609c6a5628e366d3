"""Find earlier messages by the word index, as places in the order of their session.

One snapshot answers everything: the order of the session, the places of each lookup, and the texts
of the messages that were chosen.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, bindparam, literal_column, select, true

from turnfold.cache import LRUCache
from turnfold.core.recall.block import Quote, RecalledMessage, RecallMaterial
from turnfold.core.recall.mask_ranking import MOST_MASKED
from turnfold.core.recall.question import RecallQuestion
from turnfold.core.recall.quotes import MarkedLine
from turnfold.core.text.tokens import text_of
from turnfold.messages import MESSAGES_PER_EVENT, Message
from turnfold.ports.recall import (
    Choice,
    Recollection,
    SearchedSession,
)
from turnfold.store.database.engine import Database
from turnfold.store.database.inline_reader import WouldBlock, fetch_small
from turnfold.store.database.message_rows import RECALLED, recalled_of, storable_key
from turnfold.store.database.predicates import of_messages, unseen
from turnfold.store.database.schema import messages, sessions
from turnfold.store.database.statements import (
    Fetch,
    Prepared,
    PreparedAt,
    SupportsStatements,
    all_rows,
)
from turnfold.store.database.word_segments import Headers
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
    read_order,
)
from turnfold.store.query.word_matches import SessionLookups, WordMatches

ORDERS_BYTES = 32_000_000
"""The most bytes of cached session orders: about 24 for a message, 300 for a lookup, and 400 for a
marked line, of which the newest messages may have 20,000."""
HEADERS_BYTES = 8_000_000
"""The most bytes of cached headers of segments, on PostgreSQL."""
MOST_INLINE, MOST_NEW_INLINE, MOST_READ_INLINE = 12_000, 100, 200
"""The longest session that is searched in the event loop's thread, in a few milliseconds.

So many messages at most may be missing in its cached order or in the index, and so many are read.
"""
MOST_TOKENS_INLINE = 2_000_000
"""The most tokens of such a session: FTS5 reads all places of the words with a beginning."""
MOST_LINES_INLINE = 1_000
"""The most marked lines that are compared there: a few large results may have 256 each."""
_decode: Final = json.JSONDecoder().raw_decode
_BODY_PLACE: Final = len(RECALLED) - 1

_session = select(
    sessions.c.messages_total,
    sessions.c.unindexed_from,
    sessions.c.tokens_total,
    sessions.c.retracted_seq,
    sessions.c.evicted_changes,
).where(sessions.c.sid == bindparam("of_sid", type_=BigInteger))
_SESSION, _WIDTH, _GONE = Prepared(_session, ("of_sid",)), 5, (0, None, 0, 0, 0)
_newest = (
    ORDER.where(messages.c.position > unseen(bindparam("after", type_=BigInteger)))
    .limit(literal_column(str(MOST_NEWEST)))
    .lateral("newest")
)
_SESSION_AND_NEWEST = Prepared(
    _session.add_columns(_newest).select_from(sessions.outerjoin(_newest, true())),
    ("of_sid", "after", "most"),
)
_BODY = Prepared(
    select(messages.c.body).where(
        of_messages, messages.c.position == bindparam("at", type_=BigInteger)
    ),
    ("of_sid", "at"),
)
_MESSAGES = PreparedAt(select(*RECALLED).where(of_messages), messages.c.position)
_RESULTS = PreparedAt(
    select(messages.c.position, messages.c.answers_position).where(of_messages),
    messages.c.tool_call_id,
)
MOST_RESULTS = 64
"""The most calls of a message whose results are looked up."""


Question = Callable[[Callable[[int], str]], RecallQuestion]
"""Makes a question; it is given a function that returns the body of the message at a position."""


class _Asked(NamedTuple):
    """A session with its number of messages, and those that are searched: before `until`."""

    sid: int
    until: int
    total: int
    unindexed_from: int | None
    is_inline: bool


class SqlRecallStore:
    """Recall in SQL; see `turnfold.ports.recall.RecallStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._orders: LRUCache[int, SessionOrder] = LRUCache(ORDERS_BYTES)
        self._headers: Headers = LRUCache(HEADERS_BYTES)
        self.caches: tuple[LRUCache[Any, Any], ...] = (self._orders, self._headers)

    async def recall(
        self,
        sid: int,
        *,
        until: int,
        question: Question,
        choose: Callable[[SearchedSession], Choice],
    ) -> Recollection:
        """Return the chosen messages and lines, from one snapshot."""

        def read(connection: SupportsStatements, *, is_inline: bool = False) -> Recollection:
            session, newest = _read_session(connection, sid, self._orders.get(sid))
            total, unindexed_from, tokens, *changes = session
            if is_inline and (total > MOST_INLINE or tokens > MOST_TOKENS_INLINE):
                raise WouldBlock
            most = MOST_NEW_INLINE if is_inline else total
            order = self._order(connection, sid, total, tuple(changes), most, newest)
            if is_inline and order.has_many_lines:
                self._keep(sid, order)
                raise WouldBlock
            try:
                asked = _Asked(sid, until, total, unindexed_from, is_inline)
                found = self._recall(connection, order, asked, question, choose)
            except WouldBlock:
                # A thread goes on with it. After another error, it may be half.
                self._keep(sid, order)
                raise
            self._keep(sid, order)
            return found

        known = self._orders.get(sid)
        if known is None or len(known.positions) <= MOST_INLINE:
            try:
                # Tried first: a thread takes up to a quarter longer for a short session.
                return self._database.read_inline(partial(read, is_inline=True))
            except WouldBlock:
                pass
        return await self._database.snapshot(read)

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
        sid, until, total, unindexed_from, is_inline = asked
        wanted = question(lambda position: _body(connection, sid, position))
        end = bisect_left(order.positions, until)
        # A speaker who speaks only later must not change an earlier decision.
        named = {
            word
            for word in wanted.words & order.speakers.keys()
            if order.speakers[word].speaks_before(end)
        }
        lookups = wanted.lookups_without(named)

        is_short = end <= MOST_MASKED
        indexed_to = until if unindexed_from is None else min(unindexed_from, until)
        indexed = bisect_left(order.positions, indexed_to)
        _add_words(connection, sid, order, indexed, end, MOST_NEW_INLINE if is_inline else total)
        words = WordMatches(connection, sid, until, messages=total, headers=self._headers)
        of_session = SessionLookups(words, order, indexed, end)

        def marked_lines(most: int) -> Mapping[int, Sequence[MarkedLine]]:
            marked = marks_before(connection, sid, order, indexed, end, most)
            order.has_many_lines = sum(map(len, marked.values())) > MOST_LINES_INLINE
            if is_inline and order.has_many_lines:
                raise WouldBlock
            return marked

        stored = _StoredMessages(connection, sid, _few if is_inline else all_rows)
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
        material = _read(stored, choice, until, order)
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

        Raises:
            WouldBlock: the cached one lacks more than `most` messages.
        """
        # Taken out while it is used: two reader threads must not change one order.
        order = self._orders.pop(sid)
        if order is None or order.changes != changes:
            order = SessionOrder(changes)
        if total - len(order.positions) > most:
            if order.positions:
                self._keep(sid, order)
            raise WouldBlock
        return read_order(connection, sid, order, total, newest)

    def _keep(self, sid: int, order: SessionOrder) -> None:
        order.newest.trim()
        order.new_bodies = {}
        # Lines are of a few hundred messages, and soon read again; the order is of all messages.
        if order.weight > self._orders.max_entry_weight:
            order.marks = NewestMarks()
        self._orders.put(sid, order, order.weight)


def _read_session(
    connection: SupportsStatements, sid: int, known: SessionOrder | None
) -> tuple[Sequence[Any], Rows]:
    """Read the counters of a session, and on PostgreSQL the newest rows that `known` lacks."""
    if known is None or not known.positions or connection.dialect.name == "sqlite":
        return next(iter(_SESSION.rows(connection, sid)), _GONE), ()
    after = known.positions[-1]
    rows = _SESSION_AND_NEWEST.rows(connection, sid, after, UNINDEXED_CHARACTERS)
    newest = [row[_WIDTH:] for row in rows if row[_WIDTH] is not None]
    return rows[0][:_WIDTH] if rows else _GONE, newest


def _add_words(
    connection: SupportsStatements, sid: int, order: SessionOrder, indexed: int, end: int, most: int
) -> None:
    """Bring the newest words up to the ordinal `end`; the index has the messages to `indexed`.

    Raises:
        WouldBlock: more than `most` messages must be read.
    """
    newest = order.newest
    newest.prepare(indexed, end, has_known=bool(order.known))
    if end - newest.end > most:
        raise WouldBlock
    if order.new_bodies and newest.end >= order.new_from:
        known = order.new_bodies.items()
        bodies = {at: body for at, body in known if newest.end <= at < end}
    else:
        bodies = read_bodies(connection, sid, order.positions, newest.end, end)
    newest.add(bodies, end)


def _body(connection: SupportsStatements, sid: int, position: int) -> str:
    # The request may have been retracted or erased since the window was read.
    return next((row[0] for row in _BODY.rows(connection, sid, position)), "{}")


@dataclass(frozen=True, slots=True)
class _StoredMessages:
    """Messages of a session that were read, with their bodies, by position."""

    connection: SupportsStatements
    sid: int
    fetch: Fetch
    found: dict[int, tuple[Message, str]] = field(default_factory=dict)

    def add(self, wanted: Collection[int]) -> None:
        """Read missing messages."""
        missing = sorted(set(wanted) - self.found.keys())
        for row in _MESSAGES.rows(self.connection, self.sid, missing, self.fetch):
            self.found[row[0]] = recalled_of(row)

    def texts(self, positions: Sequence[int]) -> list[str]:
        """Return the texts of messages."""
        self.add(positions)
        return [text_of(json.loads(self.found[at][1])) for at in positions if at in self.found]


def _few(cursor: Any) -> list[Sequence[Any]]:
    """Fetch rows of `RECALLED`.

    Raises:
        WouldBlock: they are large.
    """
    return fetch_small(cursor, lambda row: len(row[_BODY_PLACE]))


def _read(
    stored: _StoredMessages, choice: Choice, until: int, order: SessionOrder
) -> RecallMaterial:
    """Read the chosen messages, their calls and results, and the messages of the chosen lines.

    Results that came later are left out, or a block that is decided again would have more.
    """
    positions = [order.positions[ordinal] for ordinal in choice.messages]
    quoted = [order.positions[ordinal] for ordinal, _ in choice.lines]
    stored.add([*positions, *quoted])
    found = stored.found
    whole = [found[position][0] for position in positions if position in found]
    belonging = _partners(stored.connection, stored.sid, whole) - set(positions)
    stored.add([position for position in belonging if position < until])
    partners = sorted(belonging & found.keys())
    ordinals = dict(zip(positions, choice.messages, strict=True))
    ordinals |= {order.positions[ordinal]: ordinal for ordinal, _ in choice.lines}
    ordinals |= zip(partners, order.ordinals(partners), strict=True)
    recalled = _recallable(ordinals, found)
    return RecallMaterial(
        [recalled[position] for position in positions if position in recalled],
        [recalled[position] for position in partners if position in recalled],
        [
            Quote(recalled[position], line)
            for position, (_, line) in zip(quoted, choice.lines, strict=True)
            if position in recalled
        ],
    )


def _recallable(
    ordinals: Mapping[int, int], stored: Mapping[int, tuple[Message, str]]
) -> dict[int, RecalledMessage]:
    """Return the messages at these positions as they may be recalled, without copies."""
    return {
        position: _recalled(message, body, ordinals[position])
        for position, (message, body) in stored.items()
        if position in ordinals and not message.is_copy
    }


def _partners(connection: SupportsStatements, sid: int, whole: Sequence[Message]) -> set[int]:
    """Return the positions of the calls and the results that belong to these messages.

    Of a message with many calls, the results of the first ones at least.
    """
    wanted = {message.answers.position for message in whole if message.answers is not None}
    calling = {message.position: message.calls for message in whole if message.calls}
    ids = [
        storable_key(call.call_id) for calls in calling.values() for call in calls[:MOST_RESULTS]
    ]
    for position, answered in _RESULTS.rows(connection, sid, ids):
        if answered in calling:
            wanted.add(position)
    return wanted


def _recalled(message: Message, body: str, ordinal: int) -> RecalledMessage:
    # Stored bodies have no spaces around them, which takes half of the time to find out.
    decoded, _ = _decode(body)
    said_at = _to_the_minute(message.created_at_ms // 60_000)
    return RecalledMessage(message, ordinal, said_at, decoded)


@lru_cache(maxsize=4_096)
def _to_the_minute(minutes: int) -> str:
    """Return a time since the epoch as `2026-11-20 10:00`."""
    said_at = datetime.fromtimestamp(60 * minutes, tz=UTC)
    return said_at.isoformat(" ", "minutes").partition("+")[0]
