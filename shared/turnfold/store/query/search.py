"""Find messages by the word index, and list those that it lacks.

See `turnfold.store.ingest.word_index.search_index` for how the index is filled.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    asc,
    bindparam,
    desc,
    false,
    func,
    literal,
    select,
    text,
    true,
)
from sqlalchemy.dialects import postgresql

from turnfold.core.text.search import Lookup, Term
from turnfold.messages import SessionKey, State
from turnfold.ports.query import (
    OriginalMessage,
)
from turnfold.ports.search import Candidates, Scope
from turnfold.store.compact.coverage import covered_compactions
from turnfold.store.database.engine import Database
from turnfold.store.database.message_rows import estimated_length
from turnfold.store.database.predicates import is_live
from turnfold.store.database.schema import compactions, messages, sessions, word_index
from turnfold.store.database.word_segments import find_terms, read_index
from turnfold.store.ingest.word_index.search_index import IS_IN_SQLITE, UNDIVIDED, fts5_term
from turnfold.store.query.originals import ORIGINALS, fitting_places, length_of, original_of
from turnfold.store.query.session_head import session_row

NEWEST, OLDEST = 200, 60
"""How many messages a lookup brings at most, from either end of the session."""
LOOKED_AT = 10_000
"""How many matches at either end are checked against the scope of a search."""
CHARACTERS_READ = 4_000_000
"""The most characters that all lookups of one search read."""
PAGE_MESSAGES, PAGE_CHARACTERS = 500, 2_000_000

Sized = dict[int, int]


class SqlSearchStore:
    """Search in SQL; see `turnfold.ports.query.SearchStore`."""

    def __init__(self, database: Database, *, looked_at: int = LOOKED_AT) -> None:
        self._database = database
        self._looked_at = looked_at

    async def unindexed(
        self, key: SessionKey, *, scope: Scope, after_position: int
    ) -> Sequence[OriginalMessage]:
        """Return a page of messages that the index may lack, in order; empty at the end."""

        def read(connection: Connection) -> list[OriginalMessage]:
            sid, first = session_row(connection, key, sessions.c.sid, sessions.c.unindexed_from)
            if first is None:
                return []
            behind = (
                (messages.c.sid == sid)
                & (messages.c.position >= first)
                & (messages.c.position > after_position)
            )
            places = (
                select(messages.c.position, estimated_length(messages))
                .where(behind)
                .order_by(messages.c.position)
                .limit(PAGE_MESSAGES)
            )
            chosen = _scoped(_between(places, messages.c.position, scope), sid, scope)
            sizes = dict(_pairs(connection, chosen))
            return _read(connection, sid, _fitting(connection, sid, sizes, PAGE_CHARACTERS, asc))

        return await self._database.snapshot(read)

    async def candidates(
        self, key: SessionKey, lookups: Sequence[Lookup], *, scope: Scope
    ) -> Candidates:
        """Return messages with all terms of a lookup; of too many, the newest and the oldest."""

        def read(connection: Connection) -> Candidates:
            (sid,) = session_row(connection, key, sessions.c.sid)
            matching: Matching = (
                partial(_matching_fts5, sid)
                if connection.dialect.name == "sqlite"
                else _SegmentMatches(connection, sid, lookups, scope, self._looked_at).matching
            )
            sizes: Sized = {}
            is_partial = False
            for lookup in lookups:
                if lookup:
                    places, position = matching(lookup)
                    ends, is_cut = _ends(connection, places, position, sid, scope, self._looked_at)
                    sizes |= ends
                    is_partial |= is_cut
            chosen = _fitting(connection, sid, sizes, CHARACTERS_READ, desc)
            return Candidates(
                _read(connection, sid, chosen), is_partial or len(chosen) < len(sizes)
            )

        return await self._database.snapshot(read)


Places = Select[*tuple[Any, ...]]
Matching = Callable[[Lookup], tuple[Places, ColumnElement[int]]]


def _ends(
    connection: Connection,
    places: Places,
    position: ColumnElement[int],
    sid: int,
    scope: Scope,
    looked_at: int,
) -> tuple[Sized, bool]:
    """Return positions and sizes of the newest and oldest matches, and whether others exist.

    The index knows only positions. Each further condition of a scope costs a read per message, so
    the number of examined matches is limited.
    """
    places = _between(places, position, scope)
    is_filtered = scope != Scope(
        after_position=scope.after_position, before_position=scope.before_position
    )

    def end(order: Callable[[ColumnElement[int]], ColumnElement[int]], most: int) -> Sized:
        looked = (
            places.order_by(order(position))
            .limit(looked_at if is_filtered else most)
            .subquery("looked")
        )
        joined = looked.join(
            messages, and_(messages.c.sid == sid, messages.c.position == looked.c.position)
        )
        chosen = _scoped(
            select(messages.c.position, estimated_length(messages)).select_from(joined),
            sid,
            scope,
        )
        return dict(_pairs(connection, chosen.order_by(order(looked.c.position)).limit(most)))

    # Both ends: the newest matches are what is usually meant, and the oldest is where a value was
    # named first.
    newest = end(desc, NEWEST)
    if len(newest) < NEWEST and not (is_filtered and _has_more(connection, places, looked_at)):
        return newest, False
    both = newest | end(asc, OLDEST)
    return both, is_filtered or len(both) == NEWEST + OLDEST


def _has_more(connection: Connection, places: Places, than: int) -> bool:
    return (
        connection.execute(
            select(func.count()).select_from(places.limit(than + 1).subquery())
        ).scalar_one()
        > than
    )


def _matching_fts5(sid: int, lookup: Lookup) -> tuple[Places, ColumnElement[int]]:
    """Select matching positions. FTS5 returns them in key order, so nothing is sorted."""
    words = " AND ".join(fts5_term(sid, term) for term in lookup)
    asked = f"({words}) OR {fts5_term(sid, Term(UNDIVIDED))}"
    matches = text("word_index MATCH :asked").bindparams(asked=asked)
    found = select(word_index.c.rowid.label("position")).where(matches)
    return found.where(IS_IN_SQLITE), word_index.c.rowid


class _SegmentMatches:
    """The matches of lookups in PostgreSQL's segments."""

    def __init__(
        self,
        connection: Connection,
        sid: int,
        lookups: Sequence[Lookup],
        scope: Scope,
        looked_at: int,
    ) -> None:
        self._scope, self._looked_at = scope, looked_at
        terms = {term for lookup in lookups for term in lookup} | {Term(UNDIVIDED)}
        self._positions = find_terms(connection, sid, read_index(connection, sid), terms)

    def matching(self, lookup: Lookup) -> tuple[Places, ColumnElement[int]]:
        """Select the positions of messages with all terms, the outermost ones of too many."""
        scope, most = self._scope, max(self._looked_at, NEWEST) + 1
        matches = set.intersection(*(self._positions[term] for term in lookup))
        positions = sorted(matches | self._positions[Term(UNDIVIDED)])
        if scope.after_position is not None:
            positions = positions[bisect_right(positions, scope.after_position) :]
        if scope.before_position is not None:
            positions = positions[: bisect_left(positions, scope.before_position)]
        # One more at each end than is examined, so that `_has_more` sees that others exist.
        if len(positions) > 2 * most:
            positions = positions[:most] + positions[-most:]
        listed = bindparam("positions", positions, postgresql.ARRAY(BigInteger), unique=True)
        found = select(func.unnest(listed).label("position")).cte("found")
        matched = found.prefix_with("MATERIALIZED")
        return select(matched.c.position), matched.c.position


def _between(places: Places, position: ColumnElement[int], scope: Scope) -> Places:
    if scope.after_position is not None:
        places = places.where(position > scope.after_position)
    return (
        places if scope.before_position is None else places.where(position < scope.before_position)
    )


def _scoped(places: Places, sid: int, scope: Scope) -> Places:
    if scope.role is not None:
        places = places.where(messages.c.role == scope.role)
    if scope.version is not None:
        # `IS TRUE`, so that PostgreSQL reads them once, into a hash. In a join, it may read them
        # again for each message.
        covered = covered_compactions(sid, scope.version)
        places = places.where(messages.c.compaction_id.in_(covered).is_(true()))
    match scope.state:
        case None:
            return places
        case State.LIVE:
            return places.where(is_live)
        case State.RETRACTED:
            return places.where(false())
        case State.PENDING | State.COVERED:
            is_covered = select(compactions.c.is_covered).where(
                compactions.c.compaction_id == messages.c.compaction_id
            )
            return places.where(
                is_covered.scalar_subquery() == literal(scope.state is State.COVERED)
            )


def _pairs(connection: Connection, chosen: Places) -> list[tuple[int, int]]:
    return [(position, size) for position, size in map(tuple[Any, ...], connection.execute(chosen))]


def _fitting(
    connection: Connection, sid: int, sizes: Sized, most: int,
    order: Callable[[ColumnElement[int]], ColumnElement[int]],
) -> list[int]:  # fmt: skip
    """Return messages whose texts fit into the limit, the first of this order, at least one.

    The sizes are estimates, in which media have a flat price, so texts are measured until the limit
    is reached.
    """
    likely = fitting_places(sizes.items(), most)
    if not likely:
        return []
    lengths = select(messages.c.position, length_of(messages)).where(_are(sid, likely))
    with connection.execute(lengths.order_by(order(messages.c.position))) as measured:
        return fitting_places(map(tuple[int, int], measured), most)


def _read(connection: Connection, sid: int, positions: Sequence[int]) -> list[OriginalMessage]:
    if not positions:
        return []
    chosen = ORIGINALS.where(_are(sid, positions)).order_by(messages.c.position)
    return [original_of(row) for row in connection.execute(chosen)]


def _are(sid: int, positions: Sequence[int]) -> ColumnElement[bool]:
    places = bindparam("places", positions, BigInteger, expanding=True)
    return (messages.c.sid == sid) & messages.c.position.in_(places)
