"""The child: takes jobs from standard input, any number at once, and answers each on standard output."""

import asyncio
import os
import signal
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter, Task
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

from turnfold.core.summary.extractive import extract
from turnfold.core.summary.gate import Reason
from turnfold.core.summary.redaction import without_secrets
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.errors import StartError, SummarizerError
from turnfold.models.usage_meter import UsageMeter
from turnfold.models.wire import (
    LOADED,
    draft_as_json,
    failure_as_json,
    frame,
    job_from_json,
    read_frame,
)
from turnfold.process.scheduling import is_load_low, lower_priority, use_idle_priority


class SummarizerChild:
    """The jobs in hand, and the two slow things they wait for once: the vocabulary and litellm."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._jobs: dict[int, Task[None]] = {}
        self._counter: Task[Callable[[str], int]] = asyncio.create_task(
            asyncio.to_thread(_load_counter)
        )
        self._litellm: Task[Any] | None = None
        self._kept: dict[int, asyncio.Event] = {}
        # Models are waited for side by side; extracting computes, and one at a time is as quick for all.
        self._extracting = asyncio.Lock()
        self._giving_way = ThreadPoolExecutor(1, "giving-way", initializer=use_idle_priority)

    def preload(self) -> None:
        """Begin to import litellm, so that the first job need not wait for it."""
        if self._litellm is None:
            self._litellm = asyncio.create_task(asyncio.to_thread(_load_litellm))
            self._litellm.add_done_callback(lambda _: self._writer.write(frame({"id": LOADED})))

    def take(self, said: dict[str, Any]) -> None:
        """Begin a job, or cancel one."""
        number = int(said["id"])
        if said.get("kept"):
            if (kept := self._kept.get(number)) is not None:
                kept.set()
            return
        if said.get("cancel"):
            job = self._jobs.get(number)
            if job is not None:
                job.cancel()
            else:
                self._writer.write(frame({"id": number, "cancelled": True}))
            return
        self._jobs[number] = asyncio.create_task(self._answer(number, said["job"]))

    async def _answer(self, number: int, job: dict[str, Any]) -> None:
        bill = UsageMeter()
        try:
            given = await asyncio.to_thread(without_secrets, job_from_json(job))
            told: dict[str, Any] = {"draft": draft_as_json(await self._write(number, bill, given))}
        except asyncio.CancelledError:
            told = {"cancelled": True}
        except SummarizerError as error:
            told = {"error": failure_as_json(error)}
        except StartError as error:
            told = {
                "error": failure_as_json(
                    SummarizerError(Reason.PROVIDER_ERROR, str(error), is_transient=False)
                )
            }
        except Exception as error:  # noqa: BLE001 - one bad job must not end the others; its text may quote a user
            told = {
                "error": failure_as_json(
                    SummarizerError(Reason.PROVIDER_ERROR, type(error).__name__)
                )
            }
        finally:
            self._jobs.pop(number, None)
            self._kept.pop(number, None)
        self._writer.write(frame({"id": number, "unreported_tokens": bill.paid(), **told}))
        await self._writer.drain()

    async def _write(self, number: int, bill: UsageMeter, job: SummaryJob) -> Draft:
        count = await asyncio.shield(self._counter)
        if job.model is None:
            async with self._extracting:
                thread = self._giving_way if is_load_low() else None
                return await asyncio.get_running_loop().run_in_executor(
                    thread, partial(extract, job, count=count)
                )
        self.preload()
        assert self._litellm is not None
        litellm = await asyncio.shield(self._litellm)
        from turnfold.models.model import write_with_model  # noqa: PLC0415 - extractive work must not pay for it

        async def keep(part: ChunkSummary) -> None:
            # Only what is kept may be built on, or a death after the next call would cost two.
            self._kept[number] = asyncio.Event()
            self._writer.write(frame({"id": number, "part": part}))
            await self._kept[number].wait()

        return await write_with_model(job, litellm=litellm, count=count, keep=keep, bill=bill)


async def serve(*, preload: bool, jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer jobs until the parent has gone."""
    # Nobody waits for a summary, and on a busy machine somebody waits for a window.
    lower_priority()
    loop = asyncio.get_running_loop()
    reader = StreamReader()
    await loop.connect_read_pipe(lambda: StreamReaderProtocol(reader), jobs)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, answers)
    child = SummarizerChild(StreamWriter(transport, protocol, None, loop))
    if preload:
        child.preload()
    while (said := await read_frame(reader)) is not None:
        child.take(said)


def run(*, preload: bool) -> None:
    """Live until standard input closes. Whatever else prints in this process goes nowhere, so that frames stay whole."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs, answers = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    try:
        asyncio.run(_until_gone(preload=preload, jobs=jobs, answers=answers))
    finally:
        os._exit(0)


async def _until_gone(*, preload: bool, jobs: BinaryIO, answers: BinaryIO) -> None:
    await serve(preload=preload, jobs=jobs, answers=answers)
    os._exit(0)  # an import or a call still running must not outlive the parent


def _load_counter() -> Callable[[str], int]:
    from turnfold.model_info.tokenizer import load_counter  # noqa: PLC0415 - the loop listens while this loads

    return load_counter()


def _load_litellm() -> Any:
    from turnfold.models.call import load_litellm  # noqa: PLC0415 - the loop listens while this loads

    return load_litellm()
