"""Erasure: remove erased messages from the stream, and erase expired sessions."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client

from turnfold.bus.asking import asking
from turnfold.contracts.subjects import ERASED, EVENTS_STREAM, INGESTED
from turnfold.errors import Unavailable
from turnfold.ports.admin import ErasureStore
from turnfold.ports.ingest import Installation
from turnfold_worker.loops.gaps import GONE_ALREADY
from turnfold_worker.loops.polling import RETRY_SECONDS, PollingLoop

log = structlog.get_logger()


class ErasureRunner(PollingLoop):
    """Has the stream forget what was erased, and erases sessions whose time is over."""

    poll_seconds = 30.0
    at_once = 100
    look_at_once = 500
    look_seconds = 600.0

    def __init__(
        self,
        *,
        store: ErasureStore,
        client: Client,
        installation: Installation,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self._store = store
        self._client = client
        self._installation = installation
        self._now_ms = now_ms
        self._looked_at = -math.inf
        # A worker that died may have left something in the log, and told nobody.
        self._is_untidy = True

    def erased(self) -> None:
        """Something was erased just now."""
        self._is_untidy = True
        self.wake()

    async def work(self) -> float:
        """Erase what is due, then see that no copy is left."""
        if time.monotonic() - self._looked_at >= self.look_seconds:
            await self._expire()
            self._looked_at = time.monotonic()
        while sequences := await self._store.to_purge(self.at_once):
            await asyncio.gather(*(self._forgotten(seq) for seq in sequences))
            await self._store.purged(sequences)
            self._is_untidy = True
        if self._is_untidy:
            with contextlib.suppress(nats.errors.Error):
                await self._client.publish(INGESTED, ERASED)
            self._is_untidy = not await self._store.tidy()
        return RETRY_SECONDS if self._is_untidy else self.poll_seconds

    async def _expire(self) -> None:
        after: int | None = 0
        while after is not None:
            after = await self._store.erase_expired(
                after=after,
                limit=self.look_at_once,
                installation=self._installation,
                now_ms=self._now_ms(),
            )

    async def _forgotten(self, seq: int) -> None:
        """Delete a message of the stream and overwrite it; one that is gone already is as good."""
        failure = await self._failure_of("DELETE", seq)
        # Of a block of the stream that is gone altogether it only says that deleting failed.
        if failure is None or failure.get("err_code") in GONE_ALREADY:
            return
        found = await self._failure_of("GET", seq)
        if found is None or found.get("err_code") not in GONE_ALREADY:
            raise Unavailable(
                f"the stream keeps a message that was erased: {failure.get('description')}"
            )

    async def _failure_of(self, verb: str, seq: int) -> Mapping[str, Any] | None:
        """What the stream has against doing this with a message."""
        subject = f"$JS.API.STREAM.MSG.{verb}.{EVENTS_STREAM}"
        try:
            reply = await self._client.request(
                subject, json.dumps({"seq": seq}).encode(), timeout=10
            )
        except (nats.errors.Error, TimeoutError) as error:
            raise Unavailable(f"the stream does not answer: {type(error).__name__}") from error
        with asking():
            failure: Mapping[str, Any] | None = json.loads(reply.data).get("error")
            return failure
