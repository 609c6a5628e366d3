"""All writers at once on few sessions of one PostgreSQL: no deadlock occurs."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count

import asyncpg
import pytest

from tests.invariants import faults
from tests.store_fixtures import (
    LEASE_MS,
    NOON,
    Stores,
    assistant,
    places,
    result,
    sql_stores,
    summary,
    tool,
    turn,
    user,
)
from turnfold.errors import LostLease, RequestError
from turnfold.messages import AgentId, CompactionId, SessionId, SessionKey
from turnfold.ports.compact import JobStatus, RegenerateOptions
from turnfold.ports.ingest import DecodedEvent
from turnfold_migrations import upgrade

WORKERS = 6
DEEDS = 40
KEYS = [
    SessionKey(AgentId(agent), SessionId(f"s-{number}"))
    for agent in ("ada", "bob")
    for number in range(3)
]


class Storm:
    """What workers do by chance, all at once; sequences are given out as a stream would."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        self.done: Counter[str] = Counter()
        self._seqs = count(1)
        self._clock = count(NOON + 10_000_000)
        self._written: dict[SessionKey, CompactionId] = {}

    def batch(self) -> list[DecodedEvent]:
        """Events of some sessions, in any order: turns, calls, late results, and now and then a copy."""
        keys = self.chance.sample(KEYS, k=self.chance.randint(1, len(KEYS)))
        events: list[DecodedEvent] = []
        for key in keys * self.chance.randint(1, 3):
            seq = next(self._seqs)
            said = [
                user(f"question {seq}"),
                assistant(None, f"c{seq}"),
                tool(f"c{seq}"),
                assistant("so it is"),
            ]
            events.append(turn(seq, *said[: self.chance.choice((2, 4))], key=key))
            if self.chance.random() < 0.3:
                events.append(
                    result(next(self._seqs), f"c{seq}", "late", key=key, event_id=f"r{seq}")
                )
            if self.chance.random() < 0.2:
                events.append(
                    turn(
                        next(self._seqs), *said, key=key, event_id=f"e{self.chance.randint(1, seq)}"
                    )
                )
        self.chance.shuffle(events)
        return events

    async def work(self, stores: Stores) -> None:
        """One worker's share, and more until each deed has succeeded once: which ones are refused is chance."""
        for number in range(5 * DEEDS):
            if number >= DEEDS and set(_DEEDS) <= set(self.done):
                return
            deed = self.chance.choices(list(_DEEDS), weights=list(_DEEDS.values()))[0]
            try:
                await getattr(self, deed)(stores, self.chance.choice(KEYS), next(self._clock))
                self.done[deed] += 1
            except (RequestError, LostLease) as error:
                self.done[f"{deed}: {type(error).__name__}"] += 1

    async def ingest(self, stores: Stores, _: SessionKey, __: int) -> None:
        batch = self.batch()
        await stores.intake.ingest(batch, (), installation=stores.installation)

    async def write(self, stores: Stores, _: SessionKey, now_ms: int) -> None:
        for job in await stores.jobs.claim(
            places(3), lease_ms=LEASE_MS, now_ms=now_ms, installation=stores.installation
        ):
            given = await stores.jobs.load(job, now_ms=now_ms)
            await stores.jobs.renew(job, lease_ms=LEASE_MS, now_ms=now_ms)
            if not given.evicted:
                # What it was to tell again is live again.
                await stores.jobs.fail(
                    job,
                    ending=JobStatus.STALE,
                    reason=None,
                    detail="nothing is left",
                    now_ms=now_ms,
                )
            elif self.chance.random() < 0.2:
                await stores.jobs.retry_later(
                    job, reason="timeout", detail="", retry_at_ms=now_ms, now_ms=now_ms
                )
            else:
                await stores.jobs.commit(
                    job, summary(f"version of {now_ms}"), reason=None, now_ms=now_ms
                )
                self._written[job.key] = job.compaction_ids[-1]

    async def promote(self, stores: Stores, key: SessionKey, now_ms: int) -> None:
        await stores.versions.promote(
            key,
            self.chance.randint(1, 2),
            over=None,
            installation=stores.installation,
            now_ms=now_ms,
        )

    async def restore(self, stores: Stores, key: SessionKey, now_ms: int) -> None:
        await stores.versions.restore(
            key,
            self._written.get(key, CompactionId("1")),
            installation=stores.installation,
            now_ms=now_ms,
        )

    async def regenerate(self, stores: Stores, key: SessionKey, now_ms: int) -> None:
        await stores.versions.regenerate(
            key, RegenerateOptions(), installation=stores.installation, now_ms=now_ms
        )

    async def compact_now(self, stores: Stores, key: SessionKey, now_ms: int) -> None:
        await stores.changes.compact_now(key, installation=stores.installation, now_ms=now_ms)

    async def idle(self, stores: Stores, _: SessionKey, now_ms: int) -> None:
        await stores.idle.evict_idle(limit=10, installation=stores.installation, now_ms=now_ms)

    async def index(self, stores: Stores, _: SessionKey, __: int) -> None:
        await stores.index.index_some()

    async def tell(self, stores: Stores, _: SessionKey, __: int) -> None:
        await stores.outbox.sent(await stores.outbox.unsent(5))

    async def campaign(self, stores: Stores, key: SessionKey, now_ms: int) -> None:
        await stores.campaigns.begin(
            key.agent_id,
            RegenerateOptions(),
            at_once=2,
            installation=stores.installation,
            now_ms=now_ms,
        )
        await stores.campaigns.advance(installation=stores.installation, now_ms=now_ms)

    async def erase(self, stores: Stores, key: SessionKey, now_ms: int) -> None:
        target = key if self.chance.random() < 0.8 else key.agent_id
        await stores.changes.erase(target, last_seq=next(self._seqs), now_ms=now_ms)

    async def delete(self, stores: Stores, _: SessionKey, __: int) -> None:
        await stores.erasures.delete_rows()


_DEEDS = {
    "ingest": 12, "write": 8, "promote": 4, "restore": 2, "regenerate": 1, "compact_now": 2, "idle": 1, "index": 2, "tell": 2,
    "campaign": 1, "erase": 0.5, "delete": 4,
}  # fmt: skip


@pytest.mark.proves("L1", "L2", "L10", "L12", "C52", "O2")
async def test_whatever_is_written_at_once_there_is_no_deadlock_and_every_invariant_holds(
    postgres_url: str,
) -> None:
    await upgrade(postgres_url)
    storm = Storm()
    async with AsyncExitStack() as stack:
        first_ids = range(1, WORKERS * 1_000, 1_000)
        workers = [
            await stack.enter_async_context(sql_stores(postgres_url, first_id=first_id))
            for first_id in first_ids
        ]

        await asyncio.gather(*(storm.work(one) for one in workers))

        seen = await workers[0].seen()
    assert faults(seen) == []
    assert await deadlocks(postgres_url) == 0
    assert set(_DEEDS) <= set(storm.done), storm.done


async def deadlocks(url: str) -> int:
    """How many transactions the server ended because they waited for each other."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        # Its counters come with a delay, unless the last connection that counted has gone.
        await connection.execute("SELECT pg_stat_force_next_flush()")
        number: int = await connection.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        return number
    finally:
        await connection.close()
