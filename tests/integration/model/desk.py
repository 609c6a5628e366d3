"""One worker's desk with a real store, a real child and a model that fails as it is told."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.model_server import ModelServer
from tests.store_fixtures import NOON, Stores, new_sqlite, sql_stores, turn, turns, words
from turnfold.core.policy.allowance import Allowance
from turnfold.core.policy.presets import Policy
from turnfold.models import ChildSummarizer
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Outcome, Retry, compact
from turnfold.ports.compact import Job

MINUTE_MS = 60_000
TEN_MINUTES_MS = 10 * MINUTE_MS
DAY_MS = 24 * 60 * MINUTE_MS
LONG_SECONDS = 60.0
"""Longer than any call that gets an answer, even the first one, for which litellm loads half of itself."""
SHORT_SECONDS = 1.0
"""A call waits so long for an answer that never comes: time enough to send the question."""


@dataclass
class Desk:
    """One worker's desk, with a clock that a test turns."""

    stores: Stores
    summarizer: ChildSummarizer
    writing: SummaryConfig
    database: Path
    now_ms: int = NOON + MINUTE_MS
    seq: int = 1
    outcomes: list[Outcome] = field(default_factory=list)

    async def evict(self, *said: dict[str, Any]) -> None:
        """Publish so much that something leaves."""
        if said:
            await self.stores.ingest(turn(self.seq, *said, at_ms=self.now_ms))
            self.seq += 1
        await self.stores.ingest(*turns(self.seq, 7))
        self.seq += 7

    async def attempt(self) -> Outcome:
        """One attempt at the job that is due, a minute after the last."""
        self.now_ms += MINUTE_MS
        (job,) = await self.stores.claim(self.now_ms)
        outcome = await self.work_on(job)
        self.outcomes.append(outcome)
        return outcome

    async def work_on(self, job: Job) -> Outcome:
        """One attempt at a job that was claimed."""
        return await compact(
            job,
            store=self.stores.jobs,
            summarizer=self.summarizer,
            config=self.writing,
            count=words,
            now_ms=lambda: self.now_ms,
        )

    async def finish(self) -> Outcome:
        """Attempts until the job is done."""
        while isinstance(outcome := await self.attempt(), Retry):
            continue
        return outcome

    async def version(self) -> Any:
        """The summary in force."""
        return (await self.stores.facts()).summary

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.database) as connection:
            return connection.execute(query).fetchall()

    def phases(self) -> list[tuple[str, str | None]]:
        return self.rows("SELECT phase, reason FROM audit_view ORDER BY audit_id")


async def desk_with(
    summarizer: ChildSummarizer, model: ModelServer, folder: Path, policy: Policy, **writing: Any
) -> AsyncIterator[Desk]:
    url = new_sqlite(folder)
    chosen = SummaryConfig(
        model="openai/x", api_base=model.url, api_key="none-needed", key_models=("openai/*",), allowance=Allowance(("openai/*",)),
        call_timeout_seconds=LONG_SECONDS, backoff_seconds=0.01,
    )  # fmt: skip
    async with sql_stores(url, policy) as stores:
        yield Desk(stores, summarizer, replace(chosen, **writing), Path(url.partition(":///")[2]))
