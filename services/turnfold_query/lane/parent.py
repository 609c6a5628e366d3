"""The query server's side: passes questions on, keeps whose turn it is, and starts another lane when one died or hangs."""

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import structlog

from turnfold.errors import RequestError, Unavailable
from turnfold.process.child_process import (
    ChildProcess,
    command_of,
    decode_message,
    encode_message,
)
from turnfold.process.scheduling import backoff_seconds
from turnfold.process.tasks import cancel_and_wait
from turnfold.process.turns import Turns

if TYPE_CHECKING:  # the process is started before anything large is loaded
    from turnfold.messages import SessionKey
    from turnfold_query.lane import wire

log = structlog.get_logger()

AT_ONCE, EACH = 2, 1
"""The most questions that are worked on at once, of all agents and of one; the others wait for their turn."""
GRACE_SECONDS: Final = 10.0
"""A lane that works on something for so long after nobody waits for it is ended."""
STEADY_SECONDS: Final = 30.0
"""A lane that lived so long is followed by another soon."""
CLOSE_SECONDS: Final = 1.0
RETRY_AFTER_MS: Final = 1_000


@dataclass(slots=True)
class _Asked:
    """A question on its way, and whose turn it takes."""

    asker: Hashable
    answer: asyncio.Future[Any]
    giving_up: asyncio.TimerHandle | None = None


class Lane:
    """Answers what computes for long in a process of its own."""

    def __init__(self) -> None:
        self._process: ChildProcess | None = None
        self._turns = Turns(AT_ONCE, EACH)
        self._numbers = count(1)
        self._asked: dict[int, _Asked] = {}
        self._keeping: asyncio.Task[None] | None = None
        self.on_change: Callable[[], object] = lambda: None
        """Called when there is another process."""
        self.on_death: Callable[[], object] = lambda: None
        """Called when it died, or had to be ended."""

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._process.pid if self._process is not None else None

    def begin(self) -> None:
        """Start the process: it loads while its query server does."""
        with contextlib.suppress(OSError):  # then `start` tries again, later and later
            self._process = ChildProcess(command_of("lane"))

    async def start(self) -> None:
        """Begin to listen to it."""
        if self._process is not None:
            await self._process.open()
        self._keeping = asyncio.create_task(self._keep(self._process), name="lane")

    async def ask(self, key: "SessionKey", request: "wire.Request") -> Any:
        """The answer to a question, when it is its asker's turn.

        Raises:
            RequestError: it cannot be given; `Unavailable` where the process died over it.
        """
        from turnfold_query.lane import wire  # noqa: PLC0415 - see above

        asker = await self._turns.take()
        process = self._process
        if process is None:
            self._turns.give_back(asker)
            raise _died()
        number = next(self._numbers)
        asked = self._asked[number] = _Asked(asker, asyncio.get_running_loop().create_future())
        process.send(encode_message(wire.Ask(number, asker, key, request)))
        try:
            return await asked.answer
        except asyncio.CancelledError:
            if number in self._asked:
                process.send(encode_message(wire.Cancel(number)))
                asked.giving_up = asyncio.get_running_loop().call_later(GRACE_SECONDS, process.kill)
            raise

    def forget(self) -> None:
        """Have it keep no text: something was erased."""
        from turnfold_query.lane import wire  # noqa: PLC0415 - see above

        if self._process is not None:
            self._process.send(encode_message(wire.Forget()))

    async def close(self) -> None:
        """End the process."""
        if self._keeping is not None:
            await cancel_and_wait(self._keeping)
        process, self._process = self._process, None
        self._ended()
        if process is not None:
            await process.close(seconds=CLOSE_SECONDS)

    async def _keep(self, opened: ChildProcess | None) -> None:
        """Hear one process after another, whatever becomes of them."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            process = opened or await self._another(failures)
            began, opened = loop.time(), None
            try:
                await self._hear(process)
            except Exception:
                log.exception("lane.failed")
            failures = 0 if loop.time() - began > STEADY_SECONDS else failures + 1
            self._process = None
            self._ended()
            self.on_death()
            log.warning("lane.died", pid=process.pid, retry_seconds=backoff_seconds(failures))
            await process.close(seconds=0.0)

    async def _another(self, failures: int) -> ChildProcess:
        """Another process, as soon as one can be started."""
        while True:
            await asyncio.sleep(backoff_seconds(failures))
            failures += 1
            with contextlib.suppress(OSError):
                process = ChildProcess(command_of("lane"))
                await process.open()
                self._process = process
                self.on_change()
                return process

    async def _hear(self, process: ChildProcess) -> None:
        while (body := await process.receive()) is not None:
            reply = decode_message(body)
            self._told(reply.number, reply.answer)

    def _told(self, number: int, answer: Any) -> None:
        """A question is over."""
        asked = self._asked.pop(number)
        if asked.giving_up is not None:
            asked.giving_up.cancel()
        self._turns.give_back(asked.asker)
        if asked.answer.done():
            return
        if isinstance(answer, RequestError):
            asked.answer.set_exception(answer)
        else:
            asked.answer.set_result(answer)

    def _ended(self) -> None:
        """The process is gone: so are its answers."""
        for number in list(self._asked):
            self._told(number, _died())


def _died() -> Unavailable:
    return Unavailable(
        "the process for searches and large windows ended and is started again",
        retry_after_ms=RETRY_AFTER_MS,
    )
