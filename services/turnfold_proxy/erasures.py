"""Signals of erasures, for the agents whose windows the proxy keeps."""

from collections.abc import Callable
from typing import Final

from turnfold.client.erasures import ErasureSignals
from turnfold.contracts.erasures import ErasedSessions

MOST_AGENTS: Final = 1_000
"""The most agents that are followed; a server limits the subscriptions of a client."""

OnErased = Callable[[ErasedSessions], object]


class AgentErasures:
    """The signals of each agent that calls; `on_erased` is called for each of them.

    No text of an agent without signals may be kept.
    """

    def __init__(
        self, signals: Callable[[str, OnErased], ErasureSignals], on_erased: OnErased
    ) -> None:
        self._signals_of = signals
        self._on_erased = on_erased
        self._signals: dict[str, ErasureSignals] = {}

    async def begin(self, agent_id: str) -> int | None:
        """Receive the signals of an agent from now on; return `connection`."""
        if agent_id not in self._signals and len(self._signals) < MOST_AGENTS:
            self._signals[agent_id] = self._signals_of(agent_id, self._on_erased)
        if agent_id in self._signals:
            # With each call, because it does nothing while there is no connection.
            await self._signals[agent_id].begin()
        return self.connection(agent_id)

    def connection(self, agent_id: str) -> int | None:
        """Return the connection of `ErasureSignals`; None if no signals of the agent arrive."""
        signals = self._signals.get(agent_id)
        return None if signals is None else signals.connection
