"""The query server's side of the lane: forward requests in turn, and restart a lane that failed."""

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import structlog

from turnfold.errors import RequestError, Unavailable
from turnfold.process.caller_order import Turns
from turnfold.process.child_process import (
    ChildProcess,
    command_of,
    decode_message,
    encode_message,
)
from turnfold.process.scheduling import backoff_seconds
from turnfold.process.tasks import cancel_and_wait

if TYPE_CHECKING:  # loaded later, so that the process starts first
    from turnfold.messages import SessionKey
    from turnfold_query.lane import wire

log = structlog.get_logger()

AT_ONCE, EACH = 2, 1
"""Requests that run at once, in total and per agent; the others wait for their turn."""
GRACE_SECONDS: Final = 10.0
"""A lane that still works on a request this long after its caller gave up is killed."""
STEADY_SECONDS: Final = 30.0
"""A lane that ran at least this long is restarted without a growing delay."""
CLOSE_SECONDS: Final = 1.0
RETRY_AFTER_MS: Final = 1_000


@dataclass(slots=True)
class _PendingRequest:
    """A request in progress, and the agent whose turn it uses."""

    asker: Hashable
    answer: asyncio.Future[Any]
    giving_up: asyncio.TimerHandle | None = None


def start_process() -> ChildProcess | None:
    """Start a lane before the query server loads; None if that failed, then `Lane` retries."""
    try:
        return ChildProcess(command_of("lane"))
    except OSError:
        return None


class Lane:
    """Answer requests that compute for long in a child process.

    `on_change` is called with the process id of each restarted lane. `on_death` is called whenever
    a lane has ended by itself or was killed.
    """

    def __init__(
        self,
        process: ChildProcess | None,
        *,
        on_change: Callable[[int], object],
        on_death: Callable[[], object],
    ) -> None:
        self._process = process
        self._on_change = on_change
        self._on_death = on_death
        self._turns = Turns(AT_ONCE, EACH)
        self._numbers = count(1)
        self._pending: dict[int, _PendingRequest] = {}
        self._restarting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, if one runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Open the connection to the process, and restart it whenever it ends."""
        if self._process is not None:
            try:
                await self._process.open()
            except OSError:
                self._process = None
        self._restarting = asyncio.create_task(self._keep_running(self._process), name="lane")

    async def ask(self, key: "SessionKey", request: "wire.Request") -> Any:
        """Send a request when it is its agent's turn, and return the answer.

        Raises:
            RequestError: the request failed; `Unavailable` if the process ended meanwhile.
        """
        from turnfold_query.lane import wire  # noqa: PLC0415 - see above

        # A turn per agent, so that one agent's long searches do not keep out the others.
        asker = await self._turns.take()
        # Nothing is awaited from here to the entry in `_pending`, so `_fail_all` misses no request.
        process = self._process
        if process is None:
            self._turns.release(asker)
            raise _lane_ended()
        number = next(self._numbers)
        pending = self._pending[number] = _PendingRequest(
            asker, asyncio.get_running_loop().create_future()
        )
        # If the process has just ended, the frame is dropped, and `_fail_all` ends the request.
        process.send(encode_message(wire.Ask(number, asker, key, request)))
        try:
            return await pending.answer
        except asyncio.CancelledError:
            if number in self._pending:
                # The reply to this returns the turn, once the thread in the lane has stopped.
                process.send(encode_message(wire.Cancel(number)))
                # SQLite answers an interrupt soon, but a computation in Python does not.
                pending.giving_up = asyncio.get_running_loop().call_later(
                    GRACE_SECONDS, process.kill
                )
            raise

    def notify_of_erasure(self) -> None:
        """Tell the lane that something was erased."""
        from turnfold_query.lane import wire  # noqa: PLC0415 - see above

        if self._process is not None:
            self._process.send(encode_message(wire.Erased()))

    async def close(self) -> None:
        """End the process; running requests fail."""
        if self._restarting is not None:
            await cancel_and_wait(self._restarting)
        process, self._process = self._process, None
        self._fail_all()
        if process is not None:
            await process.close(seconds=CLOSE_SECONDS)

    async def _keep_running(self, opened: ChildProcess | None) -> None:
        """Read the answers of one process after another, until this task is cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            process = opened or await self._restart(failures)
            began, opened = loop.time(), None
            try:
                await self._read_answers(process)
            except Exception:
                log.exception("lane.failed")
            failures = 0 if loop.time() - began > STEADY_SECONDS else failures + 1
            self._process = None
            self._fail_all()
            self._on_death()
            log.warning("lane.died", pid=process.pid, retry_seconds=backoff_seconds(failures))
            await process.close(seconds=0.0)

    async def _restart(self, failures: int) -> ChildProcess:
        """Start another process; repeat with growing delays until it succeeds."""
        while True:
            await asyncio.sleep(backoff_seconds(failures))
            failures += 1
            with contextlib.suppress(OSError):
                process = ChildProcess(command_of("lane"))
                await process.open()
                self._process = process
                assert process.pid is not None
                self._on_change(process.pid)
                return process

    async def _read_answers(self, process: ChildProcess) -> None:
        while (body := await process.receive()) is not None:
            reply = decode_message(body)
            self._complete(reply.number, reply.answer)

    def _complete(self, number: int, answer: Any) -> None:
        """Complete a request with an answer or an error, and free its turn."""
        # The lane replies once to each request, also to one that was cancelled.
        pending = self._pending.pop(number)
        if pending.giving_up is not None:
            pending.giving_up.cancel()
        self._turns.release(pending.asker)
        # Its caller gave up. Only the turn had to be returned.
        if pending.answer.done():
            return
        if isinstance(answer, RequestError):
            pending.answer.set_exception(answer)
        else:
            pending.answer.set_result(answer)

    def _fail_all(self) -> None:
        """Fail the requests in progress, because the process has ended."""
        for number in list(self._pending):
            self._complete(number, _lane_ended())


def _lane_ended() -> Unavailable:
    return Unavailable(
        "the process for searches, large windows and large events ended and is started again",
        retry_after_ms=RETRY_AFTER_MS,
    )
