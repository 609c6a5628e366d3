"""The worker's side of the summarizer: send jobs, keep their deadlines, restart the process."""

import asyncio
import os
import subprocess
from asyncio import Queue, Task
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import count as numbers
from typing import Any, Final, TypeAlias

from turnfold.core.summary.gate import Reason
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.errors import SummarizerError
from turnfold.models.wire import (
    LOADED,
    decode,
    draft_from_json,
    failure_as_json,
)
from turnfold.process.child_process import PYTHON, ChildProcess, encode_message
from turnfold.process.tasks import at_most

START_SECONDS: Final = 45.0
CANCEL_SECONDS: Final = 5.0
LOAD_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 2.0
_WITHHELD: Final = ("TURNFOLD_", "NATS_", "PG", "DATABASE_", "POSTGRES_", "SQLALCHEMY_")

Replies: TypeAlias = Queue[dict[str, Any]]
Keep: TypeAlias = Callable[[ChunkSummary], Awaitable[None]]


async def _discard(_: ChunkSummary) -> None:
    """Keep no parts: the default of `ChildSummarizer.summarize`."""


class ChildSummarizer:
    """Write versions in a child process that has no database credentials.

    The process starts with the first job or with `start()`; with `preload`, it imports litellm at
    once. A job may take its own `timeout_seconds`, plus `start_seconds` for a process that starts.
    After that the job is cancelled, and a process that does not confirm it is killed. When the
    process exits, running jobs fail as transient, and the next job starts another process.
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
        self._waiting: dict[int, Replies] = {}
        self._process: ChildProcess | None = None
        self._listening: Task[None] | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self._loaded = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The id of the process while it runs."""
        process = self._process
        return process.pid if process is not None and process.is_running else None

    async def start(self) -> None:
        """Start the process unless it runs."""
        await self._running_process()

    async def loaded(self) -> None:
        """Wait until a process with `preload` has imported litellm, for at most a minute."""
        await at_most(LOAD_SECONDS, self._loaded.wait())

    async def summarize(self, job: SummaryJob, *, keep: Keep = _discard) -> Draft:
        """Write one version. `keep` receives each part before the next one begins.

        Raises:
            SummarizerError: there is no usable version; `is_transient` states whether a retry
                may help.
        """
        process = await self._running_process()
        number = next(self._numbers)
        replies: Replies = asyncio.Queue()
        self._waiting[number] = replies
        # The child limits each call of a model. Here, all calls of a job have one deadline.
        end = asyncio.get_running_loop().time() + (
            job.job_timeout_seconds if job.model else job.timeout_seconds + self._start_seconds
        )
        try:
            async with asyncio.timeout_at(end):
                await self._send(process, {"id": number, "job": job})
                while "part" in (reply := await self._next(replies, job)):
                    await keep(ChunkSummary(*reply["part"]))
                    await self._send(process, {"id": number, "kept": True})
        except TimeoutError:
            unreported_tokens = await self._cancel(process, number, replies)
            raise SummarizerError(
                Reason.TIMEOUT,
                "no answer before the deadline of the job",
                unreported_tokens=unreported_tokens,
            ) from None
        except BaseException:
            # The child makes no further call for the job. Nobody waits for its confirmation.
            process.send(encode_message({"id": number, "cancel": True}))
            raise
        finally:
            self._waiting.pop(number, None)
        return _draft(reply)

    async def _next(self, replies: Replies, job: SummaryJob) -> dict[str, Any]:
        """Return the next reply to a job, within the time of one call and of a start."""
        async with asyncio.timeout(job.timeout_seconds + self._start_seconds):
            return await replies.get()

    async def close(self) -> None:
        """End the process. Running jobs fail as transient."""
        self._is_closed = True
        async with self._starting:
            await self._end_process()

    async def _running_process(self) -> ChildProcess:
        async with self._starting:
            if self._is_closed:
                raise SummarizerError(Reason.PROVIDER_ERROR, "the summarizer is closed")
            process = self._process
            if (
                process is not None
                and process.is_running
                # The stream may end before the process, or deliver a frame that nobody can read.
                and self._listening is not None
                and not self._listening.done()
            ):
                return process
            await self._end_process()
            try:
                process = ChildProcess(
                    (*PYTHON, "turnfold.models", *["--preload"] * self._preload),
                    environment=_environment(self._environment),
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                raise SummarizerError(
                    Reason.PROVIDER_ERROR,
                    f"cannot start the summarizer process ({type(error).__name__})",
                ) from error
            # Before it opens: if that is cancelled, the next job finds the process and ends it.
            self._process = process
            await process.open()
            self._listening = asyncio.create_task(self._listen(process))
            return process

    async def _listen(self, process: ChildProcess) -> None:
        try:
            while (body := await process.receive()) is not None:
                reply = decode(body)
                if reply["id"] == LOADED:
                    self._loaded.set()
                    continue
                replies = self._waiting.get(int(reply["id"]))
                # A reply may arrive after the deadline of its job.
                if replies is not None:
                    replies.put_nowait(reply)
        finally:
            for replies in self._waiting.values():
                replies.put_nowait({"error": failure_as_json(_process_ended())})

    async def _send(self, process: ChildProcess, message: dict[str, Any]) -> None:
        if not process.can_send:
            raise _process_ended()
        process.send(encode_message(message))
        await process.drain()

    async def _cancel(self, process: ChildProcess, number: int, replies: Replies) -> int:
        """Cancel a job, and kill a process that does not confirm it.

        Return the number of tokens that were paid and not yet reported.
        """
        tokens = 0
        process.send(encode_message({"id": number, "cancel": True}))
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                while "part" in (reply := await replies.get()):
                    # The call was paid, although nobody stores its answer now.
                    tokens += ChunkSummary(*reply["part"]).tokens
        except TimeoutError:
            # It hangs, and would hold every further job.
            process.kill()
            return tokens
        return tokens + int(reply.get("unreported_tokens") or 0)

    async def _end_process(self) -> None:
        process, listening = self._process, self._listening
        self._process = self._listening = None
        if process is not None:
            await process.close(seconds=CLOSE_SECONDS)
        if listening is not None:
            await asyncio.wait([listening], timeout=CLOSE_SECONDS)
            listening.cancel()


def _process_ended() -> SummarizerError:
    return SummarizerError(Reason.PROVIDER_ERROR, "the summarizer process ended")


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the child: provider keys and proxies, but no bus or database."""
    passed = {name: value for name, value in variables.items() if not name.startswith(_WITHHELD)}
    return passed | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def _draft(reply: dict[str, Any]) -> Draft:
    unreported_tokens = int(reply.get("unreported_tokens") or 0)
    if "error" in reply:
        failure = SummarizerError(**reply["error"])
        failure.unreported_tokens = unreported_tokens
        raise failure
    if "draft" not in reply:
        raise SummarizerError(
            Reason.TIMEOUT, "the job was cancelled", unreported_tokens=unreported_tokens
        )
    return replace(draft_from_json(reply["draft"]), unreported_tokens=unreported_tokens)
