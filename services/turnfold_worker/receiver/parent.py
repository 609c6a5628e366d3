"""The worker's side: takes what the receiver weighed, says what is stored, and starts another receiver when one died."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from turnfold.errors import StartError
from turnfold.process.child_process import Beside
from turnfold.process.scheduling import backoff_seconds
from turnfold.process.tasks import cancel_and_wait
from turnfold_worker.receiver import wire

log = structlog.get_logger()

START_BEATS: Final = 120
"""A new process may take so many beats until its first word."""
RETRY_SECONDS: Final = 1.0
STOP_SECONDS: Final = 3.0
CLOSE_SECONDS: Final = 2.0


class ReceiverProcess(Beside):
    """A running receiver process."""

    def __init__(self) -> None:
        super().__init__("receiver")
        self.is_heard = False
        self.stopped = asyncio.Event()


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A parcel, and whom to tell what became of it."""

    message: wire.BatchReady
    _process: ReceiverProcess

    def acknowledge(self) -> None:
        """All of it is committed."""
        self._process.say(wire.Ack(self.message.number))

    def nack(self, *, delay_seconds: float = 0.0) -> None:
        """Nothing of it was stored; it is to come again, here or elsewhere."""
        self._process.say(wire.Nack(self.message.number, delay_seconds))


class Receiver:
    """Receives and weighs events in a process of its own.

    What a receiver held when it died is delivered again by the bus, to the next one or to another worker.
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
        self._keeping: asyncio.Task[None] | None = None
        self._served_at = 0.0
        self._may_receive = False
        self._is_stopping = False
        self._loaded = asyncio.Event()
        self.held = 0
        """How many events are received and not stored yet; more may wait in the stream."""
        self.activity: tuple[int, int] | None = None
        """Changes whenever the consumer is heard; None while there is nothing to hear."""

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def idle_seconds(self) -> float:
        """How long ago the consumer was heard last, though there was room for more."""
        return asyncio.get_running_loop().time() - self._served_at

    async def start(self) -> None:
        """Begin to listen to it."""
        self._served_at = asyncio.get_running_loop().time()
        self._keeping = asyncio.create_task(self._keep(), name="receiver")
        self._keeping.add_done_callback(self._kept)

    async def loaded(self, *, seconds: float = 60.0) -> None:
        """Wait, bounded, until it could receive at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._loaded.wait()

    def receive(self) -> None:
        """Have it receive from now on."""
        self._may_receive = True
        if self._process is not None:
            self._process.say(wire.StartReceiving())

    async def take(self) -> ReceivedBatch:
        """The next parcel.

        Raises:
            StartError: the consumer is gone, or the bus refuses the credentials.
        """
        received = await self._received.get()
        if isinstance(received, BaseException):
            raise received
        return received

    async def stop(self) -> None:
        """Receive no more, and give back what was not taken; what was taken can still be acknowledged."""
        process, self._is_stopping = self._process, True
        if self._keeping is not None and process is not None:
            process.say(wire.Stop())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await process.stopped.wait()
        while not self._received.empty():
            received = self._received.get_nowait()
            if isinstance(received, ReceivedBatch):
                received.nack()

    async def close(self) -> None:
        """End the process, once it has passed on all that it was told."""
        if self._keeping is not None:
            await cancel_and_wait(self._keeping)
        if self._process is not None:
            await self._process.close(seconds=CLOSE_SECONDS)
            self._process = None

    def _kept(self, keeping: asyncio.Task[None]) -> None:
        """Whoever waits for parcels learns of an error of ours: nobody else would go on."""
        if not keeping.cancelled() and (error := keeping.exception()) is not None:
            self._received.put_nowait(error)

    async def _keep(self) -> None:
        """Listen to one process after another, until it is told to stop or no other could do better."""
        failures = 0
        while not self._is_stopping:
            try:
                if await self._kept_one():
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
            await self._given_up()
            await asyncio.sleep(RETRY_SECONDS)

    async def _kept_one(self) -> bool:
        """Listen to one process, as long as it lives; whether it was the last."""
        if (process := self._process) is None:
            process = self._process = ReceiverProcess()
            self._on_start(process.pid)
        return await self._listen(process) or self._is_stopping

    async def _given_up(self) -> None:
        process, self._process, self.held = self._process, None, 0
        if process is not None:
            await process.close(seconds=0.0)

    async def _listen(self, process: ReceiverProcess) -> bool:
        """Hear it out, until it is gone or silent for too long; whether it says that another would do no better."""
        reader = await process.open()
        if self._may_receive:
            process.say(wire.StartReceiving())
        beating = asyncio.create_task(self._beat(process), name="beat")
        reading = asyncio.create_task(self._hear(process, reader), name="parcels")
        try:
            await asyncio.wait([beating, reading], return_when=asyncio.FIRST_COMPLETED)
            return reading.done() and reading.result()
        finally:
            beating.cancel()
            reading.cancel()
            process.stopped.set()

    async def _hear(self, process: ReceiverProcess, reader: asyncio.StreamReader) -> bool:
        while (word := await wire.read_word(reader)) is not None:
            process.is_heard = True
            self._loaded.set()
            match word:
                case wire.BatchReady():
                    self.held = word.held
                    self._received.put_nowait(ReceivedBatch(word, process))
                case wire.Heartbeat(held, activity, idle_seconds):
                    self.held = held
                    self.activity = None if activity is None else (process.pid, activity)
                    self._served_at = asyncio.get_running_loop().time() - idle_seconds
                case wire.Stopped():
                    process.stopped.set()
                case wire.Failed(told):
                    self._received.put_nowait(StartError(told))
                    return True
                case _:
                    pass
        return False

    async def _beat(self, process: ReceiverProcess) -> None:
        """Say that we are here, until it is not."""
        missed, most = 0, START_BEATS
        while missed < most:
            process.say(wire.Heartbeat())
            await asyncio.sleep(wire.BEAT_SECONDS)
            if process.is_heard:
                most = wire.SILENT_BEATS
            missed = 0 if process.is_heard else missed + 1
            process.is_heard = False
        log.warning("receiver.heartbeat_lost", seconds=most * wire.BEAT_SECONDS)
