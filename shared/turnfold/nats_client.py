"""nats-py's client, but it hangs up on every connection that it gives up."""

import asyncio

from nats.aio.client import Client, Srv


class HangingUp(Client):
    """A client of NATS that leaves no connection open behind it, however a server dies under it.

    Three things that nats-py (2.16) does not do: it hangs up on a server that did not greet before it tries the next one,
    it stops connecting once it is closed, and `close` ends well although the reconnection that it cancels was waiting for
    the same connection to end.
    """

    _is_over = False

    async def _connect_to_server(self, s: Srv) -> None:
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)
        if self._is_over and self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
            raise asyncio.CancelledError

    async def close(self) -> None:
        """Hang up, and connect no more."""
        self._is_over = True
        try:
            await super().close()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
