"""Sessions of one database are as if each had it for itself (L12)."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contract.compact.versions import OTHER, STRANGER, override
from tests.contract.query.test_as_of import then
from tests.contract.query.test_search import ids, indexed
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    new_sqlite,
    reported,
    retracted,
    sql_stores,
    summary,
    system,
    tool,
    turn,
    user,
)
from turnfold.core.history.as_of import AtMessage, AtTime, AtVersion
from turnfold.core.summary.sources import ChunkSummary
from turnfold.messages import EventId, SessionKey
from turnfold.ports.compact import RegenerateOptions


class Inhabitant(NamedTuple):
    """A session; its stores count ids of their own, and its turns have some more messages."""

    key: SessionKey
    stores: Stores
    longer: int = 0

    async def speak(self, first: int, number: int) -> None:
        """Publish turns that use one call id again and again; agents use equal event ids."""
        for at in range(first, first + number):
            calls = [assistant(None, "c1"), tool("c1", f"found {at}")]
            asks = [user(f"question {at}"), *calls, *calls]
            more = [assistant(f"answer {at}")] * (1 + self.longer)
            said = [system(f"rules {at}"), *asks, *more]
            await self.stores.ingest(
                turn(self._seq(at), *said, event_id=self._id(at), key=self.key)
            )

    async def retract(self, at: int, *named: int, **fields: Any) -> None:
        named_ids = [f"{self._id(number)}#1" for number in named]
        await self.stores.ingest(
            retracted(self._seq(at), *named_ids, event_id=self._id(at), key=self.key, **fields)
        )

    async def report(self, at: int) -> None:
        usage, limit = {"prompt_tokens": 90 + self.longer}, 5_000 + self.longer
        await self.stores.ingest(
            reported(
                self._seq(at), "m", event_id=self._id(at), key=self.key, usage=usage, limit=limit
            )
        )

    async def promote(self, version: int) -> None:
        await self.stores.versions.promote(
            self.key, version, over=None, installation=self.stores.installation, now_ms=NOON + 9_000
        )

    async def restore(self) -> None:
        _, versions = await self.stores.history.versions(self.key, None)
        await self.stores.versions.restore(
            self.key, versions[-1].compaction_id, installation=self.stores.installation,
            now_ms=NOON + 9_500,
        )  # fmt: skip

    async def regenerate(self, from_version: int | None) -> None:
        wanted = RegenerateOptions(from_version=from_version)
        await self.stores.versions.regenerate(
            self.key, wanted, installation=self.stores.installation, now_ms=NOON + 9_000
        )

    def _seq(self, at: int) -> int:
        return 10 * at + self.longer

    def _id(self, at: int) -> str:
        return f"e{at}" if self.key != OTHER else f"o{at}"

    async def seen(self) -> list[Any]:
        """All that anybody can read of the session."""
        stores, key = self.stores, self.key
        facts = await stores.facts(key)
        past = [
            await then(stores, moment, key)
            for moment in (AtVersion(1), AtTime(NOON + 2_500), AtMessage(EventId("e2"), 1))
        ]
        history = stores.history
        return [
            *((one.session, one.summary, one.pending, one.messages) for one in (facts, *past)),
            (facts.covered_calls, facts.covered_system),
            await history.page(key, after_position=0, limit=1_000),
            await history.versions(key, None),
            await history.audit(key, after=0, limit=1_000),
            await history.counts(key),
            await stores.inspections.strip(key),
            await ids(stores, "question", key=key),
        ]


async def written(here: list[Inhabitant], at_ms: int, kind: str = "llm") -> None:
    """Write a version for each job that is due; the first session needs a second attempt."""
    by_key = {one.key: one.stores for one in here}
    for job in await here[0].stores.claim(at_ms):
        jobs = by_key[job.key].jobs
        given = await jobs.load(job, now_ms=at_ms)
        kept = (await jobs.begun(job)).parts
        if job.key == KEY and not kept:
            await jobs.keep(job, ChunkSummary("digest", "They", 1), now_ms=at_ms)
            await jobs.retry_later(
                job, reason="timeout", detail="", retry_at_ms=at_ms + 1_000, now_ms=at_ms
            )
            continue
        reason = None if kind == "llm" else "timeout"
        made = summary(f"Until {at_ms}: {kept}, {len(given.evicted)}", kind=kind)
        await jobs.commit(job, made, leaving=given.leaving, reason=reason, now_ms=at_ms)


async def lived(here: list[Inhabitant]) -> list[Any]:
    """Have all sessions do the same; return what is seen of the first after each step."""
    steps: list[Callable[[Inhabitant], Awaitable[None]]] = [
        lambda one: one.speak(1, 4),
        lambda one: one.speak(11, 4),
        lambda one: one.report(19),
        lambda one: one.speak(21, 4),
        lambda one: one.regenerate(1),
        lambda one: one.promote(1),
        lambda one: one.speak(31, 2),
        lambda one: one.retract(51, 12, 22),
        lambda one: one.retract(61, 3),
        lambda one: one.speak(71, 5),
        lambda one: one.restore(),
    ]
    seen = []
    for number, step in enumerate(steps, 1):
        for one in here:
            await step(one)
        kind = "extractive" if number == 2 else "llm"
        for again in range(5):
            await written(here, NOON + 20_000 * number + 1_000 * again, kind)
        await indexed(here[0].stores)
        seen.append(await here[0].seen() if number > 1 else None)
    return seen


@pytest.mark.proves("L12", "C52")
async def test_a_session_is_as_if_there_were_no_other(tmp_path: Path) -> None:
    seen = []
    for is_alone in (True, False):
        folder = tmp_path / str(is_alone)
        folder.mkdir()
        url = new_sqlite(folder)
        async with sql_stores(url) as own, sql_stores(url, first_id=1_000) as others:
            here = [Inhabitant(KEY, own)]
            if not is_alone:
                here += [
                    Inhabitant(STRANGER, others, 1),
                    Inhabitant(OTHER, others, 3),
                ]

            for one in here:
                await override(one.stores, one.key, keep_messages=4 + one.longer)
            seen.append(await lived(here))

    for alone, amid in zip(*seen, strict=True):
        assert amid == alone
