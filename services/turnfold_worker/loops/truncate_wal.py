"""Truncation of SQLite's write-ahead log, which otherwise keeps its largest size."""

from pathlib import Path

from turnfold.store.database.engine import Database
from turnfold_worker.loops.polling import PollingLoop

KEPT_BYTES = 1_000_000
"""A shorter log stays: each truncation costs three syncs."""
MOST_BYTES = 48_000_000
"""A longer log is truncated while it is written, too.

SQLite begins it anew from 32 MB on (`LOG_PAGES`), but only when no reader uses it then."""


class WalTruncator(PollingLoop):
    """Write the log into the database file and truncate it if nothing was written for a second."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._path = Path(f"{database.url.database}-wal") if database.is_sqlite else None
        self._written_ns = 0

    async def work(self) -> float:
        """Truncate the log if it is long and idle, or too long. No-op on PostgreSQL."""
        if self._path is not None and self._path.exists():
            state = self._path.stat()
            is_idle = state.st_mtime_ns == self._written_ns
            self._written_ns = state.st_mtime_ns
            if state.st_size > (KEPT_BYTES if is_idle else MOST_BYTES):
                await self._database.truncate_wal()
        return self.poll_seconds
