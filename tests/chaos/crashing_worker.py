"""A worker that kills itself at a given step."""

import asyncio
import http.client
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sqlalchemy import Connection

from tests.store_fixtures import (
    KEY,
    LEASE_MS,
    NOON,
    ROWS_AT_ONCE,
    SMALL,
    installation_of,
    places,
    tightened,
    turns,
    words,
)
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.messages import CompactionId
from turnfold.models import ChildSummarizer as Child
from turnfold.models.model import write_with_model
from turnfold.models.usage_meter import UsageMeter
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Outcome, compact
from turnfold.ports.compact import Job, RegenerateOptions, Summarizer
from turnfold.store.compact.jobs.store import SqlJobStore
from turnfold.store.compact.requests import SqlSessionCommands
from turnfold.store.compact.versions import SqlVersionStore
from turnfold.store.compact.withdrawal import withdraw
from turnfold.store.database.engine import Database
from turnfold.store.database.outbox import SqlOutboxStore
from turnfold.store.ingest.erase import SqlErasureStore
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold_worker.loops.relay import Relay

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a worker does, with what, and where it dies: `before`, `in` or `after` a step, when that comes for the nth time.

    A step is a transaction, by the name of the store's method that makes it, after `read` where it only reads; or `ask`, a
    call of the model. `first_id` is the first id that it gives to a compaction.
    """

    deed: str
    database_url: str
    model_url: str = ""
    nats_url: str = ""
    moment: str = ""
    step: str = ""
    nth: int = 1
    subject: str = ""
    now_ms: int = NOON + LEASE_MS
    window: int = 128_000
    numbers: dict[str, Any] = field(default_factory=dict)
    first_id: int = 1
    has_child: bool = False


class Fate:
    """Kills its own process, as a power cut would, when its point comes; without one it never does."""

    def __init__(self, moment: str = "", step: str = "", nth: int = 0) -> None:
        self._point = (moment, step, nth)
        self._met: Counter[tuple[str, str]] = Counter()

    def meet(self, moment: str, step: str) -> None:
        """Come to a point."""
        self._met[moment, step] += 1
        if (moment, step, self._met[moment, step]) == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalDatabase(Database):
    """The real database, each of whose transactions is a step; `in` is after its statements and before its COMMIT."""

    def __init__(self, url: str, fate: Fate) -> None:
        super().__init__(url, writes=True)
        self._fate = fate

    async def write(
        self, work: Callable[[Connection], Found], *, is_repeatable: bool = False
    ) -> Found:
        """Do some writing, and perhaps die of it."""
        transact = partial(super().write, is_repeatable=is_repeatable)
        return await self._lived(transact, work, _step(work))

    async def write_first(self, work: Callable[[Connection], Found]) -> Found:
        """Write for the intake, and perhaps die of it."""
        return await self._lived(super().write_first, work, _step(work))

    async def snapshot(self, work: Callable[[Connection], Found]) -> Found:
        """Do some reading, and perhaps die of it."""
        return await self._lived(super().snapshot, work, f"read {_step(work)}")

    async def read_small(self, work: Callable[[Any], Found]) -> Found:
        """Read like `snapshot`."""
        return await self.snapshot(work)

    async def _lived(
        self,
        transact: Callable[[Callable[[Connection], Found]], Awaitable[Found]],
        work: Callable[[Connection], Found],
        step: str,
    ) -> Found:
        def last(connection: Connection) -> Found:
            found = work(connection)
            self._fate.meet("in", step)
            return found

        self._fate.meet("before", step)
        found = await transact(last)
        self._fate.meet("after", step)
        return found


def _step(work: Callable[[Connection], Any]) -> str:
    """The method that a transaction is made in: the work of `SqlJobStore.commit` is called `SqlJobStore.commit.<locals>.<lambda>`."""
    whole = work.func if isinstance(work, partial) else work
    _, _, method = str(getattr(whole, "__qualname__", "")).partition(".")
    return method.partition(".")[0]


class Refused(Exception):
    """A provider's answer that is none, as litellm raises it."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status_code = status


class Wire:
    """As much of litellm as a version takes, over real HTTP; the real one takes five seconds to load."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    def supports_response_schema(self, *, model: str) -> bool:
        """No model here does."""
        return not model

    async def acompletion(self, *, model: str, messages: Any, api_base: str, **_: Any) -> Any:
        """Ask, and give the answer the shape that it has in litellm."""
        self._fate.meet("before", "ask")
        status, told = await asyncio.to_thread(
            _posted, api_base, json.dumps({"model": model, "messages": messages})
        )
        self._fate.meet("after", "ask")
        if status != 200:
            raise Refused(status, told)
        return json.loads(told, object_hook=lambda found: SimpleNamespace(**found))


def _posted(url: str, body: str) -> tuple[int, str]:
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
    try:
        connection.request(
            "POST", f"{target.path}/chat/completions", body, {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def _forget(_: ChunkSummary) -> None:
    return None


class Writer:
    """The summariser in this process: its parts and their order are the real ones."""

    def __init__(self, fate: Fate) -> None:
        self._wire = Wire(fate)

    async def summarize(
        self, job: SummaryJob, *, keep: Callable[[ChunkSummary], Awaitable[None]] = _forget
    ) -> Draft:
        """Write one version."""
        if job.model is None:
            return extract(job, count=words)
        meter = UsageMeter()
        draft = await write_with_model(job, litellm=self._wire, count=words, keep=keep, meter=meter)
        return replace(draft, unreported_tokens=meter.paid())


class Worker:
    """All that writes into one database, with a clock that its owner turns."""

    def __init__(self, life: Life, database: Database, summarizer: Summarizer) -> None:
        made, _ = installation_of(tightened(SMALL, **life.numbers))
        ids = count(life.first_id)
        self.installation = replace(made, new_id=lambda: next(ids))
        self.now_ms = life.now_ms
        self.database = database
        self.intake = SqlIngestStore(database, withdraw)
        self.jobs = SqlJobStore(database, new_id=self.installation.new_id)
        self.versions = SqlVersionStore(database)
        self.changes = SqlSessionCommands(database)
        self.outbox = SqlOutboxStore(database)
        self.erasures = SqlErasureStore(database, rows_at_once=ROWS_AT_ONCE)
        self._life = life
        self._summarizer = summarizer

    async def do(self, deed: str, subject: str = "") -> None:
        """One thing that a worker does."""
        installation, now_ms = self.installation, self.now_ms
        match deed:
            case "ingest":
                await self.intake.ingest(turns(int(subject), 7), (), installation=installation)
            case "write":
                for job in await self.claim():
                    await self.compact(job)
            case "promote":
                await self.versions.promote(
                    KEY, int(subject), over=None, installation=installation, now_ms=now_ms
                )
            case "restore":
                await self.versions.restore(
                    KEY, CompactionId(subject), installation=installation, now_ms=now_ms
                )
            case "regenerate":
                await self.versions.regenerate(
                    KEY, RegenerateOptions(), installation=installation, now_ms=now_ms
                )
            case "compact_now":
                await self.changes.compact_now(KEY, installation=installation, now_ms=now_ms)
            case "erase":
                await self.changes.erase(KEY, last_seq=int(subject), now_ms=now_ms)
            case "delete_rows":
                while await self.erasures.delete_rows():
                    pass
            case "send":
                client = NatsClient()
                await client.connect(self._life.nats_url)
                await Relay(store=self.outbox, client=client, is_busy=lambda: False).work()
                await client.close()
            case _:
                raise ValueError(deed)

    async def claim(self) -> list[Job]:
        """Take what is due."""
        return list(
            await self.jobs.claim(
                places(10), lease_ms=LEASE_MS, now_ms=self.now_ms, installation=self.installation
            )
        )

    async def compact(self, job: Job) -> Outcome:
        """One attempt at a job."""
        window = self._life.window
        writing = SummaryConfig(
            model="openai/x",
            api_base=self._life.model_url,
            api_key="none-needed",
            call_timeout_seconds=30,
            window=lambda _: window,
        )
        return await compact(
            job,
            store=self.jobs,
            summarizer=self._summarizer,
            config=writing,
            count=words,
            now_ms=lambda: self.now_ms,
        )


@asynccontextmanager
async def living(life: Life) -> AsyncGenerator[Worker]:
    """A worker in this process."""
    fate = Fate(life.moment, life.step, life.nth)
    database = MortalDatabase(life.database_url, fate)
    child = Child() if life.has_child else None
    try:
        yield Worker(life, database, child or Writer(fate))
    finally:
        if child:
            await child.close()
        await database.close()


def live(life: Life) -> None:
    """Live this life, in a process of its own."""
    asyncio.run(_lived(life))


async def _lived(life: Life) -> None:
    async with living(life) as worker:
        await worker.do(life.deed, life.subject)
