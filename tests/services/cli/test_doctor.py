"""`turnfold doctor` finds what is wrong and says what to do about it."""

import asyncio
import fcntl
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
from nats.aio.client import Client

from tests import forked_processes as forked
from tests.model_server import running_model_server
from tests.nats_server import NatsServer, nats_server
from tests.postgres import Postgres
from tests.store_fixtures import new_sqlite
from turnfold.bus import connect, ensure_streams
from turnfold.bus.health import BusHealth
from turnfold.cli import doctor
from turnfold.cli.diagnoses import Finding, of_clock, of_disk, of_exposure, of_lag, of_work
from turnfold.cli.doctor import examine
from turnfold.core.policy.presets import Policy
from turnfold.process import child_process
from turnfold.process.directory import DataDirectory
from turnfold.settings import Settings, read_settings
from turnfold.store.database.health import DatabaseHealth
from turnfold_migrations import upgrade

NOBODY = "http://127.0.0.1:9"
HOUR_MS = 3_600_000


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


def the(findings: list[Finding], check: str) -> Finding:
    """The finding of one check."""
    return next(one for one in findings if one.check == check)


def outcomes(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.outcome for one in findings}


@pytest.mark.proves("O3")
async def test_a_machine_with_nothing_on_it_gets_an_advice_for_each_part(tmp_path: Path) -> None:
    database = tmp_path / "turnfold.db"
    nowhere = Settings(
        nats_url="nats://127.0.0.1:9",
        http_url="http://127.0.0.1:9",
        database_url=f"sqlite+aiosqlite:///{database}",
    )

    findings = await examine(nowhere)

    failed = [one for one in findings if one.outcome == "failed"]
    assert {one.check for one in failed} == {"bus", "database", "query"}
    assert all(one.advice for one in failed)
    assert not database.exists()


@pytest.mark.proves("O3")
def test_a_machine_that_loads_the_database_slowly_still_reaches_its_bus(
    tmp_path: Path, server: NatsServer
) -> None:
    """Modules that are loaded during the checks would use up their time."""
    program = """
import asyncio, os, sys, time
from turnfold.cli.doctor import BUS_SECONDS, examine
from turnfold.settings import read_settings

class Slowly:
    def find_spec(self, name, path=None, target=None):
        if name in ("sqlalchemy", "turnfold_migrations"):
            time.sleep(BUS_SECONDS)

sys.meta_path.insert(0, Slowly())
print(*(f"{one.check}: {one.outcome}" for one in asyncio.run(examine(read_settings(os.environ)))), sep="\\n")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ
        | {
            "TURNFOLD_DATA_DIR": str(tmp_path),
            "TURNFOLD_NATS_URL": server.url,
            "TURNFOLD_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/turnfold.db",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert "bus: ok" in ended.stdout, ended.stderr


@pytest.mark.proves("O3", "O8")
async def test_in_a_folder_without_a_system_the_advice_is_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    unnamed = await examine(Settings())
    named = await examine(
        Settings(
            database_url="sqlite+aiosqlite:///nowhere/turnfold.db",
            explicit_names=frozenset({"database_url"}),
        )
    )

    advice = [
        [one.advice for one in found if one.check == "database"] for found in (unnamed, named)
    ]
    assert "set TURNFOLD_DATA_DIR" in advice[0][0]
    assert "correct TURNFOLD_DATABASE_URL" in advice[1][0]


@pytest.mark.proves("O3")
async def test_each_fault_goes_away_with_what_the_advice_says(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server, ThreadingHTTPServer(("127.0.0.1", 0), Ready) as web:
        Thread(target=web.serve_forever, daemon=True).start()
        settings = Settings(
            nats_url=server.url,
            database_url=f"sqlite+aiosqlite:///{tmp_path}/turnfold.db",
            http_url=f"http://127.0.0.1:{web.server_port}",
        )
        before = await examine(settings, monitoring_url=NOBODY)

        client = await connect(settings, name="test")
        await ensure_streams(client, first_seq=1)
        await upgrade(settings.database_url)
        events = await client.jetstream().pull_subscribe_bind("ingest", "TURNFOLD_EVENTS")
        fetching = asyncio.create_task(events.fetch(1, timeout=30))
        after = await examine(settings, monitoring_url=NOBODY)

        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await client.close()
        web.shutdown()

    assert {name for name, outcome in outcomes(before).items() if outcome == "failed"} == {
        "streams",
        "database",
    }
    assert [one.advice for one in before if one.check == "streams"] == ["run `turnfold migrate`"]
    assert {name: outcome for name, outcome in outcomes(after).items() if outcome != "ok"} == {
        "disk writes": "unknown"
    }
    (bus,) = (one.found for one in after if one.check == "bus")
    assert re.fullmatch(r"NATS \d+\.\d+\.\d+ at \S+", bus), bus
    assert set(outcomes(after)) == {
        "bus", "disk writes", "streams", "worker", "stream", "clock of the bus", "database", "jobs", "notices", "dead letters", "sqlite",
        "query", "model", "disk", "exposure",
    }  # fmt: skip


# --- each fault by itself


def settings_of(tmp_path: Path, url: str = "nats://127.0.0.1:9", **more: Any) -> Settings:
    fields: dict[str, Any] = {"database_url": f"sqlite+aiosqlite:///{tmp_path}/turnfold.db"}
    return Settings(nats_url=url, http_url=NOBODY, **(fields | more))


@asynccontextmanager
async def streams_of(server: NatsServer) -> AsyncGenerator[Client]:
    client = await connect(Settings(nats_url=server.url), name="test")
    await ensure_streams(client, first_seq=1)
    try:
        yield client
    finally:
        await client.close()


def monitored(directory: Path, sync: str) -> AbstractContextManager[NatsServer]:
    """A server with a monitoring port."""
    more = f'http: "127.0.0.1:-1"\njetstream {{ store_dir: "{directory}/store"\n {sync} }}'
    return nats_server(directory, more=more, jetstream=False)


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("sync", "outcome"),
    [("", "warning"), ("sync_interval: 1s", "warning"), ("sync_interval: always", "ok")],
)
async def test_a_bus_that_acknowledges_before_it_writes_is_found_by_its_monitoring_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, outcome: str
) -> None:
    # A proxy leads elsewhere; the bus is reached without it too.
    monkeypatch.setenv("http_proxy", NOBODY)
    with monitored(tmp_path, sync) as server:
        (ports,) = (
            json.loads(file.read_text())
            for file in (tmp_path / "ports").glob(f"*_{server.pid}.ports")
        )
        findings = await examine(
            settings_of(tmp_path, server.url), monitoring_url=ports["monitoring"][0]
        )

    assert the(findings, "disk writes").outcome == outcome


@pytest.mark.proves("O3")
@pytest.mark.parametrize("answer", [b"[]", b"7", b'{"config": null}', b"[" * 100_000])
async def test_a_monitoring_address_where_something_else_answers_tells_nothing(
    tmp_path: Path, answer: bytes
) -> None:
    class Other(Ready):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    with nats_server(tmp_path) as server, ThreadingHTTPServer(("127.0.0.1", 0), Other) as web:
        Thread(target=web.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{web.server_port}"
        findings = await examine(settings_of(tmp_path, server.url), monitoring_url=there)
        web.shutdown()

    assert the(findings, "disk writes").outcome == "unknown"


@pytest.mark.proves("O3")
async def test_a_full_stream_and_a_writer_that_asks_for_nothing_are_found(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, database_url=new_sqlite(tmp_path))
    with (tmp_path / "turnfold.db.writer.lock").open("w") as lock, nats_server(tmp_path) as server:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with streams_of(server) as client:
            jetstream = client.jetstream()
            await jetstream.update_stream(
                (await jetstream.stream_info("TURNFOLD_EVENTS")).config.evolve(max_msgs=10)
            )
            found = []
            for number in range(10):
                if number == 8:
                    found.append(
                        the(
                            await examine(
                                replace(settings, nats_url=server.url), monitoring_url=NOBODY
                            ),
                            "stream",
                        )
                    )
                await jetstream.publish("turn.completed", b"{}")
            findings = await examine(replace(settings, nats_url=server.url), monitoring_url=NOBODY)

    assert [one.outcome for one in (*found, the(findings, "stream"))] == ["warning", "failed"]
    assert "8 of 10 events" in found[0].found
    assert the(findings, "worker").outcome == "failed"
    assert "holds the writer lock" in the(findings, "worker").found
    assert "10 events wait" in the(findings, "worker").found


@pytest.mark.proves("O3")
async def test_stuck_jobs_notices_that_stay_and_dead_letters_are_found_in_the_database(
    tmp_path: Path,
) -> None:
    url, now_ms = new_sqlite(tmp_path), time.time_ns() // 1_000_000
    row = "(compaction_id, sid, ordinal, trigger, status, messages_evicted, tokens_evicted, tokens_before, digest, digest_tokens, attempts, "
    row += "next_attempt_at_ms, requested_at_ms, lease_until_ms)"
    jobs = [
        (1, "pending", 0, now_ms - HOUR_MS, None),
        (2, "running", 1, now_ms - HOUR_MS, now_ms - HOUR_MS),
        (3, "pending", 0, now_ms, None),
        (4, "running", 1, now_ms - HOUR_MS, now_ms + HOUR_MS),
    ]
    with closing(sqlite3.connect(tmp_path / "turnfold.db")) as connection, connection:
        for number, status, attempts, due_ms, lease_ms in jobs:
            values = (
                number,
                1,
                number,
                "messages",
                status,
                1,
                1,
                1,
                "",
                0,
                attempts,
                due_ms,
                due_ms,
                lease_ms,
            )
            connection.execute(
                f"INSERT INTO compactions {row} VALUES ({', '.join('?' * len(values))})", values
            )
        connection.execute(
            "INSERT INTO outbox (subject, payload) VALUES ('summary.updated.a.s', '{}')"
        )
        letter = "(stream_seq, at_ms, subject, reason, detail, size_bytes, payload)"
        connection.execute(
            f"INSERT INTO dead_letters {letter} VALUES (1, 1, 'turn.completed', 'not_json', '', 1, x'00')"
        )

    findings = await examine(settings_of(tmp_path, database_url=url), monitoring_url=NOBODY)

    assert the(findings, "jobs").outcome == "failed"
    assert (
        the(findings, "jobs").found == "1 are due and no worker claims them, the oldest for 60 min;"
        " 1 were started by a worker that ended, and no other worker continues them"
    )
    assert (the(findings, "notices").outcome, the(findings, "notices").found) == (
        "failed",
        "1 wait, and none is published",
    )
    assert the(findings, "dead letters").outcome == "warning"
    assert "deadletters replay" in the(findings, "dead letters").advice


@pytest.mark.proves("O3")
async def test_the_clock_of_another_database_server_is_compared_with_ours(
    postgres_url: str, tmp_path: Path
) -> None:
    await upgrade(postgres_url)

    findings = await examine(
        settings_of(tmp_path, database_url=postgres_url), monitoring_url=NOBODY
    )

    assert outcomes(findings)["clock of the database"] == "ok"
    assert outcomes(findings)["jobs"] == "ok"


@pytest.mark.proves("O3")
async def test_a_database_that_hangs_is_told_of(
    postgres: Postgres, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upgrade(postgres_url)
    monkeypatch.setattr(doctor, "DATABASE_SECONDS", 1.0)
    settings = settings_of(tmp_path, database_url=postgres_url)

    with postgres.frozen():
        async with asyncio.timeout(30):
            findings = await examine(settings, monitoring_url=NOBODY)

    assert the(findings, "database").outcome == "failed"
    assert "no answer within 1 s" in the(findings, "database").found


@pytest.fixture
def forked_summarizer() -> Iterator[None]:
    """Have the command fork its summarizer, which need not load litellm again."""
    with patch.object(child_process, "subprocess", forked.with_popen(forked.ForkedSummarizer)):
        yield


@pytest.mark.proves("O3")
async def test_without_a_model_of_its_own_nothing_is_said_of_that_of_a_worker(
    tmp_path: Path,
) -> None:
    found = the(await examine(settings_of(tmp_path), monitoring_url=NOBODY), "model")

    told = "this environment names none; workers without one write extractive summaries"
    assert (found.outcome, found.found) == ("ok", told)


@pytest.mark.proves("O3")
@pytest.mark.usefixtures("forked_summarizer")
async def test_a_model_is_reached_or_asked_and_what_is_wrong_is_told(tmp_path: Path) -> None:
    named: dict[str, Any] = {
        "summary_model": "openai/gpt-4.1-mini",
        "summary_api_key": "none",
        "summary_timeout_seconds": 60.0,
    }
    async with running_model_server() as model:
        there = settings_of(tmp_path, summary_api_base=model.url, **named)
        reached = the(await examine(there, monitoring_url=NOBODY), "model")
        before = len(model.requests)
        asked = the(await examine(there, monitoring_url=NOBODY, asks_model=True), "model")
    gone, wrong = [
        the(
            await examine(
                settings_of(tmp_path, summary_api_base=url, **named), monitoring_url=NOBODY
            ),
            "model",
        )
        for url in (f"{NOBODY}/v1", "http://127.0.0.1:99999/v1")
    ]

    assert (reached.outcome, before) == ("ok", 0)
    assert asked.outcome == "ok"
    assert model.requests
    assert (gone.outcome, bool(gone.advice)) == ("failed", True)
    assert (wrong.outcome, bool(wrong.advice)) == ("failed", True)


@pytest.mark.proves("O3")
@pytest.mark.usefixtures("forked_summarizer")
async def test_the_model_of_the_policy_is_asked_with_the_key_of_its_provider_alone(
    tmp_path: Path,
) -> None:
    policy = Policy(summary_model="openai/gpt-4.1-mini")
    async with running_model_server() as model:
        named: dict[str, Any] = {"summary_api_base": model.url, "summary_api_key": "none"}
        own = settings_of(tmp_path, policy=policy, **named)
        reached = the(await examine(own, monitoring_url=NOBODY), "model")
        asked = the(await examine(own, monitoring_url=NOBODY, asks_model=True), "model")
        own_requests = len(model.requests)
        other = settings_of(
            tmp_path,
            policy=replace(policy, summary_model="ollama/other"),
            summary_model="openai/gpt-4.1-mini",
            **named,
        )
        await examine(other, monitoring_url=NOBODY, asks_model=True)

    assert (reached.outcome, asked.outcome) == ("ok", "ok")
    assert reached.found.startswith("openai/gpt-4.1-mini: a server listens at")
    assert 0 < own_requests == len(model.requests)


@pytest.mark.proves("O3")
async def test_each_sessions_own_model_is_not_taken_for_the_name_of_one(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, summary_model="session", summary_models=("openai/*",))

    found = the(await examine(settings, monitoring_url=NOBODY, asks_model=True), "model")

    assert (found.outcome, found.found) == ("ok", "each session's model")


@pytest.mark.proves("O3")
async def test_http_that_is_open_beyond_this_machine_is_found(tmp_path: Path) -> None:
    findings = await examine(settings_of(tmp_path, http_host="0.0.0.0"), monitoring_url=NOBODY)

    assert the(findings, "exposure").outcome == "warning"


@pytest.mark.proves("O3")
async def test_http_of_a_running_system_is_judged_by_where_it_listens(tmp_path: Path) -> None:
    with closing(DataDirectory.claim(tmp_path)) as directory:
        directory.write_ready({"nats_url": "nats://127.0.0.1:9", "http_host": "0.0.0.0"})
        settings = read_settings({"TURNFOLD_DATA_DIR": str(tmp_path)})

        findings = await examine(settings, monitoring_url=NOBODY)

    assert the(findings, "exposure").outcome == "warning"


# --- what figures mean


def test_a_disk_is_told_of_before_it_is_full() -> None:
    total = 100 << 30

    assert [
        of_disk("/srv", free=free, total=total).outcome for free in (50 << 30, 4 << 30, 500 << 20)
    ] == ["ok", "warning", "failed"]


def test_a_clock_may_be_two_seconds_off() -> None:
    assert [
        of_clock("bus", ms, own_ms=100_000).outcome for ms in (98_000, 102_000, 97_900, 103_000)
    ] == ["ok", "ok", "warning", "warning"]
    assert of_clock("bus", 97_000, own_ms=100_000).found == "3.0 s behind this machine's"


def test_events_that_wait_long_are_told_of_also_where_a_worker_asks() -> None:
    health = BusHealth(1_000_000, 1, -1, 1, -1, 5, 0, 1, 1_000_000 - 61_000)

    assert of_lag(health, has_writer=None).outcome == "warning"
    assert of_lag(replace(health, oldest_ms=999_000), has_writer=None).outcome == "ok"


def test_jobs_that_were_begun_very_often_are_told_of() -> None:
    (jobs, *_) = of_work(
        DatabaseHealth(None, 0, None, 0, 2, 0, None, 0), now_ms=0, is_outbox_moving=True
    )

    assert (jobs.outcome, jobs.found) == ("warning", "2 were started more than 10 times")


@pytest.mark.parametrize(("host", "tokens", "outcome"), [("127.0.0.1", False, "ok"), ("::1", False, "ok"), ("localhost", False, "ok"),
                                                         ("example.org", False, "warning"), ("::", False, "warning"), ("::", True, "ok")])  # fmt: skip
def test_only_loopback_may_be_open_to_whoever_asks(host: str, tokens: bool, outcome: str) -> None:
    assert of_exposure(host, checks_tokens=tokens).outcome == outcome
