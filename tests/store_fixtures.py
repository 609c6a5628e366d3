"""Every store behind one face, and what tests put into one."""

import asyncio
import atexit
import json
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.invariants import StoreSnapshot, seen_in_database
from tests.postgres import Postgres
from turnfold.core.policy.allowance import Allowance
from turnfold.core.policy.presets import PRESETS, Policy, adjusted
from turnfold.core.summary.fair_share import JobSlots
from turnfold.core.summary.sources import Draft
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_event
from turnfold.operations.policy import policy_resolver
from turnfold.ports.admin import (
    DeadLetterStore,
    VersionStore,
)
from turnfold.ports.agent_lists import AgentLists
from turnfold.ports.compact import Job, Version
from turnfold.ports.ingest import (
    DecodedEvent,
    Installation,
    PolicyResolver,
)
from turnfold.ports.query import (
    WindowSnapshot,
)
from turnfold.ports.recall import (
    RecallStore,
)
from turnfold.ports.search import SearchStore
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold.store.compact.jobs.store import SqlJobStore
from turnfold.store.compact.requests import SqlSessionCommands
from turnfold.store.compact.versions import SqlVersionStore
from turnfold.store.compact.withdrawal import withdraw
from turnfold.store.database.engine import Database
from turnfold.store.database.outbox import SqlOutboxStore
from turnfold.store.database.schema import metadata, word_index, word_index_segments
from turnfold.store.ingest.budgets import SqlBudgetStore
from turnfold.store.ingest.erase import SqlErasureStore
from turnfold.store.ingest.idle import SqlIdleStore
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold.store.ingest.word_index.search_index import SqlSearchIndex
from turnfold.store.query.agent_lists import SqlAgentLists
from turnfold.store.query.dead_letters import SqlDeadLetterStore
from turnfold.store.query.history import SqlHistoryStore
from turnfold.store.query.inspection import SqlInspectionStore
from turnfold.store.query.recall import SqlRecallStore
from turnfold.store.query.search import SqlSearchStore
from turnfold.store.query.window import SqlWindowStore
from turnfold_migrations import upgrade

Json = dict[str, Any]

SMALL = Policy(
    max_live_messages=12, keep_messages=4, keep_tokens=0, keep_at_most_messages=0, trigger_ratio=0.0, reserve_tokens=0,
    min_gain_messages=1, min_gain_tokens=1,
)  # fmt: skip
"""A policy that evicts soon, for short tests."""

KEY = SessionKey(AgentId("ada"), SessionId("s-1"))
NOON = 1_800_000_000_000
LEASE_MS = 60_000
ROWS_AT_ONCE = 10
"""Rows of erased sessions go in such portions, so that short sessions take several."""


def places(number: int) -> JobSlots:
    """So many free places, for whomever."""
    return JobSlots(number, {}, number)


def words(text: str) -> int:
    """A tokenizer for tests: four characters a token."""
    return (len(text) + 3) // 4


@dataclass(frozen=True, slots=True)
class Stores:
    """One store, port by port; `seen` reads everything it holds."""

    name: str
    database: Database
    intake: SqlIngestStore
    jobs: SqlJobStore
    windows: SqlWindowStore
    history: SqlHistoryStore
    lists: AgentLists
    changes: SqlSessionCommands
    versions: VersionStore
    campaigns: SqlCampaignStore
    outbox: SqlOutboxStore
    idle: SqlIdleStore
    budgets: SqlBudgetStore
    erasures: SqlErasureStore
    search: SearchStore
    recall: RecallStore
    index: SqlSearchIndex
    letters: DeadLetterStore
    inspections: SqlInspectionStore
    installation: Installation
    policy: PolicyResolver
    seen: Callable[[], Coroutine[Any, Any, StoreSnapshot]]

    async def ingest(self, *arrivals: DecodedEvent) -> None:
        """Store a batch by the rules of the test."""
        await self.intake.ingest(arrivals, (), installation=self.installation)

    async def claim(self, now_ms: int = NOON + 1_000) -> Sequence[Job]:
        """Take every job that is due."""
        return await self.jobs.claim(
            places(10), lease_ms=LEASE_MS, now_ms=now_ms, installation=self.installation
        )

    async def delete_rows(self) -> None:
        """Delete all rows of erased sessions."""
        while await self.erasures.delete_rows():
            pass

    async def facts(self, key: SessionKey = KEY) -> WindowSnapshot:
        """What a window of a session is decided from."""
        found, _ = await self.windows.window(
            key, on_session=lambda _: None, on_messages=lambda facts: (facts, ())
        )
        return found


def _window(_: str | None, numbers: Policy) -> int:
    return 128_000 if numbers.context_window is None else numbers.context_window


def installation_of(policy: Policy, *, first_id: int = 1) -> tuple[Installation, PolicyResolver]:
    """The rules of an installation with this default policy; ids of compactions are counted."""
    presets = {**PRESETS, "balanced": policy}
    policy_of = policy_resolver("balanced", lambda name: presets[name])
    numbers = count(first_id)
    made = Installation(
        policy_of,
        model_window=_window,
        count=words,
        max_sessions=1_000,
        allowance=Allowance(("*",)),
    )
    return replace(made, new_id=lambda: next(numbers)), policy_of


@asynccontextmanager
async def sql_stores(
    url: str, policy: Policy = SMALL, *, first_id: int = 1
) -> AsyncGenerator[Stores]:
    """The stores on a database whose tables are there."""
    database = Database(url, writes=True)
    try:
        yield stores_on(database, policy, first_id=first_id)
    finally:
        await database.close()


def stores_on(database: Database, policy: Policy = SMALL, *, first_id: int = 1) -> Stores:
    """The stores on a database that is open, whose tables are there."""
    installation, policy_of = installation_of(policy, first_id=first_id)
    return Stores(
        database.url.get_backend_name(),
        database,
        SqlIngestStore(database, withdraw),
        SqlJobStore(database, new_id=installation.new_id),
        SqlWindowStore(database),
        SqlHistoryStore(database),
        SqlAgentLists(database),
        SqlSessionCommands(database),
        SqlVersionStore(database),
        SqlCampaignStore(database),
        SqlOutboxStore(database),
        SqlIdleStore(database),
        SqlBudgetStore(database),
        SqlErasureStore(database, rows_at_once=ROWS_AT_ONCE),
        SqlSearchStore(database),
        SqlRecallStore(database),
        SqlSearchIndex(database, installation.count),
        SqlDeadLetterStore(database),
        SqlInspectionStore(database),
        installation,
        policy_of,
        lambda: seen_in_database(database),
    )


RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A folder in memory, for databases that need not outlive a crash: commits wait for no disk."""


def new_sqlite(folder: Path) -> str:
    """The URL of a database of its own in this folder, its tables made."""
    path = folder / "turnfold.db"
    shutil.copyfile(_migrated(), path)
    return f"sqlite+aiosqlite:///{path}"


async def new_postgres(server: Postgres) -> str:
    """The URL of a database of its own on this server, its tables made."""
    if server not in _migrated_on:
        _migrated_on[server] = await server.create_database()
        await upgrade(server.url(_migrated_on[server]))
    return server.url(await server.create_database(like=_migrated_on[server]))


async def empty_postgres(database: Database) -> None:
    """Delete all rows of a migrated PostgreSQL database, and start its sequences again at 1."""
    # A replica fires no triggers, so that audit rows may be deleted. DELETE is faster than TRUNCATE
    # for so few rows, because TRUNCATE makes new files for each table and index.
    deletes = " ".join(
        f'DELETE FROM "{name}";'
        for name in (*metadata.tables, word_index.name, word_index_segments.name)
    )
    emptying = f"""
        DO $$ BEGIN
            SET LOCAL session_replication_role = replica;
            {deletes}
            PERFORM setval(oid, 1, false) FROM pg_class WHERE relkind = 'S';
        END $$"""
    await database.write(lambda connection: connection.exec_driver_sql(emptying))


async def empty_sqlite(database: Database) -> None:
    """Make a SQLite database again what it was after its migration."""
    with (
        closing(sqlite3.connect(_migrated())) as template,
        closing(sqlite3.connect(database.url.database or "")) as emptied,
    ):
        template.backup(emptied)


_migrated_on: dict[Postgres, str] = {}
"""A migrated database on a server, for others to be made like."""


@cache
def _migrated() -> Path:
    """A migrated database to copy, made once for all tests of a run."""
    folder = mkdtemp(prefix="turnfold-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "template.db"
    # In a thread of its own: whoever asks may be in a loop already.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, upgrade(f"sqlite+aiosqlite:///{path}")).result()
    return path


# --- events


def turn(
    seq: int,
    *messages: Json,
    event_id: str = "",
    key: SessionKey = KEY,
    at_ms: int | None = None,
    **fields: Any,
) -> DecodedEvent:
    """A completed turn at this sequence of the stream."""
    return _arrival("turn.completed", seq, event_id, key, at_ms, {"messages": messages, **fields})


def result(
    seq: int,
    call_id: str,
    content: Any,
    *,
    event_id: str = "",
    key: SessionKey = KEY,
    at_ms: int | None = None,
    **fields: Any,
) -> DecodedEvent:
    """A tool's result, published by itself."""
    return _arrival(
        "tool.result",
        seq,
        event_id,
        key,
        at_ms,
        {"tool_call_id": call_id, "content": content, **fields},
    )


def reported(
    seq: int,
    model: str,
    *,
    event_id: str = "",
    key: SessionKey = KEY,
    at_ms: int | None = None,
    **fields: Any,
) -> DecodedEvent:
    """A report of usage, of a limit, or of an overflow."""
    return _arrival("usage.reported", seq, event_id, key, at_ms, {"model": model, **fields})


def retracted(
    seq: int,
    *message_ids: str,
    event_id: str = "",
    key: SessionKey = KEY,
    at_ms: int | None = None,
    **fields: Any,
) -> DecodedEvent:
    """A retraction of these messages, of those `after` one, or of `all`."""
    named = {"message_ids": list(message_ids)} if message_ids else {}
    return _arrival("turn.retracted", seq, event_id, key, at_ms, named | fields)


def turns(first_seq: int, number: int, *, key: SessionKey = KEY) -> list[DecodedEvent]:
    """So many turns of a question and an answer."""
    return [
        turn(seq, user(f"question {seq}"), assistant(f"answer {seq}"), key=key)
        for seq in range(first_seq, first_seq + number)
    ]


def _arrival(
    kind: str, seq: int, event_id: str, key: SessionKey, at_ms: int | None, fields: Json
) -> DecodedEvent:
    identity = {
        "event_id": event_id or f"e{seq}",
        "agent_id": key.agent_id,
        "session_id": key.session_id,
    }
    payload = json.dumps(identity | fields).encode()
    delivery = Delivery(kind, payload, seq, NOON + seq if at_ms is None else at_ms)
    return decode_event(delivery, count=words)


def user(content: Any, **more: Any) -> Json:
    """A user message."""
    return {"role": "user", "content": content, **more}


def picture(characters: int) -> Json:
    """A part of a content that holds an image of so many characters."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * characters}"}}


def assistant(content: Any = None, *calls: str, **more: Any) -> Json:
    """An assistant message that calls tools with these ids."""
    made = [
        {"id": call, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
        for call in calls
    ]
    return {
        "role": "assistant",
        "content": content,
        **({"tool_calls": made} if made else {}),
        **more,
    }


def tool(call_id: str, content: Any = "42") -> Json:
    """A result inside a turn."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def system(content: str) -> Json:
    """A system message."""
    return {"role": "system", "content": content}


def summary(text: str = "They spoke of things.", *ledger: str, kind: Any = "llm") -> Version:
    """A version ready to be committed."""
    draft = Draft(
        text=text, sections={"context": text}, ledger=ledger, kind=kind, model="test/model"
    )
    return Version(
        draft, "structured", "p1", words(text) + sum(map(words, ledger)), words(text), ""
    )


def tightened(policy: Policy, **numbers: Any) -> Policy:
    """The policy with some numbers replaced."""
    return adjusted(policy, numbers)
