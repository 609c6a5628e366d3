"""Clients that other programs generate from the shipped OpenAPI document run the journey of the README.

`make clients` makes what the tests need in `build/clients`: an environment with the generator of
Python, and the npm packages of `package-lock.json`. Nothing that is generated is kept.
"""

import json
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_system import System, running_system

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / "build" / "clients"
PACKAGES = TOOLS / "node" / "node_modules"
MESSAGES = [
    {"role": "user", "content": "Where is order 7341?"},
    {"role": "assistant", "content": "It left Ghent this morning."},
]

pytestmark = [pytest.mark.timeout(300), pytest.mark.proves("V3")]


def run(*command: str | Path, folder: Path) -> str:
    """The output of a program, which has to succeed."""
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-4_000:]}\n{ended.stderr[-4_000:]}"
    return ended.stdout


@pytest.fixture
async def system(tmp_path: Path) -> AsyncGenerator[System, None]:
    """A system, whose OpenAPI document stands in `tmp_path`."""
    async with running_system(tmp_path / "system") as system:
        async with httpx.AsyncClient(base_url=system.http_url, trust_env=False) as http:
            answer = (await http.get("/openapi.json")).raise_for_status()
        (tmp_path / "openapi.json").write_text(answer.text)
        yield system


def check(printed: str, language: str) -> None:
    """Check what a journey saw."""
    seen: dict[str, Any] = json.loads(printed)
    assert seen == {
        "fresh": True,
        "messages": MESSAGES,
        "total": 2,
        "error": "cannot_fit",
        "needed_tokens": True,
        "found": [MESSAGES[1]["content"]],
        "stored": MESSAGES,
        "messages_total": 2,
        "compaction_id": None,
        "audit": 0,
        "sessions": [f"{language}/user 42%"],
    }


async def test_a_python_and_a_typescript_client_run_the_journey(
    system: System, tmp_path: Path
) -> None:
    python = TOOLS / "env" / "bin"
    document = tmp_path / "openapi.json"

    generated = run(
        python / "openapi-python-client",
        *("generate", "--path", document, "--meta", "none", "--fail-on-warning"),
        *("--config", HERE / "generator.yaml", "--output-path", tmp_path / "turnfold_http_client"),
        folder=tmp_path,
    )
    assert "pieces may be missing" not in generated
    shutil.copy(HERE / "journey_client.py", tmp_path)
    check(run(python / "python", "journey_client.py", system.http_url, folder=tmp_path), "python")

    if not PACKAGES.is_dir():
        pytest.skip(
            "the client of TypeScript was not made: npm is not installed, or could not install its packages"
        )
    for name in ("journey.ts", "tsconfig.json", "package.json"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    run(
        "node",
        PACKAGES / "openapi-typescript/bin/cli.js",
        document,
        "-o",
        "api.ts",
        "--default-non-nullable=false",
        folder=tmp_path,
    )
    run("node", PACKAGES / "typescript/bin/tsc", folder=tmp_path)
    check(run("node", "journey.js", system.http_url, folder=tmp_path), "typescript")
