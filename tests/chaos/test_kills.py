"""A replay while processes are killed at random: afterwards every law holds."""

import asyncio
import contextlib
import json
import os
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Bus

from tests.history_checker import Checker, Published, Reading, faults_in_notices
from tests.system import System, client_of, eventually, free_port, parts_alive, running_system, streamed
from turnfold.cli.recordings import Recording, Step, events_of, recorded
from turnfold.client import Client, Event, connect, session_key
from turnfold.contracts.subjects import session_subject
from turnfold.errors import CannotFit, RequestError, Unavailable
from turnfold.messages import SessionKey

SEED = int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))
KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.jsonl"))
VICTIMS = ("worker", "worker", "query", "nats", "model")
PUBLISHERS = 4
READERS = 3
BUDGETS = (2_000, 6_000, 20_000, 200_000)
BAD = {
    b"\xff not JSON": "not_json",
    b'{"event_id": "b1", "agent_id": "chaos", "session_id": "s", "messages": []}': "wrong_shape",
    b'{"event_id": "b2", "agent_id": "chaos", "session_id": "s", "messages": [{"role": "robot"}]}': "wrong_shape",
}
DAMAGES = (
    "DELETE FROM messages WHERE (sid, position) = (SELECT sid, max(position) FROM messages)",
    "UPDATE messages SET body = replace(body, 'e', 'E') WHERE (sid, position) = (SELECT sid, min(position) FROM messages)",
    "UPDATE messages SET position = position + 1024 * 1000000 WHERE (sid, position) = (SELECT sid, min(position) FROM messages)",
    "UPDATE messages SET compaction_id = NULL WHERE compaction_id = (SELECT max(compaction_id) FROM compactions)",
    "UPDATE sessions SET messages_total = messages_total + 1 WHERE sid = 1",
    "UPDATE sessions SET live_tokens = live_tokens + 1 WHERE sid = 1",
    "DELETE FROM summaries WHERE (sid, version) = (SELECT sid, max(version) FROM summaries)",
    "UPDATE summaries SET text = text || '.'",
    "DELETE FROM audit WHERE audit_id = (SELECT max(audit_id) FROM audit)",
    "UPDATE audit SET reason = 'another' WHERE audit_id = 1",
    "DELETE FROM dead_letters",
    "DELETE FROM ingested",
)
"""What the checker must see, each on a copy of the database."""
POLICY = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "24", "TURNFOLD_LOG_LEVEL": "warning"}


@dataclass
class Chaos:
    """One run: who publishes what, who reads, and what was killed."""

    system: System
    random: random.Random
    published: Published = field(default_factory=Published)
    killed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    is_calm: asyncio.Event = field(default_factory=asyncio.Event)
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def kills(self) -> int:
        """How many of those that matter most were killed."""
        return sum(self.killed[name] for name in ("worker", "query", "nats"))

    async def kill(self) -> None:
        """Kill parts at random moments, each time one that lives, and once the supervisor itself; then there is calm."""
        while self.kills < KILLS:
            await asyncio.sleep(self.random.uniform(0.05, 1.8))
            living = [name for name in VICTIMS if self.system.pid(name)]
            if living and self.system.kill(victim := self.random.choice(living)):
                self.killed[victim] += 1
            if self.kills == KILLS // 2 and not self.killed["up"]:
                self.killed["up"] += 1
                await self.kill_everything()
        self.is_calm.set()

    async def kill_everything(self) -> None:
        """Kill the supervisor, with which all its parts die, and start it again as somebody would."""
        self.system.process.kill()
        await self.system.ended()
        await self.system.start()

    async def publish(self, number: int, named: Client, another: Client, bus: Bus) -> None:
        """Publish conversations one after another until there is calm; some events twice, also by another client, some between them bad."""
        await self.publish_bad(bus)
        for recording, step in conversations(number):
            for event, _ in events_of(recording, step):
                if self.is_calm.is_set():
                    return
                await self.publish_event(named, event)
                if self.random.random() < 0.15:
                    await self.publish_event(self.random.choice((named, another)), event)
                if self.random.random() < 0.02:
                    await self.publish_bad(bus)
                await asyncio.sleep(self.random.uniform(0, 0.05))

    async def publish_event(self, client: Client, event: Event) -> None:
        """Publish one event until the stream says that it has it."""
        self.published.trying(event)
        while True:
            with contextlib.suppress(Unavailable):
                self.published.took(event, (await client.publish(event)).seq)
                return

    async def publish_bad(self, bus: Bus) -> None:
        """Publish what nobody can store."""
        payload, reason = self.random.choice(list(BAD.items()))
        self.published.trying_bad(payload, reason)
        with contextlib.suppress(nats.errors.Error):
            await bus.request("turn.completed", payload, timeout=5)

    async def read(self, client: Client, seed: int) -> None:
        """Ask for windows all the time; what is answered has to be right, whatever dies meanwhile."""
        chance = random.Random(seed)
        while not self.is_settled.is_set():
            await asyncio.sleep(chance.uniform(0, 0.05))
            keys = list(self.published.order)
            if keys:
                await self.ask(client, chance.choice(keys[-8:]), chance.choice(BUDGETS))

    async def ask(self, client: Client, key: SessionKey, max_tokens: int) -> None:
        """One question; the answer is kept with what was acknowledged before it was asked."""
        acknowledged, after = self.published.messages_acknowledged[key], self.published.newest_seq.get(key)
        request = {"max_tokens": max_tokens, "after": after, "wait_ms": 500}
        try:
            answer = await client.ask(session_subject("context.get", key), request, patience_seconds=0.5)
        except CannotFit:
            self.refused["cannot_fit"] += 1
        except RequestError as error:
            self.refused[error.code] += 1
        else:
            attempted = self.published.messages_attempted[key]
            self.published.readings.append(Reading(key, acknowledged, after, answer, attempted))


def conversations(number: int) -> Iterator[tuple[Recording, Step]]:
    """The examples again and again, each time as sessions of their own, whole turns and single messages in turn."""
    for lap in range(10_000):
        for recording in recorded([str(path) for path in EXAMPLES], agent=f"chaos-{number}"):
            key = session_key(recording.key.agent_id, f"{recording.key.session_id}-{lap}")
            yield Recording(key, recording.conversation), (Step.TURN, Step.MESSAGE)[(lap + number) % 2]


async def settle(chaos: Chaos, client: Client) -> None:
    """Wait until all is stored and nothing is pending."""
    for key in chaos.published.order:
        await eventually(partial(is_settled, chaos, client, key), seconds=120, every=0.2, told=chaos.system.words)


async def is_settled(chaos: Chaos, client: Client, key: SessionKey) -> bool:
    """Whether a session holds all that was acknowledged, and has summarised what it evicted."""
    session = client.session(*key)
    with contextlib.suppress(Unavailable):
        window = await session.context(max_tokens=10_000_000, after=chaos.published.newest_seq.get(key), wait_ms=2_000)
        return window.fresh and not (await session.status())["messages_pending"]
    return False


def damaged(database: Path, directory: Path, damage: str) -> Path:
    """A copy of the database with one thing wrong."""
    copy = directory / "damaged.db"
    copy.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(database)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        for (trigger,) in target.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            target.execute(f"DROP TRIGGER {trigger}")
        assert target.execute(damage).rowcount, damage
        target.commit()
    return copy


async def noticed(url: str) -> list[tuple[str, dict[str, Any]]]:
    """All that the stream of notices holds."""
    bus = await nats.connect(url)
    try:
        jetstream = bus.jetstream(timeout=30)
        count = (await jetstream.stream_info("TURNFOLD_NOTICES")).state.messages
        subscription = await jetstream.subscribe("", stream="TURNFOLD_NOTICES", ordered_consumer=True)
        messages = [await subscription.next_msg(timeout=30) for _ in range(count)]
        await subscription.unsubscribe()
        return [(message.subject, json.loads(message.data)) for message in messages]
    finally:
        await bus.close()


async def run(chaos: Chaos) -> None:
    """Publish, read and kill until enough was killed."""
    system = chaos.system
    async with (
        client_of(system, timeout_seconds=2) as named,
        connect(system.nats_url, timeout_seconds=2, attempts=60, environ={}) as another,
    ):
        bus = await nats.connect(system.nats_url, max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=_unheard)
        try:
            async with asyncio.TaskGroup() as readers:
                for number in range(READERS):
                    readers.create_task(chaos.read(named, SEED + number))
                async with asyncio.TaskGroup() as group:
                    group.create_task(chaos.kill())
                    for number in range(PUBLISHERS):
                        group.create_task(chaos.publish(number, named, another, bus))
                await settle(chaos, named)
                for key in chaos.published.order:
                    await chaos.ask(named, key, max(BUDGETS))
                chaos.is_settled.set()
        finally:
            await bus.close()


async def _unheard(_: Exception) -> None:
    """A bus that is killed is expected to complain."""


@pytest.mark.timeout(120 + 10 * KILLS)
@pytest.mark.proves("L1", "L2", "L3", "L5", "L6", "L7", "L10", "A1", "A3", "S1", "O2", "C48", "C49", "C50")
async def test_whatever_is_killed_during_a_replay_every_law_holds_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_system(tmp_path / "data", environ=POLICY, nats_port=free_port()) as system:
        chaos = Chaos(system, random.Random(SEED))

        await run(chaos)

        stream, notices = await streamed(system.nats_url), await noticed(system.nats_url)
        published = chaos.published
        faults = [*Checker(system.database, published, stream).faults(), *faults_in_notices(system.database, notices)]
        fresh = sum(reading.answer["fresh"] for reading in published.readings)
        told = (
            f"CHAOS_SEED={SEED} CHAOS_KILLS={KILLS}: killed {dict(chaos.killed)}, {len(published.attempted)} events, "
            f"{len(stream)} in the stream, {len(published.readings)} windows, {fresh} of them fresh, not answered {dict(chaos.refused)}"
        )
        with capsys.disabled():
            sys.stderr.write(f"\n{told}\n")
        assert not faults, "\n".join([told, *faults])
        assert chaos.kills == KILLS
        assert fresh > KILLS
        unseen = [damage for damage in DAMAGES if not Checker(damaged(system.database, tmp_path, damage), published, stream).faults()]
        assert not unseen
    assert not parts_alive(system.lines)
