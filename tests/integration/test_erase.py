"""Erasing forgets no table, reads by index, and leaves no text behind."""

import asyncio
import json
import sqlite3
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.postgres import Postgres
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    new_postgres,
    new_sqlite,
    sql_stores,
    summary,
    tool,
    turn,
    user,
)
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.policy.retention import DAY_MS
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.compact import RegenerateOptions
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import metadata
from turnfold.store.database.session_rows import lock_by_key, lock_session_counts
from turnfold.store.ingest import erase
from turnfold.store.ingest.erased_letters import ErasureScope, erase_letters
from turnfold.store.ingest.erased_rows import HANGING, delete_portion
from turnfold_migrations import upgrade

OTHER = SessionKey(AgentId("bob"), SessionId("s-1"))
MARK = "zanzibar"
OF_NO_SESSION = {
    "stream", "ingested_ranges", "agents", "sessions", "campaigns", "audit", "outbox", "dead_letters", "erasures", "erased_events", "stream_purges",
    "index_removals", "summary_token_usage", "session_counts", "installation_secrets",
}  # fmt: skip
"""Tables whose rows do not hang on a session's number: erasing deals with each by itself, or it holds no text."""


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncGenerator[Stores]:
    async with sql_stores(new_sqlite(tmp_path)) as made:
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        for key in (KEY, OTHER):
            first = 100 if key == KEY else 200
            mark = MARK if key == KEY else "another"
            said = [user(f"{mark}?"), assistant(mark, "c"), tool("c", mark), assistant(f"{mark}!")]
            some = [
                turn(seq, *said, key=key, model="m", usage=usage, metadata={"from": mark})
                for seq in range(first, first + 12)
            ]
            await made.ingest(*some)
            await made.ingest(some[0]._replace(stream_seq=first + 50))
            reused = turn(first + 60, user(f"{mark} again"), event_id=f"e{first}", key=key)
            payloads = {reused.stream_seq: reused.messages[0].body.encode()}
            await made.intake.ingest(
                [reused], (), installation=made.installation, payloads=payloads
            )
        for job in await made.claim(NOON + 10_000):
            await made.jobs.commit(
                job,
                summary(f"{MARK if job.key == KEY else 'another'} was said"),
                reason=None,
                now_ms=NOON + 11_000,
            )
        yield made


def held(path: Path) -> dict[str, list[str]]:
    """The rows of every table, as texts."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            name: [str(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
            for name in metadata.tables
        }


def files_with(folder: Path, mark: str) -> list[str]:
    """The files in which a text stands."""
    return [file.name for file in folder.iterdir() if mark.encode() in file.read_bytes()]


@pytest.mark.proves("A6")
def test_every_table_hangs_on_a_session_or_is_known_not_to() -> None:
    assert {table.name for table in HANGING} == set(metadata.tables) - OF_NO_SESSION


@pytest.mark.proves("A6")
async def test_what_an_agent_asked_to_be_written_is_erased_with_it(
    stores: Stores, tmp_path: Path
) -> None:
    wanted = RegenerateOptions(prompt=f"Tell of {MARK}.")
    given: Any = {"installation": stores.installation, "now_ms": NOON + 12_000}
    await stores.versions.regenerate(KEY, wanted, **given)
    begun = await stores.campaigns.begin(KEY.agent_id, wanted, at_once=1, **given)
    await stores.campaigns.advance(**given)

    await stores.changes.erase(KEY.agent_id, last_seq=300, now_ms=NOON + 13_000)
    await stores.delete_rows()

    rows = held(tmp_path / "turnfold.db")
    assert [name for name in rows if MARK in str(rows[name])] == []
    ended = await stores.campaigns.progress(begun.campaign_id)
    assert ended is not None
    assert ended.finished_at_ms == NOON + 13_000


@pytest.mark.proves("A6", "X9")
async def test_the_texts_of_a_policy_are_erased_with_it_and_the_audit_tells_that_they_changed(
    stores: Stores, tmp_path: Path
) -> None:
    given: Any = {"installation": stores.installation, "now_ms": NOON + 12_000}
    for prefixes in (f"[{MARK}];", "[cron]; \ud800"):
        wish = PolicyRequest(overrides={"meta_prefixes": prefixes, "keep_messages": 7})
        await stores.changes.set_policy(KEY, wish, **given)
        await stores.changes.set_policy(KEY.agent_id, wish, **given)

    await stores.changes.erase(KEY.agent_id, last_seq=300, now_ms=NOON + 13_000)
    await stores.delete_rows()

    path = tmp_path / "turnfold.db"
    rows = held(path)
    assert [name for name in rows if MARK in str(rows[name])] == []
    with closing(sqlite3.connect(path)) as connection:
        told = connection.execute(
            "SELECT details FROM audit WHERE phase = 'policy' ORDER BY session_id = '', ordinal"
        ).fetchall()
    changes = [json.loads(details)["overrides"] for (details,) in told]
    assert [one.get("keep_messages") for one in changes] == [7, None, 7, None]
    hashes = [one["meta_prefixes"] for one in changes]
    assert all(one.startswith("sha256:") for one in hashes)
    assert hashes[:2] == hashes[2:]
    assert hashes[0] != hashes[1]


@pytest.mark.proves("A6", "L12")
async def test_no_table_and_no_file_holds_anything_of_an_erased_session(
    stores: Stores, tmp_path: Path
) -> None:
    path = tmp_path / "turnfold.db"
    while await stores.index.index_some():
        pass
    before = held(path)
    assert {name for name, rows in before.items() if MARK in str(rows)} == {
        "messages",
        "events",
        "compactions",
        "summaries",
        "dead_letters",
    }

    await stores.changes.erase(KEY, last_seq=300, now_ms=NOON)
    await stores.delete_rows()

    after = held(path)
    # The words of the index go from it and from the file a moment later.
    assert {name for name, rows in after.items() if MARK in str(rows)} == {"index_removals"}
    for table in HANGING:
        assert len(after[table.name]) * 2 == len(before[table.name]), table.name
    assert await stores.erasures.tidy()
    assert MARK not in str(held(path))
    assert not files_with(tmp_path, MARK)


@pytest.mark.proves("A6")
async def test_a_log_that_somebody_reads_is_emptied_later(stores: Stores, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "turnfold.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        await stores.changes.erase(KEY, last_seq=300, now_ms=NOON)

        assert not await stores.erasures.tidy()
        reader.execute("COMMIT")

    assert await stores.erasures.tidy()
    assert (tmp_path / "turnfold.db-wal").stat().st_size == 0


@pytest.mark.proves("A6", "L8")
async def test_erasing_finds_what_is_a_sessions_by_index(stores: Stores, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "turnfold.db")) as connection:
        for table in HANGING:
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN DELETE FROM {table.name} WHERE sid IN (1, 2)"
            ).fetchall()
            assert "SEARCH" in str(plan), (table.name, plan)


@pytest.mark.proves("A6", "L8")
def test_no_portion_reads_all_rows_of_a_session(tmp_path: Path) -> None:
    """Each row that goes is looked up by its key: reading all would take long, as often as there are portions."""
    new_sqlite(tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path}/turnfold.db")
    sent: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: object, __: object, sql: str, parameters: Any, *___: object) -> None:
        sent.append((sql, parameters))

    with engine.begin() as connection:
        connection.execute(text("INSERT INTO sessions (agent_id, session_id) VALUES ('', '1')"))
        assert delete_portion(connection)
        deletes = [one for one in sent if "DELETE FROM" in one[0]]
        for sql, parameters in deletes:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters).all()
            assert plan[0].detail.startswith("SEARCH"), (sql, plan)
            assert not plan[0].detail.endswith("(sid=?)"), (sql, plan)
    engine.dispose()
    assert len(deletes) == len(HANGING) + 1


@pytest.mark.proves("A6", "L1")
async def test_a_session_expires_while_its_agent_begins_another(postgres_url: str) -> None:
    """Both take the agent's count of sessions first, so that neither waits for the other in a circle."""
    await upgrade(postgres_url)
    engine = create_async_engine(postgres_url)
    other = engine.execution_options(isolation_level="AUTOCOMMIT")
    waiting = text(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with (
        sql_stores(postgres_url) as stores,
        engine.connect() as beginning,
        other.connect() as watcher,
    ):
        await stores.ingest(turn(1, user("a")), turn(2, user("b"), key=OTHER))
        request = PolicyRequest(overrides={"retain_days": 1})
        await stores.changes.set_policy(
            KEY.agent_id, request, installation=stores.installation, now_ms=NOON
        )

        await beginning.run_sync(lock_session_counts, [KEY.agent_id])
        expiring = asyncio.create_task(
            stores.erasures.erase_expired(
                after=0, limit=1, installation=stores.installation, now_ms=NOON + 2 * DAY_MS
            )
        )
        while not expiring.done() and not (await watcher.execute(waiting)).all():
            await asyncio.wait({expiring}, timeout=0.01)
        locked = await beginning.run_sync(lock_by_key, [KEY])
        await beginning.commit()
        await expiring

        assert list(locked) == [KEY]
        assert set((await stores.seen()).sessions) == {OTHER}
    await engine.dispose()


@pytest.mark.proves("A6")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_session_that_somebody_erases_just_before_it_expires_holds_up_no_other(
    kind: str, tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_sqlite(tmp_path) if kind == "sqlite" else await new_postgres(postgres)
    async with sql_stores(url) as stores:
        await stores.ingest(turn(1, user("a")), turn(2, user("b"), key=OTHER))
        for key in (KEY, OTHER):
            await stores.changes.set_policy(
                key,
                PolicyRequest(overrides={"retain_days": 1}),
                installation=stores.installation,
                now_ms=NOON,
            )

        async def erase_first(database: Database, scope: ErasureScope) -> tuple[int, int]:
            if scope.agent_id == KEY.agent_id:
                await stores.changes.erase(KEY, last_seq=2, now_ms=NOON)
            return await erase_letters(database, scope)

        monkeypatch.setattr(erase, "erase_letters", erase_first)
        await stores.erasures.erase_expired(
            after=0, limit=9, installation=stores.installation, now_ms=NOON + 2 * DAY_MS
        )

        assert (await stores.seen()).sessions == {}


@pytest.mark.proves("A6", "O9")
async def test_an_erasure_reads_dead_letters_in_pages(postgres_url: str) -> None:
    """O9: an agent may have a million, and asyncpg holds all rows that it reads at once."""
    await upgrade(postgres_url)
    database, number = Database(postgres_url, writes=True), 20_000
    letters = text(
        "INSERT INTO dead_letters (stream_seq, at_ms, subject, reason, detail, size_bytes, payload,"
        " agent_id, session_id) SELECT seq, 1, 'turn.completed.ada.' || seq, 'not_json', '', 1,"
        " '{', 'ada', CAST(seq AS TEXT) FROM generate_series(1, :number) AS seq"
    )
    await database.write(lambda connection: connection.execute(letters, {"number": number}))
    tracemalloc.start()
    try:
        _, erased = await erase_letters(database, ErasureScope(AgentId("ada")))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await database.close()

    assert erased == number
    assert peak_bytes < 250 * number
