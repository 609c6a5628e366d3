"""Limits of concurrent requests: one limit per process, and one share of it per agent."""

from collections.abc import Hashable
from typing import Self

from turnfold.errors import TooLarge, Unavailable
from turnfold.process.caller_order import ASKER, HAS_BEGUN, Rounds
from turnfold.settings import Settings

INSTALLATION = ""
"""The caller of requests about no agent, such as listings. No agent has an empty id."""
RETRY_AFTER_MS = 1_000
"""The pause that a rejection advises. Most requests take a few milliseconds."""
REQUEST_BYTES = 1024 * 1024


def check_size(request: bytes) -> None:
    """Check the size of a request of the bus, before it is parsed.

    Raises:
        TooLarge: it is larger than any request needs to be.
    """
    if len(request) > REQUEST_BYTES:
        raise TooLarge(f"a request may have at most {REQUEST_BYTES} bytes")


class Places:
    """A limit of concurrent requests, in total and per caller."""

    def __init__(self, what: str, most: int, share: float) -> None:
        self._what = what
        self._most = most
        self.most_each = max(1, int(most * share))
        """The limit per caller."""
        self._taken = 0
        self._each: dict[Hashable, int] = {}

    def take(self, askers: tuple[Hashable, ...]) -> None:
        """Take a place, which counts for each of the callers.

        Raises:
            Unavailable: the total limit, or the limit of one caller, is reached.
        """
        each = self._each
        # All limits come before any change: a request that is refused holds no place.
        for asker in askers:
            if each.get(asker, 0) >= self.most_each:
                raise _too_many(f"{self._what} of one agent", self.most_each)
        # After the limits of each caller, so that an agent at its own limit is told so.
        if self._taken >= self._most:
            raise _too_many(self._what, self._most)
        self._taken += 1
        for asker in askers:
            each[asker] = each.get(asker, 0) + 1

    def release(self, askers: tuple[Hashable, ...]) -> None:
        """Release a place."""
        self._taken -= 1
        for asker in askers:
            self._each[asker] -= 1
            # Callers without a request are removed: any client may name a new agent.
            if not self._each[asker]:
                del self._each[asker]


def _too_many(what: str, limit: int) -> Unavailable:
    text = f"too many concurrent {what} (limit {limit}); retry"
    return Unavailable(text, retry_after_ms=RETRY_AFTER_MS)


class ConcurrencyLimiter:
    """Admit requests within limits: one for running, one for waiting, and one for searching."""

    def __init__(self, settings: Settings) -> None:
        share = settings.agent_share
        self.requests = Places("requests", settings.max_requests, share)
        self.waiting = Places("waiting requests", settings.max_waiting, share)
        self.searches = Places("searches", settings.max_searches, share)
        self.rounds = Rounds()

    async def turn(self, asker: Hashable) -> None:
        """Return at once, or after a request of each other caller if this one has just had a turn.

        A request that queues here holds no place.

        Raises:
            Unavailable: too many requests of this caller are queued.
        """
        if self.rounds.behind(asker) >= self.waiting.most_each:
            raise Unavailable(
                "too many concurrent requests of one agent; retry", retry_after_ms=RETRY_AFTER_MS
            )
        await self.rounds.turn(asker)

    def admitted(self, *askers: Hashable) -> "Place":
        """Return a place that is held while the body of a `with` runs, unless released before.

        Raises:
            Unavailable: a limit is reached.
        """
        place = Place(self, askers)
        # The most specific caller: the database takes turns by it.
        ASKER.set(askers[-1])
        HAS_BEGUN.set(False)
        return place


class Place:
    """The place of one request. It starts as a place for a running request."""

    __slots__ = ("_askers", "_held", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter, askers: tuple[Hashable, ...]) -> None:
        limiter.requests.take(askers)
        self._limiter = limiter
        self._askers = askers
        self._held: list[Places] = [limiter.requests]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def turn(self) -> None:
        """Take turns as in `ConcurrencyLimiter.turn`, after the request has waited."""
        await self._limiter.rounds.turn(self._askers[-1])

    def wait(self) -> None:
        """Exchange the place for one of a waiting request, until the request ends.

        Raises:
            Unavailable: the limit of waiting requests is reached.
        """
        limiter = self._limiter
        if self._held[0] is limiter.requests:
            # Taken before the other place is released, so that a rejected request keeps what it
            # had.
            limiter.waiting.take(self._askers)
            limiter.requests.release(self._askers)
            self._held[0] = limiter.waiting

    def search(self) -> None:
        """Take a place for a search as well, unless the request has one.

        Raises:
            Unavailable: the limit of searches is reached.
        """
        if self._limiter.searches in self._held:
            return
        self._limiter.searches.take(self._askers)
        self._held.append(self._limiter.searches)

    def release(self) -> None:
        """Release the places."""
        while self._held:
            self._held.pop().release(self._askers)
