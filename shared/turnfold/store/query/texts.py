"""Read the texts of messages that a window shows."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Table, bindparam, select

from turnfold.core.shapes.packing import unpack
from turnfold.store.database.schema import messages, retracted_messages
from turnfold.store.database.statements import Prepared, SupportsStatements

# A fixed number of places, so that one compiled statement reads any number of texts.
_PLACES = tuple(f"at_{number}" for number in range(64))


def _reading(table: Table, *names: str) -> Prepared:
    places = table.c.position.in_([bindparam(place) for place in _PLACES])
    columns = [table.c[name] for name in ("position", *names)]
    chosen = select(*columns).where(table.c.sid == bindparam("of_sid"), places)
    return Prepared(chosen, ("of_sid", *_PLACES))


_TABLES = (messages, retracted_messages)
_BODIES = tuple(_reading(table, "body") for table in _TABLES)
_ELEMENTS = tuple(_reading(table, "body", "original") for table in _TABLES)


def texts_of(
    connection: SupportsStatements,
    sid: int,
    positions: Sequence[int],
    *,
    are_retracted: bool = False,
) -> Iterator[tuple[int, str]]:
    """Read the texts of messages, or of retracted ones; a negated position asks for its element."""
    bodies, elements = _BODIES[are_retracted], _ELEMENTS[are_retracted]
    for filled in _filled([-position for position in positions if position < 0]):
        for position, body, original in elements.rows(connection, sid, *filled):
            yield position, unpack(original, body)
    for filled in _filled([position for position in positions if position > 0]):
        yield from ((position, body) for position, body in bodies.rows(connection, sid, *filled))


def _filled(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield positions in groups; the last position fills the unused parameters."""
    for start in range(0, len(positions), len(_PLACES)):
        places = positions[start : start + len(_PLACES)]
        yield [*places, *[places[-1]] * (len(_PLACES) - len(places))]
