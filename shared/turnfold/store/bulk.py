"""Many rows at once, without a dictionary for each: SQLAlchemy writes the SQL once, the driver takes the tuples."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table, bindparam, update
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import UpdateBase


class Bulk:
    """A statement run for many tuples of values; `names` says which parameter each place of a tuple is."""

    def __init__(self, statement: UpdateBase, names: Sequence[str]) -> None:
        self._statement = statement
        self._names = tuple(names)
        self._written: dict[str, tuple[str, tuple[int, ...] | None]] = {}

    async def run(self, connection: AsyncConnection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run it for each row."""
        if not rows:
            return
        sql, order = self._sql(connection.dialect)
        if order is not None:
            rows = [tuple(row[place] for place in order) for row in rows]
        await connection.exec_driver_sql(sql, rows)

    def _sql(self, dialect: Dialect) -> tuple[str, tuple[int, ...] | None]:
        """The statement in a dialect's words, and the order in which it wants the values (None: as they come)."""
        if dialect.name not in self._written:
            compiled = self._statement.compile(dialect=dialect, column_keys=list(self._names))
            wanted = compiled.positiontup or ()
            order = tuple(self._names.index(name) for name in wanted)
            self._written[dialect.name] = (str(compiled), None if order == tuple(range(len(self._names))) else order)
        return self._written[dialect.name]


def bulk_insert(table: Table, names: Sequence[str]) -> Bulk:
    """Insert rows of these columns."""
    return Bulk(table.insert(), names)


def bulk_update(table: Table, *, where: Sequence[str], values: Sequence[str]) -> Bulk:
    """Update rows found by some columns; a tuple holds the values first, then what is compared with."""
    statement = update(table).values({name: bindparam(f"new_{name}") for name in values})
    for name in where:
        statement = statement.where(table.c[name] == bindparam(f"old_{name}"))
    return Bulk(statement, [*(f"new_{name}" for name in values), *(f"old_{name}" for name in where)])
