"""Rows whose work fails, which a loop sets aside so that it goes on with all others."""

import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

import structlog

from turnfold.errors import StartError, Unavailable

PAUSE_SECONDS: Final = 60.0
"""The time until such a row is tried again, and until its loop logs another failure."""

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

log = structlog.get_logger()


class SetAside(Generic[Key]):
    """The keys of rows whose work failed, each for a minute.

    `on_failure` receives `part`, the name of the loop, after each failure.
    """

    def __init__(
        self,
        part: str = "",
        on_failure: Callable[[str], object] = lambda _: None,
        *,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._part = part
        self._on_failure = on_failure
        self._pause_seconds = pause_seconds
        self._until: dict[Key, float] = {}
        self._silent_until = 0.0

    @property
    def keys(self) -> Collection[Key]:
        """The keys that are aside now."""
        if self._until:
            now = time.monotonic()
            self._until = {key: until for key, until in self._until.items() if until > now}
        return self._until.keys()

    def others(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys that are not aside."""
        aside = self.keys
        return [key for key in keys if key not in aside]

    def add(self, key: Key, error: Exception) -> None:
        """Set a row aside whose work raised this error."""
        now = time.monotonic()
        self._until[key] = now + self._pause_seconds
        self._on_failure(self._part)
        if now >= self._silent_until:
            self._silent_until = now + PAUSE_SECONDS
            log.error("row.failed", part=self._part, row=key, exc_info=error)

    async def together(
        self, keys: Sequence[Key], work: Callable[[Sequence[Key]], Awaitable[Result]]
    ) -> list[Result]:
        """Work on all rows at once; if that fails, on each alone. Return the results.

        Raises:
            Unavailable: no row is to blame.
            StartError: only a new process can continue.
        """
        try:
            return [await work(keys)] if keys else []
        except (Unavailable, StartError):
            raise
        except Exception as error:  # noqa: BLE001  # of any kind; `add` logs it
            if len(keys) == 1:
                self.add(keys[0], error)
                return []
        return await self.each(keys, lambda key: work([key]))

    async def each(
        self, keys: Iterable[Key], work: Callable[[Key], Awaitable[Result]]
    ) -> list[Result]:
        """Work on each row alone, and return the results; raises as `together` does."""
        results: list[Result] = []
        for key in keys:
            try:
                results.append(await work(key))
            except (Unavailable, StartError):
                raise
            except Exception as error:  # noqa: BLE001  # of any kind; `add` logs it
                self.add(key, error)
        return results
