"""The database's history: every schema it had, and the way from one to the next."""

import asyncio
import fcntl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnfold.bus.connection import connect
from turnfold.bus.streams import ensure_streams
from turnfold.errors import StartError
from turnfold.settings import Settings
from turnfold.store.database.engine import Database, split_ssl_options
from turnfold.store.database.instance_lock import bind_to_stream, bound_stream, next_seq
from turnfold.store.database.schema import REVISION

if TYPE_CHECKING:
    # It takes a fifth of a second to load, and every start but the first finds nothing to do for it.
    from alembic.config import Config

_LOCK = 0x7475726E666F6C64
"""The PostgreSQL advisory lock that migrations take turns with ("turnfold" in ASCII)."""


async def upgrade(database_url: str, revision: str = "head") -> None:
    """Bring the database to this revision, made anew if need be; several may try at once.

    Raises:
        StartError: the database cannot be reached or written; the text says why.
    """

    def work(connection: Connection) -> None:
        # A database that newer code brought further is left as it is: whoever starts an older service beside it migrates, too.
        if revision != "head" or (revision_of(connection) or "") < REVISION:
            from alembic import command  # noqa: PLC0415

            # Inside of a transaction that looked Alembic would commit nothing by itself.
            connection.commit()
            command.upgrade(_config(connection), revision)

    await _with_connection(database_url, work)


async def downgrade(database_url: str, revision: str) -> None:
    """Bring the database back to this revision; `base` removes everything."""

    def work(connection: Connection) -> None:
        from alembic import command  # noqa: PLC0415

        command.downgrade(_config(connection), revision)

    await _with_connection(database_url, work)


def head() -> str:
    """The newest revision there is a script for."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    newest = ScriptDirectory.from_config(_config(None)).get_current_head()
    assert newest is not None
    return newest


def revision_of(connection: Connection) -> str | None:
    """The revision a database is at; None before the first."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


async def _with_connection(database_url: str, work: Callable[[Connection], None]) -> None:
    with _one_at_a_time(database_url):
        url, arguments = split_ssl_options(make_url(database_url))
        engine = create_async_engine(url, connect_args=arguments)
        try:
            await _run(engine, work)
        except OSError as error:
            raise StartError(f"the database cannot be reached: {error}") from error
        except (OperationalError, InterfaceError) as error:
            raise StartError(f"the database cannot be migrated: {error.orig}") from error
        finally:
            await engine.dispose()


async def _run(engine: AsyncEngine, work: Callable[[Connection], None]) -> None:
    async with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
            await connection.commit()
        else:
            await connection.exec_driver_sql("PRAGMA page_size=8192")
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            await connection.commit()
        await connection.run_sync(work)
        await connection.commit()


@contextmanager
def _one_at_a_time(database_url: str) -> Generator[None]:
    """SQLite has no lock for this: a file beside the database stands for it."""
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
            f"the database cannot be made at {url.database}: {error.strerror}"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _config(connection: Connection | None) -> "Config":
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def migrate(settings: Settings) -> None:
    """Bring database and streams up to date, and record that they belong together.

    Raises:
        StartError: one of them cannot be reached, written or brought up to date; the text says why.
    """
    asyncio.run(_migrate(settings))


async def _migrate(settings: Settings) -> None:
    await upgrade(settings.database_url)
    database = Database(settings.database_url, writes=True)
    client = await connect(settings, name="migrate", seconds=60.0)
    try:
        first_seq = await next_seq(database)
        created = await ensure_streams(
            client,
            first_seq=first_seq,
            replicas=settings.nats_replicas,
            max_bytes=settings.stream_max_bytes,
        )
        if created != await bound_stream(database):
            await bind_to_stream(database, created=created, first_seq=first_seq)
    finally:
        await client.close()
        await database.close()
