"""A database in which a compaction is due, and the workers that die at it."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from typing import Any

from tests.chaos.crashing_worker import Life, Worker, live, living
from tests.forked_processes import PATIENCE_SECONDS, begun, ended
from tests.invariants import SessionSeen, StoreSnapshot, faults, seen_in_database
from tests.model_server import ModelServer
from tests.store_fixtures import (
    KEY,
)
from turnfold.store.database.engine import Database

TEN_MINUTES_MS = 600_000
DEED_IDS = 1_000
"""The first id of a compaction that a dying worker makes: the same as that of the worker who does it again."""


@dataclass
class Scene:
    """A database, a model, and the workers that come and go."""

    life: Life
    model: ModelServer
    database: Database
    worker: Worker

    async def seen(self) -> StoreSnapshot:
        """Everything in the database."""
        return await seen_in_database(self.database)

    async def session(self) -> SessionSeen:
        """The one session."""
        return (await self.seen()).sessions[KEY]

    async def told(self) -> Counter[str]:
        """The notices that wait in the outbox, by kind."""
        return Counter(
            notice.subject.split(".ada.")[0] for notice in await self.worker.outbox.unsent(1_000)
        )

    async def begin(self, deed: str, moment: str, step: str, **more: Any) -> BaseProcess:
        """Start a worker that will die."""
        life = replace(
            self.life,
            deed=deed,
            moment=moment,
            step=step,
            now_ms=self.worker.now_ms,
            first_id=DEED_IDS,
            **more,
        )
        return await asyncio.to_thread(begun, live, life)

    async def die(self, deed: str, moment: str, step: str, **more: Any) -> None:
        """Have a worker live and die; where it dies `while` the model writes, it is this test that kills it."""
        process = await self.begin(deed, "" if moment == "while" else moment, step, **more)
        if moment == "while":
            await asyncio.wait_for(self.model.is_hanging.wait(), PATIENCE_SECONDS)
            process.kill()
        assert await ended(process) == -signal.SIGKILL
        self.model.fault, self.model.script = "answer", []

    async def settle(self) -> None:
        """Let a healthy worker do all that is due, now and whenever a pause is over."""
        for _ in range(5):
            self.worker.now_ms += TEN_MINUTES_MS
            await self.worker.do("write")
        assert await self.worker.jobs.next_due_ms() is None

    async def finished(self) -> SessionSeen:
        """The session when all is done, in which every law holds."""
        await self.settle()
        assert faults(await self.seen()) == []
        session = await self.session()
        # One notice for each thing that was committed, and none for what was not.
        told, phases = await self.told(), Counter(row.phase for row in session.audit)
        assert (
            told["summary.updated"]
            == phases["summary_done"] + phases["promoted"] + phases["restored"]
        )
        assert told["context.compressed"] == phases["evicted"]
        assert (
            told["compaction.failed"]
            == phases["attempt_failed"] + phases["rollback"] + phases["rejected"]
        )
        assert [one.version for one in session.versions] == list(
            range(1, len(session.versions) + 1)
        )
        return session


@asynccontextmanager
async def scene_of(url: str, model: ModelServer, **life: Any) -> AsyncGenerator[Scene]:
    """A database in which seven turns made an eviction due."""
    made = Life(deed="", database_url=url, model_url=model.url, **life)
    async with living(made) as worker:
        yield Scene(made, model, worker.database, worker)


def states(session: SessionSeen) -> Counter[str]:
    """How many messages are live, pending and covered; each is in one of these, or something was lost."""
    covered = {row.ordinal for row in session.rows if row.is_covered}
    places = [one.message.compaction_id for one in session.messages]
    return Counter(
        "live" if place is None else "covered" if int(place) in covered else "pending"
        for place in places
    )
