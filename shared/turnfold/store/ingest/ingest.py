"""Store events in one transaction: insert once, pair calls and results, evict."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import sha256

from sqlalchemy import Connection
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    ProgrammingError,
    StatementError,
)

from turnfold.errors import Unavailable, UnstorableBatch
from turnfold.ports.ingest import (
    NO_PAYLOADS,
    NO_REPLAYS,
    DeadLetter,
    DecodedEvent,
    IngestResult,
    Installation,
)
from turnfold.store.database import sequence_ranges as ranges
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import confirm_stream, lock_storing
from turnfold.store.database.transactions import is_key_taken
from turnfold.store.ingest.batch.used_sequences import refuse_used_in_sessions
from turnfold.store.ingest.batch.writer import BatchWriter
from turnfold.store.ingest.retraction import Withdraw

_MISSING = int.from_bytes(sha256(b"turnfold.missing").digest()[:7])
"""The name of the lock that a worker holds while it stores missing events."""


class SqlIngestStore:
    """Ingest in SQL; see `turnfold.ports.ingest.IngestStore`.

    `withdraw` takes versions out of force that cover retracted messages. `stream_created` is the
    creation time of the stream that the events come from; None if the database belongs to none.
    """

    def __init__(
        self, database: Database, withdraw: Withdraw, *, stream_created: str | None = None
    ) -> None:
        self._database = database
        self._withdraw = withdraw
        self._stream_created = stream_created

    async def ingest(
        self,
        arrivals: Sequence[DecodedEvent],
        dead: Sequence[DeadLetter],
        *,
        installation: Installation,
        payloads: Mapping[int, bytes] = NO_PAYLOADS,
        replays: Mapping[int, int] = NO_REPLAYS,
    ) -> IngestResult:
        """Store a batch in one transaction."""
        # If two events of a batch have one id, the writer takes the first as the original.
        ordered = sorted(arrivals, key=lambda arrival: arrival.stream_seq)
        try:
            return await self._database.write_first(
                lambda connection: BatchWriter(
                    connection, self._stream_created, installation, payloads, self._withdraw
                ).write(ordered, dead, replays)
            )
        except IntegrityError as error:
            await self._database.snapshot(partial(refuse_used_in_sessions, arrivals=ordered))
            if not is_key_taken(error):
                raise UnstorableBatch(type(error.orig).__name__) from error
            # Another worker stored one of these events between our look and our insert.
            raise Unavailable("another worker stored the same event; retry") from error
        except (
            DataError,
            InterfaceError,
            ProgrammingError,
            StatementError,
            OverflowError,
            UnicodeError,
        ) as error:
            if _blames_database(error):
                raise Unavailable(
                    "the database is damaged, or its tables are of another release; "
                    "restore a backup, and run `turnfold migrate`"
                ) from error
            raise UnstorableBatch(type(error).__name__) from error

    async def mark_ingested(self, ranges_: Sequence[ranges.Range]) -> None:
        """Record sequences that the stream no longer holds as ingested.

        Raises:
            StartError: nothing was recorded; the database belongs to another stream now.
        """

        def mark(connection: Connection) -> None:
            lock_storing(connection)
            confirm_stream(connection, self._stream_created)
            ranges.add(connection, ranges_)

        await self._database.write(mark)

    async def gaps(self, *, up_to: int = 0) -> Sequence[ranges.Range]:
        """Return the ranges of sequences that are not ingested.

        The search ends at `up_to` or at the highest ingested sequence, whichever is higher.

        Raises:
            StartError: the database belongs to another stream now.
        """

        def find(connection: Connection) -> Sequence[ranges.Range]:
            confirm_stream(connection, self._stream_created)
            return ranges.gaps(connection, up_to)

        return await self._database.snapshot(find)

    def backfill_lock(self) -> AbstractAsyncContextManager[None]:
        """Hold a lock against other workers that store missing events.

        Continue without it after a timeout, so that a worker that hangs blocks nobody.
        """
        return self._database.advisory_lock(_MISSING)

    async def ingested_to(self) -> int:
        """Return the sequence up to which every event is ingested; 0 if the first is missing."""
        return await self._database.snapshot(ranges.whole_to)


def _blames_database(error: Exception) -> bool:
    """Return whether the events did not cause an error."""
    # SQLite has no kind of error for a damaged file. PostgreSQL lacks a column or a table.
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    return type(error) is DatabaseError or state in ("42703", "42P01")
