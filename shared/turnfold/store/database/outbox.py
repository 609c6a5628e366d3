"""Notices, kept until the stream has them."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Integer, bindparam, delete, select

from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import confirm_stream
from turnfold.store.database.schema import outbox
from turnfold.store.database.statements import Bulk, Prepared, SupportsStatements

_OLDEST = Prepared(
    select(outbox).order_by(outbox.c.outbox_id).limit(bindparam("most", type_=Integer)), ("most",)
)
_FORGET = Bulk(delete(outbox).where(outbox.c.outbox_id == bindparam("sent")), ("sent",))


class Notice(NamedTuple):
    """An outgoing event, stored until the stream has it."""

    outbox_id: int
    subject: str
    payload: str


class SqlOutboxStore:
    """Notices that are not published yet, oldest first.

    `stream_created` is the creation time of the stream of the bus that gets the notices; None if
    the database belongs to none.
    """

    def __init__(self, database: Database, *, stream_created: str | None = None) -> None:
        self._database = database
        self._stream_created = stream_created

    async def unsent(self, limit: int) -> Sequence[Notice]:
        """Return the oldest notices that the stream may not have yet.

        Raises:
            StartError: the database belongs to another stream now.
        """

        def find(connection: SupportsStatements) -> Sequence[Notice]:
            notices = [Notice(*row) for row in _OLDEST.rows(connection, limit)]
            # Afterwards, because notices that came since belong on another bus.
            confirm_stream(connection, self._stream_created)
            return notices

        return await self._database.read_small(find)

    async def sent(self, notices: Sequence[Notice]) -> None:
        """Delete notices that the stream has."""
        ids = [(notice.outbox_id,) for notice in notices]
        # If a power cut undoes it, the notices are published again, and the stream knows their ids.
        await self._database.write(
            lambda connection: _FORGET.run(connection, ids), is_repeatable=True
        )
