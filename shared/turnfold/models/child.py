"""The summarizer process: read jobs from the socket on standard input, and reply to each."""

import asyncio
import os
import signal
import socket
from asyncio import StreamWriter, Task
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.gate import Reason
from turnfold.core.summary.redaction import without_secrets
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.errors import StartError, SummarizerError
from turnfold.models.usage_meter import UsageMeter
from turnfold.models.wire import (
    LOADED,
    draft_as_json,
    encode,
    failure_as_json,
)
from turnfold.process.child_process import (
    decode_message,
    encode_frame,
    open_stream,
    parent_socket,
    read_frame,
)
from turnfold.process.memory import forget_and_return_memory
from turnfold.process.scheduling import is_load_low, lower_priority, use_idle_priority


class SummarizerChild:
    """Run jobs concurrently. The tokenizer and litellm load once, while the process listens."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._jobs: dict[int, Task[None]] = {}
        self._counter: Task[Callable[[str], int]] = asyncio.create_task(
            asyncio.to_thread(_load_counter)
        )
        self._litellm: Task[Any] | None = None
        self._kept: dict[int, asyncio.Event] = {}
        # Jobs wait for models concurrently. Extraction computes, so one at a time is as fast.
        self._extraction_lock = asyncio.Lock()
        self._idle_executor = ThreadPoolExecutor(1, "idle-priority", initializer=use_idle_priority)

    def preload(self) -> None:
        """Start to import litellm, so that the first job need not wait for it."""
        if self._litellm is None:
            self._litellm = asyncio.create_task(asyncio.to_thread(_load_litellm))
            self._litellm.add_done_callback(lambda _: self._send({"id": LOADED}))

    def handle(self, message: dict[str, Any]) -> None:
        """Start a job, cancel one, or confirm that a part of it is stored."""
        number = int(message["id"])
        if message.get("kept"):
            if (kept := self._kept.get(number)) is not None:
                kept.set()
            return
        if message.get("cancel"):
            job = self._jobs.get(number)
            if job is not None:
                job.cancel()
            else:
                # The job has replied already. The parent takes the reply that it reads first.
                self._send({"id": number, "cancelled": True})
            return
        self._jobs[number] = asyncio.create_task(self._run_job(number, message["job"]))

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(encode_frame(encode(message)))

    async def _run_job(self, number: int, job: SummaryJob) -> None:
        meter = UsageMeter()
        try:
            job = await asyncio.to_thread(without_secrets, job)
            result: dict[str, Any] = {"draft": draft_as_json(await self._write(number, meter, job))}
        # Not raised again: the parent waits for the confirmation.
        except asyncio.CancelledError:
            result = {"cancelled": True}
        except SummarizerError as error:
            result = {"error": failure_as_json(error)}
        except StartError as error:
            failure = SummarizerError(Reason.PROVIDER_ERROR, str(error), is_transient=False)
            result = {"error": failure_as_json(failure)}
        except Exception as error:  # noqa: BLE001 - other jobs go on; the text may quote a user
            failure = SummarizerError(Reason.PROVIDER_ERROR, type(error).__name__)
            result = {"error": failure_as_json(failure)}
        finally:
            self._jobs.pop(number, None)
            self._kept.pop(number, None)
        self._send({"id": number, "unreported_tokens": meter.paid(), **result})
        await self._writer.drain()

    async def _write(self, number: int, meter: UsageMeter, job: SummaryJob) -> Draft:
        # A cancelled job must not cancel what all jobs wait for.
        count = await asyncio.shield(self._counter)
        if job.model is None:
            return await self._extract(job, count)
        self.preload()
        assert self._litellm is not None
        litellm = await asyncio.shield(self._litellm)
        from turnfold.models.model import write_with_model  # noqa: PLC0415 - extraction needs none

        async def keep(part: ChunkSummary) -> None:
            # The next call may build on a part only after it is stored. Otherwise a crash after
            # that call would lose two.
            self._kept[number] = asyncio.Event()
            self._send({"id": number, "part": part})
            await self._kept[number].wait()

        return await write_with_model(job, litellm=litellm, count=count, keep=keep, meter=meter)

    async def _extract(self, job: SummaryJob, count: Callable[[str], int]) -> Draft:
        async with self._extraction_lock:
            # On a busy machine, a thread with idle priority might never run.
            executor = self._idle_executor if is_load_low() else None
            write = partial(extract, job, count=count)
            return await asyncio.get_running_loop().run_in_executor(executor, write)


async def serve(connection: socket.socket, *, preload: bool) -> None:
    """Run the jobs of the parent until it has gone."""
    # No request waits for a summary, and on a busy machine requests wait for windows.
    lower_priority()
    reader, writer = await open_stream(connection)
    child = SummarizerChild(writer)
    if preload:
        child.preload()
    trimming = asyncio.create_task(forget_and_return_memory(), name="memory")
    while (body := await read_frame(reader)) is not None:
        child.handle(decode_message(body))
    trimming.cancel()


def run(*, preload: bool) -> None:
    """Serve the parent, which holds the other end of standard input, then exit.

    Standard streams are redirected to the null device, because libraries print to them.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A copy of descriptor 0, which is the null device from then on.
    connection = parent_socket()
    null_device = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null_device, descriptor)
    try:
        asyncio.run(_serve_and_exit(connection, preload=preload))
    finally:
        os._exit(0)


async def _serve_and_exit(connection: socket.socket, *, preload: bool) -> None:
    await serve(connection, preload=preload)
    os._exit(0)  # an import or a call in a thread must not outlive the parent


def _load_counter() -> Callable[[str], int]:
    from turnfold.model_info.tokenizer import load_counter  # noqa: PLC0415 - loads in a thread

    return load_counter()


def _load_litellm() -> Any:
    from turnfold.models.call import load_litellm  # noqa: PLC0415 - loads in a thread

    return load_litellm()
