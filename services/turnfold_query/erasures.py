"""Remove erased sessions from the caches of a process.

A notice says only that something was erased. The database says which cached sessions are gone,
because an erasure of one session must not slow down the windows of all others.
"""

import asyncio
from math import ceil

from turnfold.cache import SessionCaches
from turnfold.core.text.caches import forget_texts
from turnfold.errors import Unavailable
from turnfold.operations.query.environment import QueryEnvironment
from turnfold.store.database.engine import LONGEST_REQUEST_SECONDS, Database
from turnfold.store.query.recall import SqlRecallStore
from turnfold.store.query.window import SqlWindowStore

FORGET_SECONDS = 5.0
"""Shortest interval between two rounds, because any client may send notices at any rate."""
ROUNDS = 1 + ceil(LONGEST_REQUEST_SECONDS / FORGET_SECONDS)


class ErasureFollower:
    """Forget, soon after a notice, every session that is no longer stored."""

    def __init__(self, store: SqlWindowStore, caches: SessionCaches) -> None:
        self._store = store
        self._caches = caches
        self._noticed = asyncio.Event()

    def notify(self) -> None:
        """Signal that something was erased."""
        self._noticed.set()

    async def run(self) -> None:
        """Work off the signals until cancelled."""
        while True:
            await self._noticed.wait()
            # Before the read, so that a notice that arrives meanwhile causes another round.
            self._noticed.clear()
            # Again, until no request runs that began before: it caches what it had read.
            for _ in range(ROUNDS):
                await self.forget_erased()
                await asyncio.sleep(FORGET_SECONDS)

    async def forget_erased(self) -> None:
        """Remove what is cached of erased sessions; everything if the database cannot be read."""
        try:
            erased = await self._store.erased_sessions(self._caches.sessions())
        except Unavailable:
            self.forget_all()
        else:
            self._caches.remove(erased)
            # These caches are keyed by arguments and not by sessions, so they are emptied whole.
            forget_texts()

    def forget_all(self) -> None:
        """Remove all text from memory."""
        self._caches.clear()
        forget_texts()


def erasure_follower(
    database: Database,
    windows: SqlWindowStore,
    recall: SqlRecallStore,
    environment: QueryEnvironment,
) -> ErasureFollower:
    """Return the follower for all caches of a process; a new database server empties them."""
    caches = SessionCaches(*windows.caches, *recall.caches, *environment.caches)
    follower = ErasureFollower(windows, caches)
    database.on_new_server(follower.forget_all)
    return follower
