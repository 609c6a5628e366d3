"""The database schema, from the first migration to the newest."""

import asyncio
import fcntl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnfold.bus.connection import connect
from turnfold.bus.stream_state import last_sequence
from turnfold.bus.streams import ensure_streams, first_sequence
from turnfold.errors import StartError
from turnfold.settings import Settings
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import (
    bind_to_stream,
    bound_stream,
    next_seq,
    refuse_early_schema,
    refuse_older_stream,
)
from turnfold.store.database.postgres.url import split_ssl_options
from turnfold.store.database.schema import REVISION
from turnfold.store.database.sqlite_files import BUSY_SECONDS, connect_sqlite, no_database

if TYPE_CHECKING:
    # Loading Alembic takes 0.2 s, and only a service's first start needs it.
    from alembic.config import Config

_LOCK = 0x7475726E666F6C64
"""The PostgreSQL advisory lock that makes migrations take turns ("turnfold" in ASCII)."""
LOCK_SECONDS = 10
"""A migration that would wait longer for a table fails. It can be run again."""


async def upgrade(database_url: str, revision: str = "head") -> None:
    """Migrate the database to this revision, and create it if necessary; safe to run concurrently.

    Raises:
        StartError: the database cannot be reached or written, an early release made it, or it is
            new and cannot hold every text. The text says why.
    """

    def work(connection: Connection) -> None:
        current = revision_of(connection)
        refuse_early_schema(current)
        if current is None:
            _refuse_encoding(connection)
        # A newer database stays as it is: older services that start beside newer ones migrate, too.
        if revision != "head" or (current or "") < REVISION:
            from alembic import command  # noqa: PLC0415

            _begin_migrations(connection)
            command.upgrade(_config(connection), revision)

    await _with_connection(database_url, work)


def _refuse_encoding(connection: Connection) -> None:
    """Refuse a PostgreSQL database that lacks characters, or counts bytes instead of them.

    Raises:
        StartError: its encoding is not UTF8.
    """
    if connection.dialect.name != "postgresql":
        return
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise StartError(
            f"the database has the encoding {encoding} and would not store every text; make it "
            "with CREATE DATABASE … ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
        )


async def downgrade(database_url: str, revision: str) -> None:
    """Migrate the database back to this revision; `base` removes everything."""

    def work(connection: Connection) -> None:
        from alembic import command  # noqa: PLC0415

        _begin_migrations(connection)
        command.downgrade(_config(connection), revision)

    await _with_connection(database_url, work)


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the database; None before the first migration."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(
        text("SELECT version_num FROM alembic_version")
    ).scalar()
    return revision


async def _with_connection(database_url: str, work: Callable[[Connection], None]) -> None:
    with _one_at_a_time(database_url):
        url, arguments = split_ssl_options(make_url(database_url))
        is_sqlite = url.get_backend_name() == "sqlite"
        # A transaction of the driver ends before each change of a table, and a migration that was
        # killed could never be run again.
        of_sqlite = {
            "async_creator_fn": connect_sqlite,
            "timeout": BUSY_SECONDS,
            "isolation_level": None,
        }
        options = of_sqlite if is_sqlite else arguments
        engine = create_async_engine(url, connect_args=options)
        try:
            await _run(engine, work)
        except OSError as error:
            raise StartError(
                f"the database cannot be reached ({error}); start it, or correct"
                " TURNFOLD_DATABASE_URL"
            ) from error
        except DBAPIError as error:
            if (foreign := no_database(error.orig, url)) is not None:
                raise foreign from error
            name = f" {url.database}" if is_sqlite else ""
            raise StartError(f"the database{name} cannot be migrated: {error.orig}") from error
        finally:
            await engine.dispose()


async def _run(engine: AsyncEngine, work: Callable[[Connection], None]) -> None:
    async with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            # A lock of the session, not of a transaction: each migration commits its own.
            await connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
            # Services wait behind a migration that waits for a transaction left open.
            await connection.execute(text(f"SET lock_timeout = '{LOCK_SECONDS}s'"))
            await connection.commit()
        else:
            # Before the first table: SQLite fixes the size with the first page that it writes.
            await connection.exec_driver_sql("PRAGMA page_size=8192")
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            await connection.commit()
        await connection.run_sync(work)
        await connection.commit()


def _begin_migrations(connection: Connection) -> None:
    # Inside the transaction of an earlier read, Alembic would not commit.
    connection.commit()
    if connection.dialect.name == "sqlite":
        # At once as a writer: one that has read first may find that another has written since.
        event.listen(connection, "begin", lambda begun: begun.exec_driver_sql("BEGIN IMMEDIATE"))


@contextmanager
def _one_at_a_time(database_url: str) -> Generator[None]:
    """Hold a lock file beside a SQLite database, which has no advisory locks."""
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        yield
        return
    path = Path(f"{url.database}.migrate.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise StartError(
            f"the database cannot be made at {url.database}: {error.strerror};"
            " correct TURNFOLD_DATABASE_URL or TURNFOLD_DATA_DIR"
        ) from error
    with file:
        # A file of its own: closing any descriptor of the database would end the POSIX locks of
        # SQLite.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _config(connection: Connection) -> "Config":
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def migrate(settings: Settings) -> None:
    """Migrate the database, create or update the streams, and record that they belong together.

    Raises:
        StartError: one of them cannot be reached, written or updated. The text says why.
    """
    asyncio.run(_migrate(settings))


async def _migrate(settings: Settings) -> None:
    await upgrade(settings.database_url)
    database = Database(settings.database_url, writes=True)
    client = await connect(settings, name="migrate", seconds=60.0)
    try:
        created = await ensure_streams(
            client,
            first_seq=await next_seq(database),
            replicas=settings.nats_replicas,
            max_bytes=settings.stream_max_bytes,
        )
        if created != await bound_stream(database):
            first_seq = await first_sequence(client)
            await bind_to_stream(database, created=created, first_seq=first_seq)
        await refuse_older_stream(database, partial(last_sequence, client))
    finally:
        await client.close()
        await database.close()
