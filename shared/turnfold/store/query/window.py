"""Read a session for a window in one snapshot: its row, summary, evictions, messages and texts."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import literal_column

from turnfold.cache import LRUCache
from turnfold.core.history.as_of import AsOf, AtTime, EvictionSpan
from turnfold.errors import BadRequest
from turnfold.messages import MessageId, SessionKey
from turnfold.ports.query import (
    END_POSITION,
    END_SEQ,
    Chosen,
    OriginalMessage,
    SessionSnapshot,
    TooLargeHere,
    WindowSnapshot,
)
from turnfold.store.database.engine import Database
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.message_rows import EVICTED, message_of
from turnfold.store.database.predicates import is_pending, of_compactions
from turnfold.store.database.schema import (
    compactions,
)
from turnfold.store.database.sequence_ranges import whole_to
from turnfold.store.database.statements import (
    Prepared,
    SupportsStatements,
)
from turnfold.store.ingest.model_windows import limits_of
from turnfold.store.query.as_of import (
    PENDING_EVICTIONS,
    messages_as_of,
    pending_as_of,
    pending_of,
    timeline_state,
)
from turnfold.store.query.carried import with_carry
from turnfold.store.query.message_cache import (
    KNOWN,
    READ_INLINE,
    CachedSession,
    append_new,
    arrangement_of,
    covered_calls_as_of,
    covered_system_as_of,
    live_messages,
    refresh_covered,
)
from turnfold.store.query.originals import originals_at, text_at, texts_of
from turnfold.store.query.session_head import (
    missing_sessions,
    read_head,
    read_head_and_newest,
    read_summary,
)

# Open compactions of `on_summary`, regenerations and stand-ins have evicted nothing.
_is_pending = is_pending & (compactions.c.messages_evicted > literal_column("0"))
_PENDING = Prepared(
    PENDING_EVICTIONS.where(of_compactions, _is_pending).order_by(compactions.c.ordinal),
    ("of_sid",),
)


class Size(NamedTuple):
    """The size of a session, as far as it determines the cost of a window."""

    messages: int
    tokens: int

    def exceeds(self, most: "Size | None") -> bool:
        """Return whether either number is above the limit."""
        return most is not None and (self.messages > most.messages or self.tokens > most.tokens)


AT_ONCE = Size(messages=1_024, tokens=500_000)
"""The largest session whose window is built here: 4 ms at the limit, 12 at twice as much."""
CALLS_AT_ONCE = 1_024
"""The most tool calls of such a session; each may need a stand-in for its result."""


class SqlWindowStore:
    """Windows in SQL; see `turnfold.ports.query.WindowStore`.

    With `most`, larger sessions are refused with `TooLargeHere`.
    """

    def __init__(self, database: Database, most: Size | None = None) -> None:
        self._database = database
        self._most = most
        self._known: LRUCache[int, CachedSession] = LRUCache(KNOWN)
        # The position after which messages are new, by the hash of a session's key. Another one
        # costs a transaction, so it is never wrong.
        self._ends: LRUCache[int, int] = LRUCache(KNOWN // 8)
        self.caches: tuple[LRUCache[Any, Any], ...] = (self._known,)

    async def ingested_to(self) -> int:
        """Return the sequence up to which every event is ingested.

        Raises:
            Unavailable: the database cannot be read now.
        """
        return await self._database.read_small(whole_to)

    async def erased_sessions(self, numbers: Collection[int]) -> set[int]:
        """Return those of these session numbers that are not stored; none is ever used again.

        Raises:
            Unavailable: the database cannot be read now.
        """
        return await self._database.snapshot(partial(missing_sessions, numbers=numbers))

    async def window(
        self,
        key: SessionKey,
        *,
        on_session: Callable[[WindowSnapshot], Chosen | None],
        on_messages: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
        refused_to: int = END_SEQ,
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session in one snapshot."""

        def read(
            connection: SupportsStatements, *, at_once: bool = False
        ) -> tuple[Chosen, Mapping[int, str]]:
            head, newest = self._head(connection, key, refused_to, at_once=at_once)
            chosen = on_session(head)
            if chosen is not None:
                return chosen, {}
            if head.session is None:
                return on_messages(head)[0], {}
            sid = head.session.sid
            # Taken out while it is used: two reader threads must not change one entry.
            known = self._known.pop(sid) or CachedSession()
            try:
                texts = self._refresh(connection, head.session, known, newest, at_once=at_once)
            # After any other error the entry is dropped: it may hold a part of a change.
            except (TooLargeHere, WouldBlock):
                self._known.put(sid, known, known.size)
                # Else each window of a session that has become too large would read texts in vain.
                self._ends.pop(hash(key))
                raise
            self._known.put(sid, known, known.size)
            if known.messages:
                self._ends.put(hash(key), known.messages[-1].position, 1)
            waiting = tuple([pending_of(row) for row in known.evictions])
            snapshot = WindowSnapshot(
                head.ingested_to,
                head.session,
                known.summary,
                waiting,
                tuple(known.messages),
                head.refused,
                known.covered_calls,
                known.covered_system,
                body_at=partial(text_at, connection, sid),
            )
            chosen, positions = on_messages(snapshot)
            # Texts that were read already have positive positions: elements are always read here.
            unread = [position for position in positions if position not in texts]
            older = dict(texts_of(connection, sid, unread))
            # A text never changes, but its message may have been retracted or erased meanwhile.
            if newest is not None and len(older) < len(unread):
                raise WouldBlock
            return chosen, {**texts, **older}

        try:
            # Tried first: the way to a thread and back costs more than a small window, and so does
            # a transaction of PostgreSQL.
            return await self._database.read_at_once(partial(read, at_once=True))
        except WouldBlock:
            return await self._database.snapshot(read)

    def _head(
        self, connection: SupportsStatements, key: SessionKey, refused_to: int, *, at_once: bool
    ) -> tuple[WindowSnapshot, Sequence[Sequence[Any]] | None]:
        """Read the row of a session; `at_once` on PostgreSQL, also its newest messages.

        They may change between two statements, of which each then has a snapshot of its own.
        """
        if not at_once or self._database.is_sqlite:
            return read_head(connection, key, refused_to), None
        after = self._ends.get(hash(key)) or END_POSITION
        return read_head_and_newest(connection, key, refused_to, after)

    def _refresh(
        self,
        connection: SupportsStatements,
        session: SessionSnapshot,
        known: CachedSession,
        newest: Sequence[Sequence[Any]] | None,
        *,
        at_once: bool,
    ) -> Mapping[int, str]:
        """Bring the cache up to date, and return the texts of new messages, if they are few.

        `newest` are rows of messages that were read with the session, if nothing else may be read.

        Raises:
            TooLargeHere: the session is too large for this process.
            WouldBlock: too much must be read `at_once`.
        """
        sid, is_longer = session.sid, known.has_all_but_new(session)
        if newest is not None and not is_longer:
            raise WouldBlock
        evictions = known.evictions if is_longer else _PENDING.rows(connection, sid)
        messages_now = session.live_messages + sum([row[1] for row in evictions])
        if Size(messages_now, session.live_tokens).exceeds(self._most):
            raise TooLargeHere
        if at_once and newest is None and not known.can_read_inline(session, evictions):
            raise WouldBlock
        texts = append_new(connection, session, known, newest) if is_longer else None
        if texts is None:
            if newest is not None:
                raise WouldBlock
            texts = _read(connection, session, evictions, known)
        # Only known after the messages were read, unlike the sizes above.
        calls = sum([len(message.calls) for message in known.messages])
        if self._most is not None and calls > CALLS_AT_ONCE:
            raise TooLargeHere
        refresh_covered(connection, session, known, at_once=at_once)
        return texts

    async def window_as_of(
        self,
        key: SessionKey,
        moment: AsOf,
        *,
        on_session: Callable[[WindowSnapshot], Chosen | None],
        on_messages: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
        refused_to: int = END_SEQ,
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session as it was, in one snapshot, without the cache."""

        def read(connection: SupportsStatements) -> tuple[Chosen, Mapping[int, str]]:
            head = read_head(connection, key, refused_to)
            chosen = on_session(head)
            if chosen is not None:
                return chosen, {}
            if head.session is None:
                if not isinstance(moment, AtTime):
                    raise BadRequest("as_of: no event of this session is stored")
                return on_messages(head)[0], {}
            self._check_past(head.session)
            sid = head.session.sid
            state = timeline_state(
                connection, key, sid, moment, partial(self._check_past, head.session)
            )
            messages_then = messages_as_of(connection, sid, state)
            pending = pending_as_of(connection, state)
            summary = read_summary(connection, sid, state.version)
            session = replace(
                head.session,
                messages_total=state.covered + len(messages_then),
                version=state.version,
                window_limits=_limits_as_of(connection, head.session, state.at_ms),
            )
            snapshot = replace(
                head,
                session=session,
                summary=summary,
                pending=pending,
                messages=tuple(messages_then),
                covered_calls=covered_calls_as_of(connection, sid, messages_then, summary, state),
                covered_system=covered_system_as_of(connection, sid, messages_then, state),
                body_at=partial(text_at, connection, sid),
            )
            chosen, positions = on_messages(snapshot)
            texts = dict(texts_of(connection, sid, positions))
            if state.retracted:
                texts |= dict(texts_of(connection, sid, positions, are_retracted=True))
            return chosen, texts

        return await self._database.snapshot(read)

    def _check_past(
        self, session: SessionSnapshot, evictions: Sequence[EvictionSpan] | None = None
    ) -> None:
        """Check the number of rows before a session's past is read, then that of its messages.

        These are the live ones and those of `evictions`.

        Raises:
            TooLargeHere: the session is too large for this process.
        """
        rows, tokens = session.versions + session.compactions, 0
        if evictions is not None:
            rows = session.live_messages + sum([span.messages for span in evictions])
            tokens = session.live_tokens + sum([span.tokens for span in evictions])
        if Size(rows, tokens).exceeds(self._most):
            raise TooLargeHere

    async def originals(
        self, sid: int, positions: Sequence[int]
    ) -> Mapping[MessageId, OriginalMessage]:
        """Return the stored messages at these positions by id, also retracted ones.

        Raises:
            TooLarge: their events carry too much for an answer.
        """

        def read(
            connection: SupportsStatements, *, is_inline: bool = False
        ) -> Sequence[OriginalMessage]:
            if is_inline and len(positions) > READ_INLINE:
                raise WouldBlock
            found = list(originals_at(connection, sid, positions))
            if missing := sorted(set(positions) - {original.position for original in found}):
                # A window of the past shows messages that were retracted since.
                found += originals_at(connection, sid, missing, with_retracted=True)
            return with_carry(connection, sid, found, is_inline=is_inline)

        try:
            found = self._database.read_inline(lambda connection: read(connection, is_inline=True))
        except WouldBlock:
            found = await self._database.snapshot(read)
        return {MessageId(original.message_id): original for original in found}


def _limits_as_of(
    connection: SupportsStatements, session: SessionSnapshot, at_ms: int
) -> str | None:
    """Return the limits of a session as they were known at a time, as JSON; None without any."""
    if session.window_limits is None:
        return None
    return json.dumps(limits_of(connection, session.sid, at_ms))


def _read(
    connection: SupportsStatements,
    session: SessionSnapshot,
    evictions: Sequence[Sequence[Any]],
    known: CachedSession,
) -> Mapping[int, str]:
    """Read the summary and all messages that are not covered, as far as they are not cached.

    Return the texts of those that are new, if they are few.
    """
    sid, version = session.sid, session.version
    if known.summary is None or known.summary.version != version:
        known.summary = read_summary(connection, sid, version)
    # The count tells that some evicted message changed, not which one: all are read again.
    before = known.evicted if known.changes == session.evicted_changes else {}
    known.changes = session.evicted_changes
    known.evicted = {
        by: before.get(by)
        or [message_of(row) for row in EVICTED.rows(connection, sid, first, last, by)]
        for by, *_, first, last in evictions
    }
    live, texts = live_messages(connection, sid, known, session.live_messages)
    known.messages = [*chain.from_iterable(known.evicted.values()), *live]
    # Stragglers: evicted and live messages may alternate.
    if known.evicted:
        known.messages.sort(key=attrgetter("position"))
    known.arrangement, known.evictions = arrangement_of(session), evictions
    known.total = session.messages_total
    return texts
