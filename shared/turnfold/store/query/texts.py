"""Read the texts of a session's messages by their positions."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Table, bindparam, select

from turnfold.core.shapes.packing import unpack
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.schema import messages, retracted_messages
from turnfold.store.database.statements import PreparedAt, SupportsStatements


def _reading(table: Table, *names: str) -> PreparedAt:
    columns = [table.c[name] for name in ("position", *names)]
    of_session = select(*columns).where(table.c.sid == bindparam("of_sid"))
    return PreparedAt(of_session, table.c.position)


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
    negated = [-position for position in positions if position < 0]
    for position, body, original in elements.rows(connection, sid, negated):
        yield position, unpack(original, body)
    plain = [position for position in positions if position > 0]
    yield from ((position, body) for position, body in bodies.rows(connection, sid, plain))


def text_at(connection: SupportsStatements, sid: int, position: int) -> str:
    """Read the text of a message, which may have been retracted since.

    Raises:
        WouldBlock: it was erased after the statement before.
    """
    for are_retracted in (False, True):
        for _, body in texts_of(connection, sid, [position], are_retracted=are_retracted):
            return body
    raise WouldBlock
