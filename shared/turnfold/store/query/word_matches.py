"""Look up the newest messages with any of some terms, in the index of either database."""

from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import BigInteger, Connection, Integer, Text, bindparam, cast, select, text
from sqlalchemy.dialects import postgresql

from turnfold.core.text.search import Lookup, Term
from turnfold.store.database.schema import word_index
from turnfold.store.database.statements import Prepared
from turnfold.store.database.word_segments import Headers, find_terms, read_index
from turnfold.store.ingest.word_index.search_index import fts5_term, tsquery_term

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
_MATCHES = {
    "sqlite": Prepared(
        select(word_index.c.rowid)
        .where(text("word_index MATCH :asked"), word_index.c.rowid < _until)
        .order_by(word_index.c.rowid.desc())
        .limit(_most),
        ("asked", "until", "most"),
    ),
    "postgresql": Prepared(
        select(_matching.c.position).order_by(_matching.c.position.desc()).limit(_most),
        ("asked", "until", "most"),
    ),
}


def newest_matches(
    connection: Connection,
    sid: int,
    lookups: Sequence[Lookup],
    until: int,
    most: int,
    *,
    headers: Headers,
) -> list[list[int]]:
    """Return for each lookup the newest positions before `until` with any of its terms, falling."""
    if connection.dialect.name == "sqlite":
        write = partial(fts5_term, sid)
        return [_in_rows(connection, lookup, until, most, write) for lookup in lookups]
    segments, has_rows = read_index(connection, sid, headers)
    terms = {term for lookup in lookups for term in lookup}
    held = find_terms(connection, sid, segments, terms, until=until, newest=most)
    matches = []
    for lookup in lookups:
        found: set[int] = set().union(*(held[term] for term in lookup))
        if has_rows:
            write = partial(tsquery_term, sid)
            found.update(_in_rows(connection, lookup, until, most, write))
        matches.append(sorted(found, reverse=True)[:most])
    return matches


def _in_rows(
    connection: Connection, lookup: Lookup, until: int, most: int, write: Callable[[Term], str]
) -> list[int]:
    """Return the newest positions before `until` that one row per message has of any term."""
    dialect = connection.dialect.name
    either = " OR " if dialect == "sqlite" else " | "
    asked = either.join([write(term) for term in lookup])
    rows = _MATCHES[dialect].rows(connection, asked, until, most)
    return [position for (position,) in rows]
