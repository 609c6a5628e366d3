"""Notices, kept until the stream has them."""

from collections.abc import Sequence

from sqlalchemy import Integer, bindparam, delete, select

from turnfold.ports.admin import Notice
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import outbox
from turnfold.store.database.statements import Bulk, Prepared

_OLDEST = Prepared(
    select(outbox).order_by(outbox.c.outbox_id).limit(bindparam("most", type_=Integer)), ("most",)
)
_FORGET = Bulk(delete(outbox).where(outbox.c.outbox_id == bindparam("sent")), ("sent",))


class SqlOutboxStore:
    """The outbox in SQL; see `turnfold.ports.admin.OutboxStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def unsent(self, limit: int) -> Sequence[Notice]:
        """Return the oldest notices that the stream may not have yet."""
        return await self._database.read_small(
            lambda connection: [Notice(*row) for row in _OLDEST.rows(connection, limit)]
        )

    async def sent(self, notices: Sequence[Notice]) -> None:
        """Delete notices that the stream has."""
        ids = [(notice.outbox_id,) for notice in notices]
        # If a power cut undoes it, the notices are published again, and the stream knows their ids.
        await self._database.write(
            lambda connection: _FORGET.run(connection, ids), is_repeatable=True
        )
