"""Ingested stream sequences, as ranges."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from sqlalchemy import Connection, bindparam, delete, func, literal_column, select

from turnfold.store.database.schema import ingested_ranges
from turnfold.store.database.statements import Bulk, BulkInsert, Prepared, SupportsStatements

Range = tuple[int, int]

_MEETING = Prepared(
    select(ingested_ranges).where(
        ingested_ranges.c.first_seq <= bindparam("high"),
        ingested_ranges.c.last_seq >= bindparam("low"),
    ),
    ("high", "low"),
)
_REMOVE = Bulk(
    delete(ingested_ranges).where(ingested_ranges.c.first_seq == bindparam("first")), ("first",)
)
_INSERT = BulkInsert(ingested_ranges, ("first_seq", "last_seq"))
# Whatever waits for the lock waits for each round trip under it, so this is one statement.
_JOIN = """
    WITH new (first, last) AS (SELECT * FROM unnest($1::bigint[], $2::bigint[])),
    met AS (DELETE FROM ingested_ranges USING new WHERE first_seq <= last + 1
              AND last_seq >= first - 1 RETURNING first_seq, last_seq),
    parts (first, last) AS (SELECT * FROM new UNION ALL SELECT * FROM met),
    joined AS (SELECT unnest(range_agg(int8range(first, last, '[]'))) AS joined FROM parts),
    stored AS (INSERT INTO ingested_ranges SELECT lower(joined), upper(joined) - 1 FROM joined)
    SELECT first_seq, last_seq FROM met"""
# Ranges do not touch, so the one that begins at 1 ends before the first gap.
_first_range = (
    select(ingested_ranges.c.last_seq)
    .where(ingested_ranges.c.first_seq == literal_column("1"))
    .scalar_subquery()
)
INGESTED_TO = func.coalesce(_first_range, literal_column("0"))
"""The sequence up to which every event is ingested, as a column."""
_WHOLE_TO = Prepared(select(INGESTED_TO), ())


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the same sequences in as few ranges as possible."""
    joined_ranges: list[Range] = []
    for first, last in sorted(ranges):
        if joined_ranges and first <= joined_ranges[-1][1] + 1:
            joined_ranges[-1] = (joined_ranges[-1][0], max(joined_ranges[-1][1], last))
        else:
            joined_ranges.append((first, last))
    return joined_ranges


def stretches(positions: Iterable[tuple[int, bool]]) -> list[Range]:
    """Join chosen positions into ranges; a position that is not chosen ends a range."""
    ranges: list[Range] = []
    is_open = False
    for position, is_chosen in positions:
        if is_chosen:
            ranges.append((ranges.pop()[0] if is_open else position, position))
        is_open = is_chosen
    return ranges


def add(connection: Connection, ranges: Iterable[Range]) -> list[Range]:
    """Record sequences as ingested; return the ranges that they met, as they were."""
    new = joined(ranges)
    if not new:
        return []
    if connection.dialect.name == "postgresql":
        return _add_locked(connection, new)
    stored = sorted(
        {
            (first, last)
            for low, high in new
            # Beyond both ends by one: a range that only touches is joined, too.
            for first, last in _MEETING.rows(connection, high + 1, low - 1)
        }
    )
    after = joined([*stored, *new])
    # The usual case of a redelivery.
    if after != stored:
        _REMOVE.run(connection, [(first,) for first, _ in stored])
        _INSERT.run(connection, after)
    return stored


def _add_locked(connection: Connection, new: Sequence[Range]) -> list[Range]:
    # Two transactions that join ranges at once could leave ranges that touch.
    connection.exec_driver_sql("LOCK TABLE ingested_ranges IN SHARE ROW EXCLUSIVE MODE")
    firsts_and_lasts = tuple(map(list, zip(*new, strict=True)))
    return [(first, last) for first, last in connection.exec_driver_sql(_JOIN, firsts_and_lasts)]


def is_ingested(connection: SupportsStatements, seq: int) -> bool:
    """Return whether a sequence is ingested."""
    return bool(_MEETING.rows(connection, seq, seq))


def whole_to(connection: SupportsStatements) -> int:
    """Return the sequence up to which every event is ingested."""
    return int(_WHOLE_TO.rows(connection)[0][0])


def gaps(connection: Connection, up_to: int) -> Sequence[Range]:
    """Return the missing ranges, up to `up_to` or the highest ingested sequence."""
    stored = [
        (first, last)
        for first, last in connection.execute(
            select(ingested_ranges).order_by(ingested_ranges.c.first_seq)
        )
    ]
    # An empty range before the first sequence and one after the last make gaps at the ends look
    # like gaps in between.
    behind = pairwise([(0, 0), *stored, (up_to + 1, up_to + 1)])
    return [(before[1] + 1, after[0] - 1) for before, after in behind if after[0] > before[1] + 1]
