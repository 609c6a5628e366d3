"""Read original messages in pages. `SqlHistoryStore` and the search use the same rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Table,
    bindparam,
    false,
    func,
    literal_column,
    select,
    true,
    union_all,
)

from turnfold.core.shapes.packing import unpack
from turnfold.errors import UnknownSession
from turnfold.messages import ELEMENTS, MESSAGES_PER_EVENT, SessionKey, State
from turnfold.ports.query import OriginalMessage
from turnfold.store.database.inline_reader import INLINE_CHARACTERS, WouldBlock, fetch_small
from turnfold.store.database.message_rows import estimated_length
from turnfold.store.database.schema import (
    compactions,
    messages,
    retracted_messages,
    sessions,
)
from turnfold.store.database.statements import (
    Prepared,
    PreparedIn,
    SupportsStatements,
)
from turnfold.store.query.carried import carried_length, with_carry_of

PAGE_CHARACTERS = 2_000_000
"""A page of messages ends at this size, so that a reply fits into one NATS message."""
BY_ID_CHARACTERS = 8_000_000
"""The most that several messages have that are read by their ids: about an answer of the bus."""

_BODY, _ORIGINAL = 3, 4
_COLUMNS = (
    "sid", "position", "event_id", "compaction_id", "body", "original", "is_meta", "characters",
    "tokens", "element", "is_error",
)  # fmt: skip
_WITH_RETRACTED = union_all(
    select(*(messages.c[name] for name in _COLUMNS), false().label("is_retracted")),
    select(*(retracted_messages.c[name] for name in _COLUMNS), true()),
).subquery("originals")


def _originals(source: FromClause) -> Select[*tuple[Any, ...]]:
    names = (
        "position", "event_id", "compaction_id", "body", "original", "is_meta", "element",
        "is_error",
    )  # fmt: skip
    state = [source.c.is_retracted] if "is_retracted" in source.c else []
    return select(*(source.c[name] for name in names), compactions.c.is_covered, *state).outerjoin(
        compactions, compactions.c.compaction_id == source.c.compaction_id
    )


ORIGINALS = _originals(messages)
_SOURCES = {False: (messages, ORIGINALS), True: (_WITH_RETRACTED, _originals(_WITH_RETRACTED))}


def originals_in(*, with_retracted: bool) -> tuple[FromClause, Select[*tuple[Any, ...]]]:
    """Return the rows of messages, and a statement to select from, with retracted ones or not."""
    return _SOURCES[with_retracted]


def length_of(source: FromClause) -> ColumnElement[int]:
    """Return the length of a message, as it is stored."""
    original_length = func.coalesce(func.length(source.c.original), literal_column("0"))
    return func.length(source.c.body) + original_length


_SID = Prepared(
    select(sessions.c.sid).where(
        (sessions.c.agent_id == bindparam("agent_id"))
        & (sessions.c.session_id == bindparam("session_id"))
    ),
    ("agent_id", "session_id"),
)
_NAMES = ("of_sid", "after", "before", "most")
_NAMED = {
    with_retracted: PreparedIn(
        originals.where(source.c.sid == bindparam("of_sid")), source.c.position, "of_sid"
    )
    for with_retracted, (source, originals) in _SOURCES.items()
}


def _pages(source: FromClause, originals: Select[*tuple[Any, ...]]) -> list[tuple[Prepared, ...]]:
    """Return statements for estimated lengths, lengths and rows: oldest first, newest first."""
    place = source.c.position
    between = (
        source.c.sid == bindparam("of_sid"),
        place > bindparam("after"),
        place < bindparam("before"),
    )
    most = bindparam("most", type_=BigInteger)
    sizes = [
        select(place, size, source.c.event_id, carried_length(source.c.event_id))
        for size in (estimated_length(source), length_of(source))
    ]
    statements = (*sizes, originals)
    return [
        tuple(
            Prepared(chosen.where(*between).order_by(order).limit(most), _NAMES)
            for chosen in statements
        )
        for order in (place, place.desc())
    ]


_ORDERED = {with_retracted: _pages(*source) for with_retracted, source in _SOURCES.items()}


def fitting_places(sizes: Iterable[tuple[int, int]], most: int) -> list[int]:
    """Return the first messages whose texts fit into the limit, at least one."""
    chosen: list[int] = []
    for position, size in sizes:
        # At least one, or a page would be empty before the end is reached.
        if chosen and size > most:
            break
        most -= size
        chosen.append(position)
    return chosen


@dataclass(frozen=True, slots=True)
class PageReading:
    """Read at most `limit` messages between two positions, in either order.

    The cost depends on the page, not on the length of the session.

    Every method raises `UnknownSession` if there is no such session.
    """

    after_position: int
    before_position: int
    limit: int
    newest_first: bool = False
    with_retracted: bool = False

    def read_small(
        self, connection: SupportsStatements, key: SessionKey
    ) -> Sequence[OriginalMessage]:
        """Read the page if it is small.

        Raises:
            WouldBlock: it is large; `read` it in a thread.
        """
        estimates, _, page = _ORDERED[self.with_retracted][self.newest_first]
        places = self._places(connection, key)
        carrying: set[str] = set()
        if sum(_sizes(estimates.rows(connection, *places), carrying)) > INLINE_CHARACTERS:
            raise WouldBlock
        rows = page.rows(connection, *places, fetch=_few)
        return with_carry_of(connection, places[0], [original_of(row) for row in rows], carrying)

    def read(self, connection: SupportsStatements, key: SessionKey) -> Sequence[OriginalMessage]:
        """Read the page, or its beginning if the messages are very long."""
        _, lengths, page = _ORDERED[self.with_retracted][self.newest_first]
        sid, after, before, most = self._places(connection, key)
        # The lengths first: a page of a thousand messages of a megabyte each must not be read only
        # to be cut.
        room, fitting, carrying = PAGE_CHARACTERS, 0, set[str]()
        for size in _sizes(lengths.rows(connection, sid, after, before, most), carrying):
            # At least one message, or nobody could read past a very long one.
            if fitting and size > room:
                break
            room, fitting = room - size, fitting + 1
        # In the snapshot of the lengths, so the same messages are the first ones again.
        rows = page.rows(connection, sid, after, before, fitting)
        return with_carry_of(connection, sid, [original_of(row) for row in rows], carrying)

    def finds_any(self, connection: SupportsStatements, key: SessionKey) -> bool:
        """Return whether there is a message between the positions."""
        estimates, _, _ = _ORDERED[self.with_retracted][False]
        return bool(estimates.rows(connection, *self._places(connection, key)))

    def _places(self, connection: SupportsStatements, key: SessionKey) -> tuple[int, int, int, int]:
        """Return the values of `_NAMES`."""
        session = _SID.rows(connection, key.agent_id, key.session_id)
        if not session:
            raise UnknownSession
        return session[0][0], self.after_position, self.before_position, self.limit


def _few(cursor: Any) -> list[Sequence[Any]]:
    """Fetch rows of `originals_in`, whose estimates count media at a flat price.

    Raises:
        WouldBlock: they are large.
    """
    return fetch_small(cursor, lambda row: len(row[_BODY]) + len(row[_ORIGINAL] or ""))


def _sizes(rows: Sequence[Sequence[Any]], carrying: set[str]) -> Iterator[int]:
    """Yield the sizes of messages; what an event carries belongs to its first message of the page.

    `carrying` collects the events that may carry something.
    """
    for _, size, event_id, carried in rows:
        if carried is None or event_id in carrying:
            yield size
        else:
            carrying.add(event_id)
            yield size + carried


def originals_at(
    connection: SupportsStatements,
    sid: int,
    positions: Sequence[int],
    *,
    with_retracted: bool = False,
) -> Iterator[OriginalMessage]:
    """Read messages by their positions, in any order."""
    return map(original_of, _NAMED[with_retracted].rows(connection, sid, positions))


def original_of(row: Sequence[Any]) -> OriginalMessage:
    """Build a message from a row of `originals_in`."""
    (
        position, event_id, compaction_id, body, original, is_meta, element, is_error, is_covered,
        *is_retracted,
    ) = row  # fmt: skip
    state = State.COVERED if is_covered else State.PENDING
    if compaction_id is None:
        state = State.LIVE
    if any(is_retracted):
        state = State.RETRACTED
    return OriginalMessage(
        f"{event_id}#{position % MESSAGES_PER_EVENT}",
        position,
        state,
        body,
        None if element else original,
        bool(is_meta),
        ELEMENTS[element or 0].shape,
        unpack(original, body) if element else None,
        is_error=bool(is_error),
    )


def _reading(table: Table, *names: str) -> PreparedIn:
    columns = [table.c[name] for name in ("position", *names)]
    of_session = select(*columns).where(table.c.sid == bindparam("of_sid"))
    return PreparedIn(of_session, table.c.position, "of_sid")


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
