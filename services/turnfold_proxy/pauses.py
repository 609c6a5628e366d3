"""Pauses in which calls are sent unchanged, because Turnfold did not answer one."""

import time
from typing import Final

from cachetools import TTLCache

from turnfold.errors import Unavailable
from turnfold_proxy.continuing import SessionIds

PAUSE_SECONDS: Final = 5.0
MOST_SESSIONS: Final = 10_000


class Pauses:
    """The pause of all sessions, and those of single ones whose requests fail."""

    def __init__(self) -> None:
        self._sessions: TTLCache[SessionIds, bool] = TTLCache[SessionIds, bool](
            MOST_SESSIONS, PAUSE_SECONDS
        )
        self._until = self._answered_at = 0.0

    def check(self, session: SessionIds) -> None:
        """Check that a session has no pause now.

        Raises:
            Unavailable: it has one.
        """
        if time.monotonic() < self._until or session in self._sessions:
            raise Unavailable("Turnfold did not answer a moment ago")

    def answered(self) -> None:
        """Note that Turnfold has answered a call."""
        self._answered_at = time.monotonic()

    def begin(
        self, session: SessionIds, error: TimeoutError | Unavailable, since: float | None
    ) -> None:
        """Begin a pause after a call that asked Turnfold since a time, and was not answered.

        Only the session pauses if Turnfold answers, with an error or other calls, or if the call
        had to wait for others of its session: `since` is None.
        """
        is_answer = isinstance(error, Unavailable) and error.is_answer
        if is_answer or since is None or self._answered_at > since:
            self._sessions[session] = True
        else:
            self._until = time.monotonic() + PAUSE_SECONDS
