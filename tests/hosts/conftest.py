"""A running system for the tests of a framework, which run in another environment than Turnfold."""

import json
import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.environment import clean_environ
from turnfold.client import StoredMessage, connect

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 40
QUICK = "HOSTS_QUICK"
"""The variable that leaves out the tests that are marked with `stress`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip long tests with their reason, if this run shall be quick."""
    if os.environ.get(QUICK) == "1":
        for item in items:
            if item.get_closest_marker("stress"):
                item.add_marker(pytest.mark.skip(reason="a long test; `make hosts` runs it"))


@dataclass(frozen=True, slots=True)
class RunningSystem:
    """A `turnfold up` from the main environment."""

    nats_url: str
    http_url: str

    async def stored(
        self, agent_id: str, session_id: str, *, include_retracted: bool = False
    ) -> list[StoredMessage]:
        """Return the messages of a session, with all that was published to it before."""
        async with connect(self.nats_url, environ={}) as client:
            session = client.session(agent_id, session_id)
            await session.history(newest=1, after="latest", wait_ms=5_000)
            return [one async for one in session.originals(include_retracted=include_retracted)]


class RestartableSystem:
    """A `turnfold up` of the main environment that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory.with_name(f"{directory.name}.log")
        self._nats_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RunningSystem:
        """Start it where it was, and return it when it is ready."""
        python = os.environ.get("MAIN_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
        command = [python, "-P", "-m", "turnfold.cli", "up", "--json"]
        command += ["--data-dir", str(self._directory), "--http-port", "0"]
        command += ["--nats-port", str(self._nats_port)]
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=clean_environ()
            )
        assert self._process.stdout
        ready = json.loads(self._process.stdout.readline() or "{}")
        assert ready.get("ready"), self._log.read_text(errors="replace")[-4_000:]
        self._nats_port = int(ready["nats_url"].rpartition(":")[2])
        return RunningSystem(ready["nats_url"], ready["http_url"])

    def stop(self) -> None:
        """Stop it, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(STOP_SECONDS)
            assert process.stdout
            process.stdout.close()


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """A real system with SQLite, shared by the tests of a run; use ids of your own in it."""
    restartable = RestartableSystem(tmp_path_factory.mktemp("system"))
    try:
        yield restartable.start()
    finally:
        restartable.stop()


@pytest.fixture
def own_system(tmp_path: Path) -> Iterator[RestartableSystem]:
    """A system that the test starts, and may stop."""
    (tmp_path / "own").mkdir()
    restartable = RestartableSystem(tmp_path / "own")
    yield restartable
    restartable.stop()


@pytest.fixture
def session_id() -> str:
    """The id of a session that nobody else uses."""
    return uuid4().hex


Warned = Callable[[], list[str]]


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Warned:
    """Return what the integrations have warned of so far."""
    name = "turnfold.integrations"
    caplog.set_level(logging.WARNING, name)
    return lambda: [record.getMessage() for record in caplog.records if record.name == name]


Example = Callable[[str], dict[str, Any]]
Page = Callable[[str], Sequence[str]]


@pytest.fixture
def example(system: RunningSystem, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Run a file of `examples/agents`, but not as the program, and return what it defines."""
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)

    def defined(file: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "example"}
        code = (ROOT / "examples" / "agents" / file).read_text()
        exec(compile(code, file, "exec"), names)
        return names

    return defined


@pytest.fixture
def page(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Page:
    """Run the first code of a page of `docs/integrations`, which prints its question; return the rest."""
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)

    def others(file: str) -> Sequence[str]:
        text = (ROOT / "docs" / "integrations" / file).read_text()
        code, *rest = re.findall(r"```py(?:thon)?\n(.*?)```", text, re.DOTALL)
        exec(compile(code, file, "exec"), {"__name__": "__main__"})
        assert "Where is order 7341?" in capsys.readouterr().out
        return rest

    return others
