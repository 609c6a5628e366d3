"""The parent's side: hands jobs to the child, keeps their deadlines, and starts the child again when it died."""

import asyncio
import contextlib
import os
import sys
from asyncio import Queue, Task
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import count as numbers
from typing import Any, Final, TypeAlias

from turnfold.core.summary.gate import Reason
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.errors import SummarizerError
from turnfold.models.wire import (
    LOADED,
    draft_from_json,
    failure_as_json,
    failure_from_json,
    frame,
    job_as_json,
    read_frame,
)

START_SECONDS: Final = 45.0
CANCEL_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 2.0
_WITHHELD: Final = ("TURNFOLD_", "NATS_", "PG", "DATABASE_", "POSTGRES_", "SQLALCHEMY_")

Answers: TypeAlias = Queue[dict[str, Any]]
Keep: TypeAlias = Callable[[ChunkSummary], Awaitable[None]]


async def _forget(_: ChunkSummary) -> None:
    """For who wants nothing but the version."""


class ChildSummarizer:
    """Writes versions in a child process that holds no database credentials.

    The child starts with the first job, or with `start()`; with `preload` it imports litellm at once. A job may take its
    own `timeout_seconds`, and the child some seconds more to start; then it is cancelled, and a child that does not even
    do that is ended. When the child dies, the jobs in flight fail as transient and the next one starts another child.
    """

    def __init__(
        self,
        *,
        preload: bool = False,
        environment: Mapping[str, str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._preload = preload
        self._environment = dict(os.environ if environment is None else environment)
        self._start_seconds = start_seconds
        self._numbers = numbers(1)
        self._waiting: dict[int, Answers] = {}
        self._process: Process | None = None
        self._listening: Task[None] | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self._loaded = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process of the child, while it lives."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start the child unless it lives."""
        await self._alive()

    async def loaded(self, *, seconds: float = 60.0) -> None:
        """Wait, bounded, until the child has litellm at hand; only one that preloads it ever says so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._loaded.wait()

    async def summarize(self, job: SummaryJob, *, keep: Keep = _forget) -> Draft:
        """Write one version; `keep` is told of each part of it, before the next one is begun.

        Raises:
            SummarizerError: there is none that may be used; `is_transient` says whether asking again may help.
        """
        process = await self._alive()
        number = next(self._numbers)
        answers: Answers = asyncio.Queue()
        self._waiting[number] = answers
        # A model has its deadline for each call in the child; here the child itself has one, and all of its calls together.
        end = asyncio.get_running_loop().time() + (
            job.job_timeout_seconds if job.model else job.timeout_seconds + self._start_seconds
        )
        try:
            async with asyncio.timeout_at(end):
                await self._say(process, {"id": number, "job": job_as_json(job)})
                while "part" in (told := await self._next(answers, job)):
                    await keep(ChunkSummary(*told["part"]))
                    await self._say(process, {"id": number, "kept": True})
        except TimeoutError:
            unpaid = await self._cancelled(process, number, answers)
            raise SummarizerError(
                Reason.TIMEOUT, "no answer before the deadline of the job", unreported_tokens=unpaid
            ) from None
        except BaseException:
            with contextlib.suppress(SummarizerError):
                self._tell(process, {"id": number, "cancel": True})
            raise
        finally:
            self._waiting.pop(number, None)
        return _draft(told)

    async def _next(self, answers: Answers, job: SummaryJob) -> dict[str, Any]:
        """What the child says next of a job; a call may take its time, and the child some more to start and to count."""
        async with asyncio.timeout(job.timeout_seconds + self._start_seconds):
            return await answers.get()

    async def close(self) -> None:
        """End the child. Jobs in flight fail as transient."""
        self._is_closed = True
        async with self._starting:
            await self._ended()

    async def _alive(self) -> Process:
        async with self._starting:
            if self._is_closed:
                raise SummarizerError(Reason.PROVIDER_ERROR, "the summariser is closed")
            process = self._process
            if (
                process is not None
                and process.returncode is None
                and self._listening is not None
                and not self._listening.done()
            ):
                return process
            await self._ended()
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "turnfold.models", *(["--preload"] if self._preload else []),
                    stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_environment(self._environment),
                )  # fmt: skip
            except OSError as error:
                raise SummarizerError(
                    Reason.PROVIDER_ERROR, f"the child does not start: {type(error).__name__}"
                ) from error
            self._process = process
            self._listening = asyncio.create_task(self._listen(process))
            return process

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        try:
            while (told := await read_frame(process.stdout)) is not None:
                if told["id"] == LOADED:
                    self._loaded.set()
                    continue
                answers = self._waiting.get(int(told["id"]))
                if answers is not None:
                    answers.put_nowait(told)
        finally:
            ended = {
                "error": failure_as_json(
                    SummarizerError(Reason.PROVIDER_ERROR, "the summariser process ended")
                )
            }
            for answers in self._waiting.values():
                answers.put_nowait(ended)

    async def _say(self, process: Process, said: dict[str, Any]) -> None:
        self._tell(process, said)
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()

    def _tell(self, process: Process, said: dict[str, Any]) -> None:
        assert process.stdin is not None
        if process.stdin.is_closing():
            raise SummarizerError(Reason.PROVIDER_ERROR, "the summariser process ended")
        process.stdin.write(frame(said))

    async def _cancelled(self, process: Process, number: int, answers: Answers) -> int:
        """Have the child drop a job, and end a child that does not answer to that either; the tokens that nobody was told of."""
        with contextlib.suppress(SummarizerError):
            self._tell(process, {"id": number, "cancel": True})
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                while "part" in (told := await answers.get()):
                    continue
        except TimeoutError:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            return 0
        return int(told.get("unreported_tokens") or 0)

    async def _ended(self) -> None:
        process, listening = self._process, self._listening
        self._process = self._listening = None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if listening is not None:
            await asyncio.wait([listening], timeout=CLOSE_SECONDS)
            listening.cancel()


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """What the child may know: keys of providers and proxies, nothing of the bus or the database."""
    kept = {name: value for name, value in given.items() if not name.startswith(_WITHHELD)}
    return kept | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def _draft(told: dict[str, Any]) -> Draft:
    unreported_tokens = int(told.get("unreported_tokens") or 0)
    if "error" in told:
        failure = failure_from_json(told["error"])
        failure.unreported_tokens = unreported_tokens
        raise failure
    if "draft" not in told:
        raise SummarizerError(
            Reason.TIMEOUT, "the job was cancelled", unreported_tokens=unreported_tokens
        )
    return replace(draft_from_json(told["draft"]), unreported_tokens=unreported_tokens)
