"""Places for requests: so many at once in a process, and one asker at most its share of them."""

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass

from turnfold.errors import Unavailable
from turnfold.process.turns import ASKER, Rounds
from turnfold.settings import Settings

INSTALLATION = ""
"""The asker of requests about no agent, such as listings. No agent has an empty id."""
RETRY_AFTER_MS = 1_000
"""The pause that a refusal advises. Most requests take a few milliseconds, so there is room by then."""


class Places:
    """A limit: so many at once of all askers, and of each asker."""

    def __init__(self, what: str, most: int, share: float) -> None:
        self._what = what
        self._most = most
        self._most_each = max(1, int(most * share))
        self._taken = 0
        self._each: dict[Hashable, int] = {}

    @property
    def most_each(self) -> int:
        """The most places of one asker."""
        return self._most_each

    def take(self, askers: tuple[Hashable, ...]) -> None:
        """Take a place, which counts for each of the askers.

        Raises:
            Unavailable: all places are taken, or all that one of the askers may have.
        """
        each = self._each
        for asker in askers:
            if each.get(asker, 0) >= self._most_each:
                raise Unavailable(
                    f"{self._most_each} {self._what} of one agent at once are the limit",
                    retry_after_ms=RETRY_AFTER_MS,
                )
        if self._taken >= self._most:
            raise Unavailable(
                f"{self._most} {self._what} at once are the limit", retry_after_ms=RETRY_AFTER_MS
            )
        self._taken += 1
        for asker in askers:
            each[asker] = each.get(asker, 0) + 1

    def give_back(self, askers: tuple[Hashable, ...]) -> None:
        """Give a place back."""
        self._taken -= 1
        for asker in askers:
            left = self._each[asker] - 1
            if left:
                self._each[asker] = left
            else:
                del self._each[asker]


@dataclass(frozen=True, slots=True)
class Shares:
    """How many requests there may be at once, and which part of them one agent may have."""

    requests: int = 512
    waiting: int = 2_048
    searches: int = 64
    of_agent: float = 0.125


def shares_of(settings: Settings) -> Shares:
    """The shares that the settings ask for."""
    return Shares(
        settings.max_requests, settings.max_waiting, settings.max_searches, settings.agent_share
    )


class ConcurrencyLimiter:
    """Admits requests: a working place for each, another kind of place for those that wait for an event, and few for searches."""

    def __init__(self, shares: Shares) -> None:
        self.requests = Places("requests", shares.requests, shares.of_agent)
        self.waiting = Places("waiting requests", shares.waiting, shares.of_agent)
        self.searches = Places("searches", shares.searches, shares.of_agent)
        self.rounds = Rounds()

    async def turn(self, asker: Hashable) -> None:
        """Return at once, or after a request of every other asker when this one has just begun another. Who queues holds no place.

        Raises:
            Unavailable: too many requests of this asker queue already.
        """
        if self.rounds.behind(asker) >= self.waiting.most_each:
            raise Unavailable(
                "too many requests of one agent at once", retry_after_ms=RETRY_AFTER_MS
            )
        await self.rounds.turn(asker)

    @contextmanager
    def admitted(self, *askers: Hashable) -> Generator["Place"]:
        """A place for as long as the body runs, unless it is given back before.

        Raises:
            Unavailable: there is no room.
        """
        place = Place(self, askers)
        ASKER.set(askers[-1])
        try:
            yield place
        finally:
            place.release()


class Place:
    """The place of one request, which begins as a working place."""

    __slots__ = ("_admission", "_askers", "_held")

    def __init__(self, admission: ConcurrencyLimiter, askers: tuple[Hashable, ...]) -> None:
        admission.requests.take(askers)
        self._admission = admission
        self._askers = askers
        self._held: list[Places] = [admission.requests]

    async def turn(self) -> None:
        """As `Admission.turn`, for a request that has waited in between."""
        await self._admission.rounds.turn(self._askers[-1])

    def wait(self) -> None:
        """Change the working place for a waiting place; it stays one to the end.

        Raises:
            Unavailable: there is no room for another who waits.
        """
        admission = self._admission
        if self._held[0] is admission.requests:
            admission.waiting.take(self._askers)
            admission.requests.give_back(self._askers)
            self._held[0] = admission.waiting

    def search(self) -> None:
        """Take a place among the searches besides.

        Raises:
            Unavailable: there is no room for another search.
        """
        self._admission.searches.take(self._askers)
        self._held.append(self._admission.searches)

    def release(self) -> None:
        """Give back what is held."""
        while self._held:
            self._held.pop().give_back(self._askers)
