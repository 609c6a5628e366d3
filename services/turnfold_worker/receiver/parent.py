"""The worker's side of the receiver: take batches, report what is stored, restart the process."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from turnfold.errors import StartError
from turnfold.process.child_process import (
    HEARTBEAT_SECONDS,
    ChildProcess,
    HeartbeatMonitor,
    command_of,
)
from turnfold.process.scheduling import backoff_seconds
from turnfold.process.tasks import at_most, cancel_and_wait
from turnfold_worker.receiver import wire

log = structlog.get_logger()

START_HEARTBEATS: Final = int(60.0 / HEARTBEAT_SECONDS)
"""Limit of heartbeats until the first frame of a new process, which loads slowly."""
LOAD_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
STOP_SECONDS: Final = 3.0
CLOSE_SECONDS: Final = 2.0


class ReceiverProcess:
    """A running receiver process."""

    def __init__(self) -> None:
        self.child = ChildProcess(command_of("receiver"))
        self.stopped = asyncio.Event()
        """Set when no further batch will come from this process."""

    def send(self, message: wire.ReceiverMessage) -> None:
        """Send a message, or drop it if the process has gone."""
        self.child.send(wire.encode(message))


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A batch, and the process that waits for its result."""

    message: wire.BatchReady
    _process: ReceiverProcess

    @property
    def events(self) -> int:
        """The number of its events."""
        return len(self.message.batch.payloads)

    def acknowledge(self) -> None:
        """Report that the whole batch is committed."""
        self._process.send(wire.Ack(self.message.number))

    def nack(self, *, delay_seconds: float = 0.0) -> None:
        """Report that nothing was stored, so that any worker receives the events again."""
        self._process.send(wire.Nack(self.message.number, delay_seconds))


class Receiver:
    """Receive and decode events in a separate process, and restart it when it exits or hangs.

    The stream redelivers the events of a process that has gone, to its successor or to another
    worker. `on_start` receives the id of each new process, `on_failure` the name of this class
    after an unexpected error.
    """

    def __init__(
        self,
        process: ReceiverProcess,
        *,
        on_start: Callable[[int], object],
        on_failure: Callable[[str], object],
    ) -> None:
        self._process: ReceiverProcess | None = process
        self._on_start = on_start
        self._on_failure = on_failure
        self._received: asyncio.Queue[ReceivedBatch | BaseException] = asyncio.Queue()
        self._supervising: asyncio.Task[None] | None = None
        self._served_at = 0.0
        self._may_receive = False
        self._is_stopping = False
        self._loaded = asyncio.Event()
        self.held = 0
        """The number of events received and not stored yet; more may wait in the stream."""
        self.activity: tuple[int | None, int] | None = None
        """Changes with each sign of life of the consumer; None while none is expected."""

    @property
    def pid(self) -> int | None:
        """The id of the process, if there is one."""
        return self._process.child.pid if self._process is not None else None

    @property
    def idle_seconds(self) -> float:
        """The time since the last sign of life of the consumer, while there was room for events."""
        return asyncio.get_running_loop().time() - self._served_at

    async def start(self) -> None:
        """Connect to the process and supervise it. It does not receive before `receive`."""
        self._served_at = asyncio.get_running_loop().time()
        self._supervising = asyncio.create_task(self._supervise(), name="receiver")
        self._supervising.add_done_callback(self._pass_on_error)

    async def loaded(self) -> None:
        """Wait until the process has loaded, for at most a minute."""
        await at_most(LOAD_SECONDS, self._loaded.wait())

    def receive(self) -> None:
        """Receive events from now on."""
        self._may_receive = True
        if self._process is not None:
            self._process.send(wire.StartReceiving())

    async def take(self) -> ReceivedBatch:
        """Return the next batch.

        Raises:
            StartError: the consumer is gone, or the bus rejects the credentials.
        """
        received = await self._received.get()
        if isinstance(received, BaseException):
            raise received
        return received

    def take_more(self, events: int) -> Sequence[ReceivedBatch]:
        """Return batches that wait already, until they have that many events."""
        taken: list[ReceivedBatch] = []
        while events > 0 and self._received.qsize():
            received = self._received.get_nowait()
            if isinstance(received, BaseException):
                # For `take`. No batch follows.
                self._received.put_nowait(received)
                break
            taken.append(received)
            events -= received.events
        return taken

    async def stop(self) -> None:
        """Receive no more, and return the batches that were not taken.

        Batches that were taken can still be acknowledged.
        """
        process, self._is_stopping = self._process, True
        if self._supervising is not None and process is not None:
            process.send(wire.Stop())
            await at_most(STOP_SECONDS, process.stopped.wait())
        while not self._received.empty():
            received = self._received.get_nowait()
            if isinstance(received, ReceivedBatch):
                # At once: otherwise another worker gets these events only after `ack_wait`.
                received.nack()

    async def close(self) -> None:
        """End the process once it has passed on all acknowledgements."""
        if self._supervising is not None:
            await cancel_and_wait(self._supervising)
        if self._process is not None:
            await self._process.child.close(seconds=CLOSE_SECONDS)
            self._process = None

    def _pass_on_error(self, supervising: asyncio.Task[None]) -> None:
        """Raise an error of the supervision in `take`; no batch would come otherwise."""
        if not supervising.cancelled() and (error := supervising.exception()) is not None:
            self._received.put_nowait(error)

    async def _supervise(self) -> None:
        """Serve one process after another, until stopped or until a restart would not help."""
        failures = 0
        while not self._is_stopping:
            try:
                if await self._serve_process():
                    return
                failures = 0
                log.warning("receiver.exited", retry_seconds=RETRY_SECONDS)
            except OSError as error:
                log.warning(
                    "receiver.start_failed", error=type(error).__name__, retry_seconds=RETRY_SECONDS
                )
            except Exception:
                self._on_failure("Receiver")
                log.exception("receiver.failed", failures=failures + 1)
                await asyncio.sleep(backoff_seconds(failures))
                failures += 1
            await self._discard_process()
            await asyncio.sleep(RETRY_SECONDS)

    async def _serve_process(self) -> bool:
        """Serve the present or a new process until it ends; return whether it was the last."""
        is_new = self._process is None
        process = self._process = self._process or ReceiverProcess()
        await process.child.open()
        if is_new and (pid := process.child.pid) is not None:
            self._on_start(pid)
        return await self._exchange(process) or self._is_stopping

    async def _discard_process(self) -> None:
        # Otherwise `held` would keep background loops waiting until the next process reports.
        process, self._process, self.held = self._process, None, 0
        if process is not None:
            await process.child.close(seconds=0.0)

    async def _exchange(self, process: ReceiverProcess) -> bool:
        """Exchange messages until the process is gone or silent.

        Return whether it reported that a restart would not help.
        """
        # `receive` told only the process of that time, and each process after it must be told.
        if self._may_receive:
            process.send(wire.StartReceiving())
        monitor = HeartbeatMonitor(
            lambda: process.send(wire.Heartbeat()), start_limit=START_HEARTBEATS
        )
        beating = asyncio.create_task(monitor.run(), name="heartbeat")
        reading = asyncio.create_task(self._read(process, monitor), name="batches")
        try:
            await asyncio.wait([beating, reading], return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                log.warning("receiver.heartbeat_lost", seconds=beating.result())
            return reading.done() and reading.result()
        finally:
            beating.cancel()
            reading.cancel()
            # Nothing more is read from the process, so `stop` must not wait for its reply.
            process.stopped.set()

    async def _read(self, process: ReceiverProcess, monitor: HeartbeatMonitor) -> bool:
        while (body := await process.child.receive()) is not None:
            monitor.heard()
            self._loaded.set()
            match message := wire.decode(body):
                case wire.BatchReady():
                    self.held = message.held
                    self._received.put_nowait(ReceivedBatch(message, process))
                case wire.Heartbeat(held, activity, idle_seconds):
                    self.held = held
                    # With the id, because the counter of a new process may show the same number.
                    self.activity = None if activity is None else (process.child.pid, activity)
                    self._served_at = asyncio.get_running_loop().time() - idle_seconds
                case wire.Stopped():
                    process.stopped.set()
                case wire.Failed(reason):
                    self._received.put_nowait(StartError(reason))
                    return True
                case _:
                    pass
        return False
