"""Look up the messages of a session with any of some terms, in the index of either database."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from sqlalchemy import (
    BigInteger,
    Integer,
    Text,
    bindparam,
    cast,
    column,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.dialects import postgresql

from turnfold.core.text.search import Lookup, Term
from turnfold.store.database.engine import VOCABULARY
from turnfold.store.database.schema import word_index
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.database.word_segments import (
    Headers,
    SessionIndex,
    newest_of_terms,
    rare_terms,
    read_index,
)
from turnfold.store.ingest.word_index.search_index import fts5_term, of_session, tsquery_term

LEAST_EXPANDED = 8_000
"""In shorter sessions, FTS5 finds words by their beginning faster than we find the words."""
MOST_FORMS = 32
"""Of a beginning with more words, FTS5 reads all places."""

_until = bindparam("until", type_=BigInteger)
_most = bindparam("most", type_=Integer)
_matching = (
    select(word_index.c.position)
    .where(
        word_index.c.terms.op("@@")(cast(bindparam("asked", type_=Text), postgresql.TSQUERY)),
        word_index.c.position < _until,
    )
    # Otherwise the planner might read all positions backwards.
    .cte("matching")
    .prefix_with("MATERIALIZED")
)
_falling = (
    select(word_index.c.rowid)
    .where(text("word_index MATCH :asked"), word_index.c.rowid < _until)
    .order_by(word_index.c.rowid.desc())
)
_MATCHES = {
    "sqlite": Prepared(_falling.limit(_most), ("asked", "until", "most")),
    "postgresql": Prepared(
        select(_matching.c.position).order_by(_matching.c.position.desc()).limit(_most),
        ("asked", "until", "most"),
    ),
}
_BEYOND = Prepared(_falling.limit(literal_column("1")).offset(_most), ("asked", "until", "most"))
"""A row only if there are more than so many: FTS5 counts in a third of the time of reading them."""
_vocabulary = table(VOCABULARY, column("term", Text), schema="temp")
_TERM_FROM = Prepared(
    select(_vocabulary.c.term)
    .where(_vocabulary.c.term >= bindparam("first", type_=Text))
    .limit(literal_column("1")),
    ("first",),
)


class WordMatches:
    """The word index of a session with so many `messages`, of those before the position `until`."""

    def __init__(
        self,
        connection: SupportsStatements,
        sid: int,
        until: int,
        *,
        messages: int,
        headers: Headers,
    ) -> None:
        self._connection, self._sid, self.until = connection, sid, until
        self._is_long = messages >= LEAST_EXPANDED
        self._headers = headers
        self._dialect = connection.dialect.name

    def rare(self, lookups: Sequence[Lookup], most: int) -> list[list[int] | None]:
        """Return for each lookup the falling positions with any of its terms; None of too many.

        Those of more than `most` messages are not read: FTS5 takes long for them.
        """
        if self._dialect == "sqlite":
            read = self._rare_of_long if self._is_long else self._rare_rows
            return [read(lookup, most) for lookup in lookups]
        segments, has_rows = self._segments
        terms = {term for lookup in lookups for term in lookup}
        held = rare_terms(self._connection, self._sid, segments, terms, until=self.until, most=most)
        matches: list[list[int] | None] = []
        for lookup in lookups:
            of_terms = [held[term] for term in lookup]
            rows = self._rare_rows(lookup, most) if has_rows else []
            if rows is None or any(positions is None for positions in of_terms):
                matches.append(None)
                continue
            found = set(rows).union(*[positions or () for positions in of_terms])
            matches.append(sorted(found, reverse=True) if len(found) <= most else None)
        return matches

    def newest(self, lookups: Sequence[Lookup], number: int) -> list[list[int]]:
        """Return so many of the newest positions of each lookup, falling."""
        if self._dialect == "sqlite":
            return [self._rows(self._written(lookup), number) for lookup in lookups]
        segments, has_rows = self._segments
        terms = {term for lookup in lookups for term in lookup}
        held = newest_of_terms(
            self._connection, self._sid, segments, terms, until=self.until, newest=number
        )
        matches = []
        for lookup in lookups:
            found: set[int] = set().union(*(held[term] for term in lookup))
            if has_rows:
                found.update(self._rows(self._tsquery(lookup), number))
            matches.append(sorted(found, reverse=True)[:number])
        return matches

    @cached_property
    def _segments(self) -> SessionIndex:
        return read_index(self._connection, self._sid, self._headers)

    def _rare_rows(self, lookup: Lookup, most: int) -> list[int] | None:
        """Read the positions of a lookup from one row per message."""
        asked = self._fts5(lookup) if self._dialect == "sqlite" else self._tsquery(lookup)
        found = self._rows(asked, most + 1)
        return found if len(found) <= most else None

    def _rare_of_long(self, lookup: Lookup, most: int) -> list[int] | None:
        """Read the positions of a lookup, in a long session on SQLite."""
        asked = self._written(lookup)
        if not asked or _BEYOND.rows(self._connection, asked, self.until, most):
            return None if asked else []
        return self._rows(asked, most)

    def _rows(self, asked: str, number: int) -> list[int]:
        if not asked:
            return []
        rows = _MATCHES[self._dialect].rows(self._connection, asked, self.until, number)
        return [position for (position,) in rows]

    def _tsquery(self, lookup: Lookup) -> str:
        return " | ".join([tsquery_term(self._sid, term) for term in lookup])

    def _fts5(self, lookup: Lookup) -> str:
        return " OR ".join([fts5_term(self._sid, term) for term in lookup])

    def _written(self, lookup: Lookup) -> str:
        """Return a lookup of SQLite with the words of the session for each beginning.

        FTS5 reads all places of all words that begin so. Of whole words it reads as many as asked.
        """
        if not self._is_long:
            return self._fts5(lookup)
        terms: list[Term] = []
        for term in lookup:
            words = list(self._words(term.text)) if term.is_prefix else [term]
            terms += words if len(words) <= MOST_FORMS else [term]
        return self._fts5(tuple(terms))

    def _words(self, beginning: str) -> Iterator[Term]:
        """Yield the terms of the session that begin so, one more than `MOST_FORMS` at most."""
        session = len(of_session(self._sid, ""))
        first = asked = of_session(self._sid, beginning)
        for _ in range(MOST_FORMS + 1):
            rows = _TERM_FROM.rows(self._connection, first)
            if not rows or not rows[0][0].startswith(asked):
                return
            term: str = rows[0][0]
            yield Term(term[session:])
            # Terms have only letters and digits: no other one stands before this.
            first = f"{term}0"
