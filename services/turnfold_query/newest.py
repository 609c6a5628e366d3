"""The newest event of a session in the stream, for requests with `"after": "latest"`."""

import asyncio
from typing import Final

from nats.aio.client import Client

from turnfold.bus.admission import RETRY_AFTER_MS
from turnfold.bus.stream_state import newest_sequence
from turnfold.errors import Unavailable
from turnfold.messages import SessionKey
from turnfold.process.turns import Turns

AT_ONCE: Final = 8
EACH: Final = 2
"""Lookups at once, in total and per agent: a reply holds the whole event, of up to 4 MiB."""
SECONDS: Final = 2.0


class NewestLookup:
    """Looks up newest events; agents take turns."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = Turns(AT_ONCE, EACH)

    async def sequence(self, key: SessionKey) -> int:
        """Return the sequence of the newest event of a session, or 0.

        Raises:
            Unavailable: the stream did not reply in time.
        """
        try:
            async with asyncio.timeout(SECONDS):
                asker = await self._turns.take()
                try:
                    return await newest_sequence(self._client, key, seconds=SECONDS)
                finally:
                    self._turns.release(asker)
        except TimeoutError:
            raise Unavailable(
                f"the stream did not name the newest event within {SECONDS:g} s; try again",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None
