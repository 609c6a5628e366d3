"""Signals of the erasures of one agent, for a program that keeps texts of windows."""

from collections.abc import Callable

from nats.aio.msg import Msg

from turnfold.contracts.erasures import ErasedSessions, erasures_of, read_erasure
from turnfold.nats_client.connection import NatsClient


class ErasureSignals:
    """Calls a function for each signal of an erasure; `Client.erasures` returns it.

    A signal arrives about when the erasure is answered. It is lost without a connection.
    """

    def __init__(
        self, bus: NatsClient, agent_id: str, on_erased: Callable[[ErasedSessions], object]
    ) -> None:
        self._bus = bus
        self._subject = erasures_of(agent_id)
        self._on_erased = on_erased
        self._has_begun = False

    @property
    def connection(self) -> int | None:
        """The number of the connection over which signals arrive; None if none can arrive.

        Texts that were read over another connection must not be kept: a signal may be lost between
        the two.
        """
        number: int = self._bus.stats["reconnects"]
        if not self._has_begun or not self._bus.is_connected:
            return None
        return None if self._bus.denied.get(self._subject.lower()) == number else number

    async def begin(self) -> None:
        """Receive signals from now on, if there is a connection."""
        if self._has_begun or not self._bus.is_connected:
            return
        # Before the await, so that a concurrent call does not subscribe as well.
        self._has_begun = True
        await self._bus.subscribe(self._subject, cb=self._on_signal)

    async def _on_signal(self, message: Msg) -> None:
        erased = read_erasure(message.subject, message.data)
        if erased is not None:
            self._on_erased(erased)
