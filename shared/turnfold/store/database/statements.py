"""Prepared statements: SQLAlchemy writes the SQL once, the driver gets plain tuples."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    TableClause,
    Text,
    bindparam,
    column,
    func,
    literal_column,
    select,
    table,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.types import TypeEngine
from sqlalchemy.util import await_only

from turnfold.errors import Unavailable
from turnfold.store.database.inline_reader import RawConnection
from turnfold.store.database.transactions import is_transient_error

SupportsStatements = Connection | RawConnection
"""The connections on which prepared statements run."""

Fetch = Callable[[Any], Sequence[Sequence[Any]]]


def all_rows(cursor: Any) -> Sequence[Sequence[Any]]:
    """Fetch all rows."""
    rows: Sequence[Sequence[Any]] = cursor.fetchall()
    return rows


class Prepared:
    """A SELECT compiled once per dialect, with positional parameters in the order of `names`."""

    def __init__(self, statement: Select[*tuple[Any, ...]], names: Sequence[str]) -> None:
        self._statement = statement
        self._names = tuple(names)
        self._written: dict[str, tuple[str, tuple[int, ...], tuple[Any, ...]]] = {}

    def rows(
        self, connection: SupportsStatements, *values: Any, fetch: Fetch = all_rows
    ) -> Sequence[Sequence[Any]]:
        """Return all rows, with the types of the driver; `fetch` takes them from its cursor."""
        sql, order, fixed = self._sql(connection.dialect)
        parameters = values + fixed
        return _fetched(connection, sql, tuple([parameters[place] for place in order]), fetch)

    def _sql(self, dialect: Dialect) -> tuple[str, tuple[int, ...], tuple[Any, ...]]:
        """Return the SQL, the order of its parameters, and constant parameters."""
        if dialect.name not in self._written:
            compiled = self._statement.compile(
                dialect=dialect, compile_kwargs={"render_postcompile": True, "literal_binds": False}
            )
            fixed = {
                name: value for name, value in compiled.params.items() if name not in self._names
            }
            # A parameter that `names` forgot would be sent as NULL, and the statement would find
            # nothing.
            if None in fixed.values():
                raise ValueError(
                    "parameters without a place: "
                    f"{sorted(name for name, value in fixed.items() if value is None)}"
                )
            places = (*self._names, *fixed)
            order = tuple(places.index(name) for name in compiled.positiontup or ())
            self._written[dialect.name] = (str(compiled), order, tuple(fixed.values()))
        return self._written[dialect.name]


class PreparedIn:
    """A SELECT of the rows whose column has a value of a list, which is its last parameter.

    The list is one parameter, so that one plan serves any number of values: PostgreSQL would plan
    a statement with many parameters each time, and SQLite takes 32,766 at most.
    """

    def __init__(
        self, statement: Select[*tuple[Any, ...]], column: ColumnElement[Any], *names: str
    ) -> None:
        as_array = bindparam("values", type_=ARRAY(column.type))
        as_json = func.json_each(bindparam("values", type_=Text)).table_valued("value")
        names = (*names, "values")
        self._of_arrays = Prepared(statement.where(column == func.any(as_array)), names)
        self._of_json = Prepared(statement.where(column.in_(select(as_json.c.value))), names)

    def rows(
        self, connection: SupportsStatements, *values: Any, fetch: Fetch = all_rows
    ) -> Sequence[Sequence[Any]]:
        """Return all rows; the last of these values is a list without bytes."""
        *others, listed = values
        if not listed:
            return ()
        if connection.dialect.name == "postgresql":
            return self._of_arrays.rows(connection, *others, list(listed), fetch=fetch)
        return self._of_json.rows(connection, *others, json.dumps(list(listed)), fetch=fetch)


PAIRS: Final = table("pairs", column("a"), column("b"))
"""The list that a `PreparedPairs` joins."""


class PreparedPairs:
    """A SELECT that joins `PAIRS`, a list of two values each.

    For `(a, b) IN (VALUES ...)` SQLite reads a whole table; it answers a join by index. PostgreSQL
    would read a whole table for a list of some hundred pairs, so it is told to look up each of
    them, unless all rows are locked in one order (`is_locked`).
    """

    def __init__(
        self,
        statement: Select[*tuple[Any, ...]],
        kinds: tuple[TypeEngine[Any], TypeEngine[Any]],
        *,
        is_locked: bool = False,
    ) -> None:
        self._statement = statement
        self._kinds = kinds
        self._is_locked = is_locked
        self._written: dict[tuple[str, int], str] = {}

    def rows(
        self, connection: SupportsStatements, values: Sequence[tuple[Any, Any]]
    ) -> Sequence[Sequence[Any]]:
        """Return all rows, with the types of the driver."""
        if not values:
            return ()
        dialect = connection.dialect
        has_arrays = dialect.name == "postgresql"
        written = (dialect.name, 0 if has_arrays else len(values))
        if written not in self._written:
            statement = self._looked_up() if has_arrays and not self._is_locked else self._statement
            self._written[written] = (
                f"WITH pairs (a, b) AS ({self._pairs(dialect, len(values))}) "
                f"{statement.compile(dialect=dialect)}"
            )
        pairs_source = (
            [list(side) for side in zip(*values, strict=True)]
            if has_arrays
            else chain.from_iterable(values)
        )
        return _fetched(connection, self._written[written], tuple(pairs_source))

    def _looked_up(self) -> Select[*tuple[Any, ...]]:
        """Write one lookup per pair. OFFSET prevents the planner from merging them."""
        lookup = self._statement.offset(literal_column("0")).lateral("found")
        return select(lookup).select_from(PAIRS, lookup)

    def _pairs(self, dialect: Dialect, length: int) -> str:
        if dialect.name == "postgresql":
            a, b = (kind.compile(dialect=dialect) for kind in self._kinds)
            # Names of types, not values.
            return f"SELECT * FROM unnest($1::{a}[], $2::{b}[])"  # noqa: S608
        return f"VALUES {', '.join(['(?, ?)'] * length)}"


def _fetched(
    connection: SupportsStatements, sql: str, values: tuple[Any, ...], fetch: Fetch = all_rows
) -> Sequence[Sequence[Any]]:
    """Fetch from the driver directly: SQLAlchemy's column metadata costs as much as the read."""
    driver = connection.dialect.loaded_dbapi
    cursor = connection.connection.cursor()
    try:
        cursor.execute(sql, values)
        rows = fetch(cursor)
    except driver.Error as error:
        # A column has another type now. SQLAlchemy prepares its own statements anew; this one
        # would fail on this connection forever.
        if type(error).__name__ == "InvalidCachedStatementError":
            _invalidate(connection)
        if is_transient_error(error):
            raise Unavailable(
                f"the database cannot be used now ({str(error)[:200]}); try again later"
            ) from error
        raise
    except asyncio.CancelledError:
        # As SQLAlchemy does after its own statements. The driver goes on in a transaction whose
        # BEGIN was cancelled as if in a part of it: all later reads would see its old snapshot, and
        # what is written later would never be committed.
        _invalidate(connection)
        raise
    finally:
        cursor.close()
    return rows


def _invalidate(connection: SupportsStatements) -> None:
    if connection.dialect.name == "postgresql":
        invalidated = connection if isinstance(connection, Connection) else connection.connection
        invalidated.invalidate()


NONE_COMPUTED: Final[Mapping[str, ColumnElement[Any]]] = MappingProxyType({})


class Bulk:
    """A statement run for many tuples; `names` gives the parameter of each place."""

    def __init__(self, statement: UpdateBase, names: Sequence[str]) -> None:
        self._statement = statement
        self._names = tuple(names)
        self._written: dict[str, tuple[str, tuple[int, ...] | None]] = {}

    def run(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run the statement for each row."""
        if not rows:
            return
        sql, order = self._sql(connection.dialect)
        if order is not None:
            rows = [tuple([row[place] for place in order]) for row in rows]
        self._execute(connection, sql, rows)

    def _execute(self, connection: Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        connection.exec_driver_sql(sql, list(rows))

    def _sql(self, dialect: Dialect) -> tuple[str, tuple[int, ...] | None]:
        """Return the SQL and the order of its parameters (None: as given)."""
        if dialect.name not in self._written:
            compiled = self._statement.compile(dialect=dialect, column_keys=list(self._names))
            wanted = compiled.positiontup or ()
            order = tuple(self._names.index(name) for name in wanted)
            self._written[dialect.name] = (
                str(compiled),
                None if order == tuple(range(len(self._names))) else order,
            )
        return self._written[dialect.name]


class BulkInsert(Bulk):
    """Insert rows with these columns, in a transaction that another statement began.

    SQLite gets many rows per statement, because a thread gives up the interpreter between two
    statements and may wait long to get it back. PostgreSQL gets COPY, which takes a third of the
    time of INSERTs.
    """

    def __init__(self, table: TableClause, names: Sequence[str]) -> None:
        """Insert into these columns of a table."""
        super().__init__(table.insert(), names)
        self._table = table.name

    def _execute(self, connection: Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if connection.dialect.name == "postgresql" and len(rows) >= ROWS_A_COPY:
            _, order = self._sql(connection.dialect)
            names = [self._names[place] for place in order] if order is not None else self._names
            _copied(connection, self._table, names, rows)
            return
        written = 0
        if connection.dialect.name == "sqlite":
            row = sql.rpartition(" VALUES ")[2]
            for size in ROWS_A_STATEMENT:
                # Two sizes only: the driver compiles and caches a statement for each.
                while len(rows) - written >= size:
                    many = sql + f", {row}" * (size - 1)
                    connection.exec_driver_sql(
                        many, tuple(chain.from_iterable(rows[written : written + size]))
                    )
                    written += size
        if written < len(rows):
            super()._execute(connection, sql, rows[written:])


ROWS_A_STATEMENT = (256, 32)
ROWS_A_COPY = 8
"""Fewer rows are inserted as fast one by one."""


def _copied(
    connection: Connection, table: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Copy rows into a table; translate asyncpg errors to SQLAlchemy errors."""
    import asyncpg  # noqa: PLC0415  # not loaded where the database is SQLite

    driver: Any = connection.connection.driver_connection
    try:
        await_only(driver.copy_records_to_table(table, records=rows, columns=names))
    except asyncpg.IntegrityConstraintViolationError as error:
        raise IntegrityError(f"COPY {table}", None, error) from error
    except (asyncpg.DataError, asyncpg.exceptions.DataError) as error:
        raise DataError(f"COPY {table}", None, error) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DBAPIError(f"COPY {table}", None, error) from error


def bulk_update(
    table: Table,
    *,
    where: Sequence[str],
    values: Sequence[str],
    computed: Mapping[str, ColumnElement[Any]] = NONE_COMPUTED,
) -> Bulk:
    """Update rows by key; a tuple holds the new values first, then the key.

    `computed` columns are made of the parameters `new_<value>` and `old_<key>`.
    """
    new: dict[str, Any] = {name: bindparam(f"new_{name}") for name in values}
    statement = update(table).values({**new, **computed})
    for name in where:
        statement = statement.where(table.c[name] == bindparam(f"old_{name}"))
    return Bulk(
        statement, [*(f"new_{name}" for name in values), *(f"old_{name}" for name in where)]
    )
