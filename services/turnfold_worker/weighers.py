"""Where batches are weighed: here while little comes, in a second process while much does.

Reading and counting is half of what an event costs and needs no database, but threads of one interpreter take turns. So a
backlog gets a process of its own, and one that has had nothing to do for a while is ended.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import structlog

from turnfold.contracts.events import Limits
from turnfold.core.tokens import IMAGE_TOKENS, Count
from turnfold.operations.weighing import Batch, Delivery, weigh_all
from turnfold_worker import weigher

log = structlog.get_logger()

MUCH_BYTES = 100_000
"""A batch of at least so many bytes of events is worth the way to another process: some milliseconds of weighing."""
QUIET_SECONDS = 60.0
RETRY_SECONDS = 1.0


class Weighers:
    """Weighs batches; see `turnfold.operations.ingest.Weigh`."""

    def __init__(self, counting: asyncio.Task[Count], *, limits: Limits, image_tokens: int = IMAGE_TOKENS) -> None:
        self._counting = counting
        self._limits = limits
        self._image_tokens = image_tokens
        self._pool: ProcessPoolExecutor | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._needed = 0.0
        self._not_before = 0.0
        self.pid: int | None = None
        """The second process, when it is ready."""

    async def weigh(self, deliveries: Sequence[Delivery]) -> Batch:
        """Read and weigh a batch."""
        if sum([len(delivery.payload) for delivery in deliveries]) < MUCH_BYTES:
            return await self._weigh_here(deliveries)
        self.expect_much()
        pool = self._pool
        if pool is None or self.pid is None:
            return await self._weigh_here(deliveries)
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, weigher.weigh, deliveries, self._limits, self._image_tokens)
        except BrokenProcessPool:
            self._lost(pool)
            return await self._weigh_here(deliveries)

    def expect_much(self) -> None:
        """Have the second process ready soon."""
        self._needed = asyncio.get_running_loop().time()
        if self._pool is None and self._needed >= self._not_before:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=weigher.begin)
            self._keeping = asyncio.create_task(self._keep(self._pool), name="weigher")

    def close(self) -> None:
        """End the second process, if there is one."""
        pool, keeping = self._pool, self._keeping
        self._pool, self._keeping, self.pid = None, None, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if keeping is not None:
            keeping.cancel()

    def _lost(self, pool: ProcessPoolExecutor) -> None:
        """The process died, or never began; another one is tried a little later."""
        if pool is self._pool:
            log.warning("weigher.died", retry_seconds=RETRY_SECONDS)
            self._not_before = asyncio.get_running_loop().time() + RETRY_SECONDS
            self.close()

    async def _weigh_here(self, deliveries: Sequence[Delivery]) -> Batch:
        return weigh_all(deliveries, count=await self._counting, limits=self._limits, image_tokens=self._image_tokens)

    async def _keep(self, pool: ProcessPoolExecutor) -> None:
        """Wait until the process can count, and end it when it was not needed for a while."""
        loop = asyncio.get_running_loop()
        try:
            self.pid = await loop.run_in_executor(pool, os.getpid)
        except BrokenProcessPool:
            self._lost(pool)
            return
        while (quiet := loop.time() - self._needed) < QUIET_SECONDS:  # noqa: ASYNC110  # no event tells of a minute without one
            await asyncio.sleep(QUIET_SECONDS - quiet)
        self.close()
