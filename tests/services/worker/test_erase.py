"""Erasure in a running system: bus, worker, query server and files on disk."""

import asyncio
import contextlib
import http.client
import json
import sqlite3
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from types import SimpleNamespace
from typing import cast
from urllib.parse import urlsplit

import nats
import pytest
from nats.aio.msg import Msg
from sqlalchemy import NullPool
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import create_async_engine

from tests.model_server import running_model_server
from tests.postgres import Postgres
from tests.running_system import (
    UNFORGOTTEN,
    Parts,
    command,
    eventually,
    rows,
    running_parts,
    serving_parts,
    streamed,
    wait_until,
)
from tests.store_fixtures import SMALL, installation_of
from turnfold.bus.streams import stream_created
from turnfold.client import Client, session_key, turn_event
from turnfold.contracts.erasures import ErasedSessions
from turnfold.contracts.subjects import ERASED, INGESTED
from turnfold.core.policy.retention import DAY_MS
from turnfold.errors import UnknownSession
from turnfold.messages import SessionKey
from turnfold.nats_client.connection import NatsClient
from turnfold.process.clock import now_ms
from turnfold.store.database.engine import Database
from turnfold.store.ingest.erase import SqlErasureStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.erase import ErasureRunner

KEY = session_key("support", "user.42 / 語")
TWIN = session_key("bystander", "user.42 / 語")
MARK = "zanzibar-7f3a"
ENVIRON = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20", "TURNFOLD_LOG_LEVEL": "info"}


async def publish(
    client: Client, key: SessionKey, first: int, number: int, mark: str = MARK
) -> int:
    """So many turns that say this; the last sequence."""
    seq = 0
    for index in range(first, first + number):
        said = [
            {"role": "user", "content": f"{mark} question {index}"},
            {"role": "assistant", "content": f"{mark} answer {index}"},
        ]
        seq = (await client.publish(turn_event(key, said, event_id=f"e{index}"))).seq
    return seq


async def is_stored(parts: Parts, seq: int) -> None:
    """Wait until everything up to a sequence is stored."""
    await eventually(
        lambda: parts.rows(
            f"SELECT 1 FROM ingested_ranges WHERE first_seq = 1 AND last_seq >= {seq}"
        ),
        told=parts.words,
    )


async def is_forgotten(parts: Parts) -> None:
    """Wait until neither the tables nor the stream have anything left to forget."""

    async def is_empty() -> bool:
        return not await parts.rows(UNFORGOTTEN)

    await eventually(is_empty, told=parts.words)


def files_with(directory: Path, mark: str) -> list[str]:
    """The files in which a text stands to the letter."""
    return [
        path.name
        for path in directory.rglob("*")
        if path.is_file() and mark.encode() in path.read_bytes()
    ]


@pytest.mark.proves("A6", "L12")
async def test_what_was_erased_is_in_no_window_no_stream_and_no_file(tmp_path: Path) -> None:
    async with serving_parts(tmp_path, environ=ENVIRON) as (parts, client):
        await publish(client, TWIN, 0, 30, "somebody else's")
        await is_stored(parts, await publish(client, KEY, 0, 40))
        before = await client.session(*KEY).context(max_tokens=100_000)
        assert before.account.total == 80
        assert files_with(tmp_path, MARK)

        told = await client.session(*KEY).erase()

        assert told == {
            **KEY._asdict(),
            "sessions": 1,
            "messages": 80,
            "policies": 0,
            "dead_letters": 0,
        }
        window = await client.session(*KEY).context(max_tokens=100_000, known=before)
        assert (window.messages, window.summary, window.account.total) == ([], None, 0)
        with pytest.raises(UnknownSession):
            await client.session(*KEY).status()
        await is_forgotten(parts)
        assert {event.subject.split(".")[2] for event in await streamed(parts.server.url)} == {
            "bystander"
        }
        await wait_until(
            lambda: not files_with(tmp_path, MARK), told=lambda: str(files_with(tmp_path, MARK))
        )
        assert (await client.session(*TWIN).context(max_tokens=100_000)).account.total == 60

        seq = await publish(client, KEY, 100, 2)
        window = await client.session(*KEY).context(max_tokens=100_000, after=seq, wait_ms=5_000)
        assert (window.fresh, window.account.total, window.message_ids[0]) == (True, 4, "e100#0")
        verified = await command("audit", "verify", *KEY, environ=parts.environ)
        assert verified.status == 0, verified


@pytest.mark.proves("A6", "L1")
async def test_a_job_whose_model_hangs_while_its_session_is_erased_writes_nothing(
    tmp_path: Path,
) -> None:
    async with running_model_server() as model:
        model.fault = "hang"
        environ = ENVIRON | model.settings | {"TURNFOLD_SUMMARY_TIMEOUT_SECONDS": "3"}
        async with (
            running_parts(tmp_path, environ=environ) as parts,
            parts.running("worker"),
            parts.client() as client,
        ):
            await is_stored(parts, await publish(client, KEY, 0, 40))
            await asyncio.wait_for(model.is_hanging.wait(), 60)

            await client.session(*KEY).erase()
            await is_stored(parts, await publish(client, KEY, 100, 2))
            await wait_until(
                lambda: "summary.discarded" in parts.words(), seconds=60, told=parts.words
            )

            for view in ("summaries_view", "compactions_view"):
                assert not rows(parts.database, f"SELECT 1 FROM {view}")
            assert [
                row["role"] for row in rows(parts.database, "SELECT role FROM messages_view")
            ] == ["user", "assistant"] * 2
            assert (
                rows(parts.database, "SELECT phase FROM audit_view ORDER BY audit_id DESC LIMIT 1")[
                    0
                ]["phase"]
                == "erased"
            )


@pytest.mark.proves("A6")
async def test_the_stream_forgets_what_was_erased_although_the_worker_is_killed(
    tmp_path: Path,
) -> None:
    async with (
        running_parts(tmp_path, environ=ENVIRON) as parts,
        parts.client() as client,
    ):
        async with parts.running("worker") as worker:
            await is_stored(parts, await publish(client, KEY, 0, 400))
            await client.session(*KEY).erase()
            worker.signal(SIGKILL)
            await worker.ended()

        # Published before the erase and not seen by any worker is no other case: nothing of it is stored.
        async with parts.running("worker"):
            await is_forgotten(parts)

            assert await streamed(parts.server.url) == []
            await wait_until(
                lambda: not files_with(tmp_path, MARK), told=lambda: str(files_with(tmp_path, MARK))
            )


@pytest.mark.proves("A6", "O3")
async def test_the_command_asks_first_and_erases_a_session_or_an_agent(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path, environ=ENVIRON) as parts,
        parts.running("worker"),
        parts.client() as client,
    ):
        other = session_key(KEY.agent_id, "other")
        await publish(client, KEY, 0, 2)
        await publish(client, TWIN, 0, 1)
        await is_stored(parts, await publish(client, other, 10, 3))

        refused = await command("erase", *KEY, environ=parts.environ)
        session = await command("erase", *KEY, "--yes", "--json", environ=parts.environ)
        agent = await command("erase", KEY.agent_id, "--yes", environ=parts.environ)

        assert refused.status == 2
        assert "--yes" in refused.err
        assert session.rows == [
            {**KEY._asdict(), "sessions": 1, "messages": 4, "policies": 0, "dead_letters": 0}
        ]
        assert agent.status == 0
        assert agent.out.startswith(
            "Erased the agent support with all its sessions: 1 session, 6 messages. System: "
        )
        assert [
            tuple(row) for row in rows(parts.database, "SELECT agent_id FROM sessions_view")
        ] == [("bystander",)]


@pytest.mark.proves("A6")
async def test_http_passes_an_erasure_on_to_a_worker(tmp_path: Path, sql: Postgres | None) -> None:
    async with (
        running_parts(tmp_path, environ=ENVIRON, postgres=sql) as parts,
        parts.running("query"),
        parts.client() as client,
    ):
        url = f"{parts.http_url}/v1/agents/support"
        path = f"{url}/sessions/user.42%20%2F%20%E8%AA%9E"
        assert await deleted(path) == (503, "unavailable")
        async with parts.running("worker"):
            await is_stored(parts, await publish(client, KEY, 0, 3))

            assert await deleted(path) == (200, 6)
            assert await deleted(url) == (200, 0)
            assert not await parts.rows("SELECT 1 FROM sessions_view")


@pytest.mark.proves("A1", "A6", "O3")
async def test_audit_rows_cut_off_from_an_erased_session_are_found_out(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with serving_parts(tmp_path, environ=ENVIRON, postgres=sql) as (parts, client):
        await publish(client, TWIN, 0, 2)
        await is_stored(parts, await publish(client, KEY, 0, 20))
        await client.session(*KEY).erase()
        intact = await command("audit", "verify", "--json", environ=parts.environ)
        assert (intact.status, {row["session_id"] for row in intact.rows}) == (0, {KEY.session_id})

        for condition in ("ordinal = (SELECT max(ordinal) FROM audit)", "1 = 1"):
            await cut_off(parts, sql, condition)
            for names in ((), KEY):
                verified = await command("audit", "verify", *names, "--json", environ=parts.environ)
                assert verified.status == 1, names
                (row,) = [row for row in verified.rows if row["agent_id"] == KEY.agent_id]
                assert row["verdict"].startswith("the end is cut off: ")


async def cut_off(parts: Parts, sql: Postgres | None, condition: str) -> None:
    """Delete audit rows, as somebody may who can also drop what protects them."""
    trigger = "audit_no_delete" if sql is None else "audit_no_change ON audit"
    engine = create_async_engine(parts.database_url, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")
        await connection.exec_driver_sql(f"DELETE FROM audit WHERE {condition}")


async def deleted(url: str) -> tuple[int, object]:
    """The status of a DELETE, and how many messages went or why none did."""

    def send() -> tuple[int, object]:
        target = urlsplit(url)
        connection = http.client.HTTPConnection(target.netloc, timeout=30)
        try:
            connection.request("DELETE", target.path)
            answer = connection.getresponse()
            told = json.loads(answer.read())
            return answer.status, told["error"]["code"] if "error" in told else told["messages"]
        finally:
            connection.close()

    return await asyncio.to_thread(send)


@pytest.mark.proves("A6")
async def test_a_worker_erases_the_sessions_whose_time_is_over(tmp_path: Path) -> None:
    environ = ENVIRON | {"TURNFOLD_POLICY__RETAIN_DAYS": "30"}
    async with (
        running_parts(tmp_path, environ=environ) as parts,
        parts.client() as client,
    ):
        async with parts.running("worker"):
            await publish(client, TWIN, 0, 2, "somebody else's")
            await is_stored(parts, await publish(client, KEY, 0, 2))
        with contextlib.closing(sqlite3.connect(parts.database)) as connection, connection:
            past = "UPDATE sessions SET last_event_at_ms = last_event_at_ms - 31 * 86400000 WHERE agent_id = ?"
            connection.execute(past, (KEY.agent_id,))

        async with parts.running("worker"):
            await wait_until(
                lambda: len(rows(parts.database, "SELECT 1 FROM sessions_view")) == 1,
                told=parts.words,
            )
            await is_forgotten(parts)

            told = rows(parts.database, "SELECT agent_id, phase, reason FROM audit_view")
            assert [tuple(row) for row in told] == [(KEY.agent_id, "erased", "retention")]
            assert {event.subject.split(".")[2] for event in await streamed(parts.server.url)} == {
                "bystander"
            }


@pytest.mark.proves("A6", "L1")
async def test_a_session_whose_newest_event_still_waits_does_not_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was off for longer than sessions are kept, while the agent went on."""
    async with one_stored_session(tmp_path) as (parts, client):
        with contextlib.closing(sqlite3.connect(parts.database)) as connection, connection:
            past = "UPDATE sessions SET last_event_at_ms = last_event_at_ms - 20 * 86400000"
            connection.execute(past)
        seq = await publish(client, KEY, 2, 1)

        await expiry(parts, monkeypatch, days_later=15)
        async with parts.running("worker"):
            await is_stored(parts, seq)
        await expiry(parts, monkeypatch, days_later=29)
        (counted,) = rows(parts.database, "SELECT count(*) FROM messages_view")
        assert tuple(counted) == (6,)

        await expiry(parts, monkeypatch, days_later=31)
        assert rows(parts.database, "SELECT 1 FROM sessions_view") == []


@pytest.mark.proves("A6", "L1")
async def test_a_clock_that_jumps_and_is_corrected_erases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_stored_session(tmp_path) as (parts, _), erasing(parts) as runner:
        runner.expiry_seconds = 0.0
        for days_later in (31, 0, 31):
            clock_is(monkeypatch, days_later)
            await runner.work()
            assert rows(parts.database, "SELECT 1 FROM sessions_view")

        await runner.work()
        assert rows(parts.database, "SELECT 1 FROM sessions_view") == []


@pytest.mark.proves("A6")
async def test_erased_rows_are_deleted_before_all_expired_sessions_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A6: on the first day of a retention, all sessions of an installation may be over."""
    async with one_stored_session(tmp_path) as (parts, client):
        async with parts.running("worker"):
            await is_stored(parts, await publish(client, TWIN, 0, 1))
        clock_is(monkeypatch, 31)
        async with erasing(parts) as runner:
            runner.batch_sessions, runner.examining_seconds = 1, 0.0
            left = []
            for _ in range(2):
                await runner.work()
                left += rows(parts.database, "SELECT count(*) FROM sessions")

    assert [tuple(row) for row in left] == [(1,), (0,)]


@pytest.mark.proves("A6")
async def test_sessions_that_are_kept_are_examined_without_other_work_between_them(
    tmp_path: Path,
) -> None:
    """A6: a million of them every ten minutes, and in each turn the loop also asks the bus."""
    async with one_stored_session(tmp_path) as (parts, client):
        async with parts.running("worker"):
            await is_stored(parts, await publish(client, TWIN, 0, 1))
        async with erasing(parts) as runner:
            runner.batch_sessions, runner.examining_seconds = 1, 60.0

            pause_seconds = await runner.work()

    assert pause_seconds > 0


@pytest.mark.proves("A6", "L8")
async def test_query_servers_forget_expired_sessions_once_and_requested_erasures_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A6: all others' texts are forgotten, too."""
    told: list[bytes] = []

    async def heard(message: Msg) -> None:
        told.append(message.data)

    async with one_stored_session(tmp_path) as (parts, client):
        async with parts.running("worker"):
            for agent in ("ada", "bob", "eve"):
                await publish(client, session_key(agent, "s"), 0, 1)
            await is_stored(parts, await publish(client, TWIN, 0, 1))
        clock_is(monkeypatch, 31)
        bus = await nats.connect(parts.server.url)
        await bus.subscribe(INGESTED, cb=heard)
        async with erasing(parts) as runner:
            runner.batch_sessions, runner.examining_seconds, runner.tidy_seconds = 1, 0.0, 0.0
            counts = []
            for number in range(7):
                if number == 3:
                    await runner.after_erasure(ErasedSessions(KEY.agent_id, KEY.session_id))
                await runner.work()
                await bus.flush()
                counts.append(told.count(ERASED))
        await bus.close()

    # At the start, because a worker may have been killed, for the request, and at the end.
    assert counts == [1, 1, 1, 2, 2, 3, 3]


@pytest.mark.proves("A6")
async def test_expired_dead_letters_are_in_no_file_although_no_session_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_is(monkeypatch, 31)
    async with one_stored_session(tmp_path) as (parts, _), erasing(parts) as runner:
        runner.expiry_seconds = runner.tidy_seconds = 0.0
        await runner.work()
        async with parts.running("worker"):
            await is_stored(parts, await parts.publish("turn.completed.ada.s", MARK.encode()))
        assert files_with(tmp_path, MARK)

        await runner.work()

        assert files_with(tmp_path, MARK) == []


@contextlib.asynccontextmanager
async def one_stored_session(tmp_path: Path) -> AsyncGenerator[tuple[Parts, Client]]:
    """A session of two turns that a worker has stored before it stopped."""
    async with (
        running_parts(tmp_path, environ=ENVIRON) as parts,
        parts.client() as client,
    ):
        async with parts.running("worker"):
            await is_stored(parts, await publish(client, KEY, 0, 2))
        yield parts, client


async def expiry(parts: Parts, monkeypatch: pytest.MonkeyPatch, *, days_later: int) -> None:
    """Erase what is kept for 30 days, by a clock so many days ahead."""
    clock_is(monkeypatch, days_later)
    async with erasing(parts) as runner:
        await runner.work()


def clock_is(monkeypatch: pytest.MonkeyPatch, days_later: int) -> None:
    """Have the loop read a clock so many days ahead."""
    later = now_ms() + days_later * DAY_MS
    monkeypatch.setattr("turnfold_worker.loops.erase.now_ms", lambda: later)


@contextlib.asynccontextmanager
async def erasing(parts: Parts) -> AsyncGenerator[ErasureRunner]:
    """The loop of a worker that keeps sessions for 30 days."""
    bus, database = NatsClient(), Database(parts.database_url, writes=True)
    await bus.connect(parts.server.url)
    try:
        installation, _ = installation_of(replace(SMALL, retain_days=30))
        context = SimpleNamespace(client=bus, database=database, installation=installation)
        store = SqlErasureStore(database, stream_created=await stream_created(bus))
        yield ErasureRunner(cast("WorkerContext", context), store=store)
    finally:
        await database.close()
        await bus.close()


@pytest.mark.proves("F1", "X6")
async def test_the_words_of_a_long_retraction_leave_the_index_by_and_by(tmp_path: Path) -> None:
    words = "SELECT position FROM index_removals WHERE body <> ''"
    unindexed = "SELECT sid FROM sessions WHERE unindexed_from IS NOT NULL"
    async with (
        running_parts(tmp_path, environ=ENVIRON) as parts,
        parts.running("worker"),
        parts.client() as client,
        erasing(parts) as runner,
    ):
        await is_stored(parts, await publish(client, KEY, 0, 60))
        await wait_until(lambda: not rows(parts.database, unindexed), told=parts.words)
        # The first round removes all copies of erased data, which a worker may have left.
        await runner.work()

        await client.session(*KEY).clear()
        await wait_until(lambda: bool(rows(parts.database, words)), told=parts.words)
        while await runner.work() == 0:
            pass

        assert rows(parts.database, words) == []
        assert rows(parts.database, "SELECT id FROM word_index_docsize") == []


@pytest.mark.proves("A6")
async def test_erased_events_leave_the_stream_although_their_words_cannot_leave_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unindexed = "SELECT sid FROM sessions WHERE unindexed_from IS NOT NULL"
    async with running_parts(tmp_path, environ=ENVIRON) as parts, parts.client() as client:
        async with parts.running("worker"):
            await is_stored(parts, await publish(client, KEY, 0, 2))
            await wait_until(lambda: not rows(parts.database, unindexed), told=parts.words)
        with contextlib.closing(sqlite3.connect(parts.database)) as database:
            database.execute("UPDATE word_index_data SET block = x'00' WHERE id > 10")
            database.commit()

        with pytest.raises(DatabaseError):
            await expiry(parts, monkeypatch, days_later=31)

        assert await streamed(parts.server.url) == []


@pytest.mark.proves("A6", "W5")
async def test_sequences_that_were_taken_out_of_the_stream_are_not_waited_for(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with (
        running_parts(tmp_path, environ=ENVIRON, postgres=sql) as parts,
        parts.client() as client,
    ):
        await publish(client, KEY, 0, 300)
        bus = await nats.connect(parts.server.url)
        for seq in [*range(5, 250), 252, 254]:
            await bus.jetstream().delete_msg("TURNFOLD_EVENTS", seq)
        await bus.close()

        async with parts.running("worker"):
            await is_stored(parts, 300)

        assert len(await parts.rows("SELECT 1 FROM events")) == 300 - 247


@pytest.mark.proves("A6")
async def test_what_the_stream_has_forgotten_already_is_no_trouble(
    tmp_path: Path, sql: Postgres | None
) -> None:
    async with (
        running_parts(tmp_path, environ=ENVIRON, postgres=sql) as parts,
        parts.running("worker"),
        parts.client() as client,
    ):
        await is_stored(parts, await publish(client, KEY, 0, 5))
        bus = await nats.connect(parts.server.url)
        for seq in range(1, 6):
            await bus.jetstream().delete_msg("TURNFOLD_EVENTS", seq)
        await bus.close()

        await client.session(*KEY).erase()

        await is_forgotten(parts)
        assert "loop.delayed" not in parts.words()
