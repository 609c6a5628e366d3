"""Renew the lease of a summary job, so that no other worker takes it while a model writes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from turnfold.errors import LostLease, Unavailable
from turnfold.ports.compact import Job, JobStore

RENEWALS = 3
"""Renewals of a lease before it would expire: one late renewal must not lose it."""


@contextlib.asynccontextmanager
async def renewed_lease(
    job: Job, store: JobStore, lease_seconds: float, now_ms: Callable[[], int]
) -> AsyncGenerator[None]:
    """Renew the lease while the body runs."""
    lease_ms = int(1000 * lease_seconds)

    async def keep() -> None:
        while True:
            await asyncio.sleep(lease_seconds / RENEWALS)
            # The lease outlasts a short failure of the database.
            with contextlib.suppress(Unavailable):
                await store.renew(job, lease_ms=lease_ms, now_ms=now_ms())

    keeper = asyncio.create_task(keep(), name="lease")
    try:
        yield
    finally:
        keeper.cancel()
        # A lease lost meanwhile shows at the commit, which is fenced.
        with contextlib.suppress(asyncio.CancelledError, LostLease):
            await keeper
