"""Read the marked lines of a session's newest messages, most of them once."""

from collections.abc import Mapping, Sequence

from sqlalchemy import BigInteger, bindparam, select

from turnfold.core.recall.quotes import NEWEST_MESSAGES, MarkedLine, read_marks
from turnfold.store.database.schema import marked_lines
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.query.session_order import SessionOrder

_MARKED = Prepared(
    select(marked_lines.c.position, marked_lines.c.lines)
    .where(
        marked_lines.c.sid == bindparam("of_sid", type_=BigInteger),
        marked_lines.c.position.between(
            bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
        ),
    )
    .order_by(marked_lines.c.position),
    ("of_sid", "first", "last"),
)


def marks_before(
    connection: SupportsStatements, sid: int, order: SessionOrder, indexed: int, end: int
) -> Mapping[int, Sequence[MarkedLine]]:
    """Return the marked lines of the newest messages before the ordinal `end`, by ordinals.

    Copies are left out, and what is never recalled. Lines are marked as messages are indexed, so
    those of the messages before `indexed` are kept, of the newest ones only.
    """
    first, known = max(0, end - NEWEST_MESSAGES), order.marks
    if not known.first <= first <= known.end:
        found = _read(connection, sid, order, first, end)
    else:
        held = {at: lines for at, lines in known.lines.items() if first <= at < end}
        found = held | _read(connection, sid, order, known.end, end)
    if known.end < end:
        known.first, known.end = first, min(indexed, end)
        known.lines = {at: lines for at, lines in found.items() if at < indexed}
    return found


def _read(
    connection: SupportsStatements, sid: int, order: SessionOrder, first: int, end: int
) -> dict[int, Sequence[MarkedLine]]:
    """Read the marked lines of the messages with ordinals from `first` to before `end`."""
    newest = order.positions[first:end]
    rows = _MARKED.rows(connection, sid, newest[0], newest[-1]) if newest else ()
    ordinals = dict(zip(newest, range(first, end), strict=True)) if newest else {}
    return {
        ordinals[position]: read_marks(lines)
        for position, lines in rows
        if position in ordinals and order.tokens[ordinals[position]]
    }
