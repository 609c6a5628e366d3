"""`turnfold doctor` finds what is wrong and says what to do about it."""

import asyncio
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.nats_server import nats_server
from turnfold.bus import connect, provision
from turnfold.cli.doctor import Finding, examine
from turnfold.settings import Settings
from turnfold_migrations import upgrade


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


def outcomes(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.outcome for one in findings}


@pytest.mark.proves("O3")
async def test_a_machine_with_nothing_on_it_gets_an_advice_for_each_part(tmp_path: Path) -> None:
    database = tmp_path / "turnfold.db"
    nowhere = Settings(nats_url="nats://127.0.0.1:9", http_url="http://127.0.0.1:9", database_url=f"sqlite+aiosqlite:///{database}")

    findings = await examine(nowhere)

    failed = [one for one in findings if one.outcome == "failed"]
    assert {one.check for one in failed} == {"bus", "database", "query"}
    assert all(one.advice for one in failed)
    assert not database.exists()


@pytest.mark.proves("O3")
async def test_each_fault_goes_away_with_what_the_advice_says(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server, ThreadingHTTPServer(("127.0.0.1", 0), Ready) as web:
        Thread(target=web.serve_forever, daemon=True).start()
        settings = Settings(
            nats_url=server.url,
            database_url=f"sqlite+aiosqlite:///{tmp_path}/turnfold.db",
            http_url=f"http://127.0.0.1:{web.server_port}",
        )
        before = await examine(settings)

        client = await connect(settings, name="test", role="provisioner")
        await provision(client, first_seq=1)
        await upgrade(settings.database_url)
        events = await client.jetstream().pull_subscribe_bind("ingest", "TURNFOLD_EVENTS")
        fetching = asyncio.create_task(events.fetch(1, timeout=30))
        after = await examine(settings)

        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await client.close()
        web.shutdown()

    assert {name for name, outcome in outcomes(before).items() if outcome == "failed"} == {"streams", "database"}
    assert [one.advice for one in before if one.check == "streams"] == ["run `turnfold migrate`"]
    assert set(outcomes(after).values()) == {"ok"}
    assert set(outcomes(after)) == {"bus", "streams", "worker", "database", "sqlite", "query", "model"}
