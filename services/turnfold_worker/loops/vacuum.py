"""Reuse of the space of dead rows on PostgreSQL, before its autovacuum comes once a minute."""

from turnfold.store.database.engine import Database
from turnfold_worker.loops.polling import PollingLoop


class DeadRowVacuum(PollingLoop):
    """Vacuum small tables with many dead rows, so that new rows take their space.

    An eviction writes a new version of each of its rows. A table that grows from nothing within a
    minute would otherwise have twice its size, and keep it.
    """

    poll_seconds = 2.0

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def work(self) -> float:
        """Vacuum what is due. No-op on SQLite."""
        await self._database.vacuum()
        return self.poll_seconds
