"""A running system for the tests of a framework, which run in another environment than Turnfold."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 40


@dataclass(frozen=True, slots=True)
class RunningSystem:
    """A `turnfold up` from the main environment."""

    nats_url: str
    http_url: str


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """A real system with SQLite, shared by the tests of a run; use ids of your own in it."""
    python = os.environ.get("MAIN_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    directory = tmp_path_factory.mktemp("system")
    command = [python, "-P", "-m", "turnfold.cli", "up", "--json", "--data-dir", str(directory)]
    command += ["--nats-port", "0", "--http-port", "0"]
    environ = {name: value for name, value in os.environ.items() if name[:9] != "TURNFOLD_"}
    log = directory.with_name("system.log")
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environ) as process,
    ):
        assert process.stdout
        try:
            ready = json.loads(process.stdout.readline() or "{}")
            assert ready.get("ready"), log.read_text(errors="replace")[-4_000:]
            yield RunningSystem(ready["nats_url"], ready["http_url"])
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


@pytest.fixture
def session_id() -> str:
    """The id of a session that nobody else uses."""
    return uuid4().hex
