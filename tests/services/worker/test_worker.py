"""The worker under failures, on a real bus: no event is lost or stored twice, without restarts."""

import asyncio
import contextlib
import json
import os
import resource
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from tests.model_server import running_model_server
from tests.nats_server import NatsServer
from tests.running_system import rows, running_parts, wait_until
from tests.worker_scenario import KEY, SMALL, Day, day, turn
from turnfold.client import result_event, turn_event
from turnfold.core.history.validation import validation_errors
from turnfold.messages import Json

OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "1.5"))


# --- the bus


@asynccontextmanager
async def away(server: NatsServer, how: str) -> AsyncGenerator[None]:
    """The bus is away while the body runs: stopped in good order, killed, or hanging."""
    if how == "hanging":
        os.kill(server.pid, SIGSTOP)
    else:
        server.kill() if how == "killed" else server.stop()
    try:
        yield
    finally:
        os.kill(server.pid, SIGCONT) if how == "hanging" else server.start()


@pytest.mark.proves("L1", "L2", "L3", "R3")
async def test_a_bus_that_goes_away_in_the_middle_costs_nothing(tmp_path: Path) -> None:
    async with day(tmp_path) as today:
        async with today.publishing():
            await today.goes_on()
            for how in ("stopped", "hanging", "killed"):
                async with away(today.parts.server, how):
                    await asyncio.sleep(OUTAGE_SECONDS)
                await today.goes_on()

        await today.ends_well()


@pytest.mark.proves("L1", "O2")
async def test_a_worker_waits_for_a_bus_that_comes_later(tmp_path: Path) -> None:
    async with running_parts(tmp_path, environ=SMALL) as parts:
        parts.server.stop()
        async with parts.running("worker", is_awaited=False) as worker:
            await asyncio.sleep(2.0)
            assert worker.is_alive
            parts.server.start()
            await wait_until(lambda: worker.is_ready, told=parts.words)

            async with parts.client() as client:
                today = Day(parts, worker, client)
                await today.publish()
                await today.ends_well()


@pytest.mark.proves("L1")
async def test_a_worker_stops_in_good_order_while_the_bus_is_away(tmp_path: Path) -> None:
    async with day(tmp_path) as today:
        await today.publish()
        await today.settled()
        today.parts.server.stop()

        assert await today.worker.stop() == 0


# --- the database


@pytest.mark.proves("L1", "L2", "L3", "L4")
async def test_a_database_that_somebody_else_locks_is_waited_for(tmp_path: Path) -> None:
    async with day(tmp_path) as today, today.parts.running("query"):
        async with today.publishing():
            await wait_until(lambda: today.stored() > 20)
            with contextlib.closing(
                sqlite3.connect(today.parts.database, isolation_level=None, timeout=10)
            ) as other:
                other.execute("BEGIN IMMEDIATE")
                began, stored = time.monotonic(), today.stored()
                # Readers see the last snapshot meanwhile, and say that it is not fresh.
                windows = []
                while time.monotonic() - began < 3.0:
                    windows.append(
                        await today.client.session(*KEY).context(max_tokens=50_000, wait_ms=50)
                    )
                    await asyncio.sleep(0.1)
                assert today.stored() == stored
                assert all(window.account.total > 0 for window in windows)
                assert not windows[-1].fresh
                other.execute("ROLLBACK")
            await today.goes_on()

        await today.ends_well()


@pytest.mark.proves("L1", "L2", "L3")
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux changes the limits of another process"
)
async def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path: Path) -> None:
    async with day(tmp_path, TURNFOLD_POLICY__MAX_LIVE_MESSAGES="1000") as today:
        async with today.publishing():
            await wait_until(lambda: today.stored() > 20)
            unlimited = resource.prlimit(today.worker.pid, resource.RLIMIT_FSIZE)
            wal = today.parts.database.with_name("turnfold.db-wal")
            # A reader keeps the log from being truncated, which would make room.
            with closing(sqlite3.connect(today.parts.database, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM events").fetchone()
                resource.prlimit(
                    today.worker.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size, unlimited[1])
                )
                await wait_until(lambda: "batch.requeued" in today.parts.words())
                stored = today.stored()
                await asyncio.sleep(2.0)
                assert today.stored() == stored
            resource.prlimit(today.worker.pid, resource.RLIMIT_FSIZE, unlimited)
            await today.goes_on()

        await today.ends_well()


@pytest.mark.proves("O2", "L2")
async def test_a_second_worker_on_the_same_file_stands_by_and_takes_over(tmp_path: Path) -> None:
    async with day(tmp_path) as today, today.parts.running("worker", is_awaited=False) as second:
        async with today.publishing():
            await wait_until(lambda: "worker.standby" in today.parts.words())
            assert not second.is_ready
            today.worker.signal(SIGKILL)
            await wait_until(lambda: second.is_ready, told=today.parts.words)
            await today.goes_on()

        today.worker = second
        await today.ends_well()


# --- bad and late events


@pytest.mark.proves("I5", "L1")
async def test_bad_events_become_dead_letters_and_their_neighbours_are_stored(
    tmp_path: Path,
) -> None:
    async with day(tmp_path) as today:
        bad = {
            b"\xff": ("turn.completed", "not_json"),
            b'{"a": ' * 200 + b"1" + b"}" * 200: ("turn.completed", "too_deep"),
            json.dumps({"event_id": "x", "agent_id": "a", "session_id": "s"}).encode(): (
                "turn.completed",
                "wrong_shape",
            ),
            turn(9_999).payload: ("turn.completed.support.another", "subject_mismatch"),
            turn_event(KEY, [{"role": "user", "content": "another"}], event_id="e00000").payload: (
                "turn.completed",
                "event_id_reused",
            ),
        }
        await today.publish()
        for payload, (subject, reason) in bad.items():
            today.published.trying_bad(payload, reason)
            await today.parts.publish(subject, payload)
            await today.publish()

        await today.ends_well()


@pytest.mark.proves("I1", "L5", "E4")
async def test_a_result_that_comes_after_its_call_was_evicted_breaks_no_window(
    tmp_path: Path,
) -> None:
    environ = {"TURNFOLD_POLICY__OPEN_CALL_TIMEOUT_SECONDS": "0"}
    async with day(tmp_path, **environ) as today, today.parts.running("query"):
        call = {"id": "slow", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        question: list[Json] = [
            {"role": "user", "content": "Search."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        await today.publish(turn_event(KEY, question, event_id="asked"))
        for _ in range(30):
            await today.publish()
        await wait_until(
            lambda: rows(
                today.parts.database,
                "SELECT 1 FROM messages_view WHERE message_id = 'asked#1' AND state != 'live'",
            )
        )
        await today.publish(result_event(KEY, "slow", "found at last", event_id="late"))
        await today.publish(result_event(KEY, "slow", "found at last", event_id="copy"))
        await today.publish(result_event(KEY, "nobody", "asked for this", event_id="unowned"))

        window = await today.client.session(*KEY).context(max_tokens=50_000, wait_ms=5_000)

        assert window.fresh
        assert not validation_errors(window.messages)
        assert window.account.total == 65
        assert "late#0" not in window.message_ids
        for _ in range(30):
            await today.publish()
        await today.ends_well()
        assert (
            rows(
                today.parts.database, "SELECT state FROM messages_view WHERE message_id = 'late#0'"
            )[0][0]
            == "covered"
        )


# --- the model


async def nobody_reads_or_writes(database: Path) -> None:
    """Wait until no transaction is open: a truncating checkpoint is refused while one reads or writes."""
    with contextlib.closing(
        sqlite3.connect(database, timeout=0, isolation_level=None)
    ) as connection:
        async with asyncio.timeout(3):
            while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)


@pytest.mark.proves("L4", "L9", "E2", "S4", "S7")
async def test_nobody_waits_for_a_model_that_hangs_and_its_summary_comes_when_it_answers(
    tmp_path: Path,
) -> None:
    async with running_model_server() as model:
        model.fault = "hang"
        environ = model.settings | {"TURNFOLD_SUMMARY_TIMEOUT_SECONDS": "10"}
        async with day(tmp_path, **environ) as today, today.parts.running("query"):
            for _ in range(30):
                await today.publish()
            await asyncio.wait_for(model.is_hanging.wait(), 60)

            windows = []
            for _ in range(10):
                await today.publish()
                windows.append(
                    await today.client.session(*KEY).context(max_tokens=50_000, wait_ms=5_000)
                )
            assert all(window.fresh and window.summary is None for window in windows)
            assert [window.account.total for window in windows] == list(range(62, 82, 2))
            assert windows[-1].account.pending_shown + windows[-1].account.pending_digested > 0
            assert model.is_hanging.is_set()
            await nobody_reads_or_writes(today.parts.database)

            model.fault = "answer"
            await today.ends_well()
            window = await today.client.session(*KEY).context(max_tokens=50_000)
            assert window.summary is not None
            assert window.summary.kind == "llm"
