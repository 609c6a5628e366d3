"""The newest event of a session in the stream, for requests with `"after": "latest"`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from nats.aio.client import Client

from turnfold.bus.stream_state import has_newer, newest_sequence
from turnfold.contracts.history_requests import HistoryRequest
from turnfold.contracts.requests import ContextRequest
from turnfold.errors import Unavailable
from turnfold.messages import SessionKey
from turnfold.process.caller_order import Turns
from turnfold.process.request_limits import RETRY_AFTER_MS

AT_ONCE: Final = 8
EACH: Final = 2
"""Lookups at once, in total and per agent: a reply holds the whole event, of up to 4 MiB."""
SECONDS: Final = 2.0

Reply = TypeVar("Reply")


class NewestLookup:
    """Looks up newest events; agents take turns."""

    def __init__(self, client: Client, ingested_to: Callable[[], Awaitable[int]]) -> None:
        self._client = client
        self._ingested_to = ingested_to
        self._turns = Turns(AT_ONCE, EACH)

    async def beside(
        self, key: SessionKey, read: Callable[[], Awaitable[Reply]]
    ) -> tuple[int, Reply | None]:
        """Look up the newest event of a session while `read` runs, and return both results.

        The second one is None if `read` may lack that event, which was not stored when it began.
        Otherwise, the first one is a sequence up to which all events are included.

        Raises:
            Unavailable: the stream did not reply in time, or the database cannot be read.
            RequestError: `read` has failed, and the newest event was stored before.
        """
        # Before `read` begins, so that `read` includes every event up to this sequence.
        ingested_to = await self._ingested_to()

        async def read_meanwhile() -> Reply:
            # A read of SQLite holds the event loop, which sends the request in its next round.
            await asyncio.sleep(0)
            return await read()

        # With `return_exceptions`, neither of them runs on after the other has failed.
        newest, reply = await asyncio.gather(
            self._newest_after(key, ingested_to), read_meanwhile(), return_exceptions=True
        )
        if isinstance(newest, BaseException):
            raise newest
        if newest > ingested_to:
            # An error of `read` is dropped as well: the session may not have existed when it began.
            return newest, None
        if isinstance(reply, BaseException):
            raise reply
        return newest, reply

    async def sequence(self, key: SessionKey) -> int:
        """Return the sequence of the newest event of a session, or 0.

        Raises:
            Unavailable: the stream did not reply in time.
        """
        return await self._in_turn(lambda: newest_sequence(self._client, key, seconds=SECONDS))

    async def _newest_after(self, key: SessionKey, seq: int) -> int:
        """Return the sequence of the newest event of a session; `seq` if no session has a newer."""
        # One short reply instead of two whole events, unless the worker is behind.
        if not await self._in_turn(lambda: has_newer(self._client, seq, seconds=SECONDS)):
            return seq
        return await self.sequence(key)

    async def _in_turn(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        try:
            async with asyncio.timeout(SECONDS):
                asker = await self._turns.take()
                try:
                    return await ask()
                finally:
                    self._turns.release(asker)
        except TimeoutError:
            raise Unavailable(
                f"the stream did not name the newest event within {SECONDS:g} s; try again",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None


def is_newest(request: ContextRequest | HistoryRequest) -> bool:
    """Return whether a request is one for the present with the newest event."""
    return request.after == "latest" and request.as_of is None
