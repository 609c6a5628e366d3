"""A child process, and what is sent to it when it ends."""

import asyncio
import sys
from pathlib import Path

import pytest

from turnfold.process.child_process import PYTHON, ChildProcess


@pytest.mark.proves("O7")
async def test_what_is_sent_to_a_process_that_is_being_closed_is_dropped() -> None:
    """A batch that ended while its receiver was closed raised this, and nobody was told of its commit."""
    child = ChildProcess([sys.executable, "-c", "import sys; sys.stdin.read()"])
    await child.open()
    child.send(b"in time")

    closing = asyncio.create_task(child.close(seconds=5.0))
    await asyncio.sleep(0)
    child.send(b"late")

    assert not child.can_send
    await closing
    assert not child.is_running


@pytest.mark.proves("X1")
@pytest.mark.parametrize("module", ["turnfold.cli receiver", "turnfold.models"])
async def test_no_child_imports_modules_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """X1: a service that is started in a folder of somebody else runs no code from there."""
    folder, ran = tmp_path / "folder", tmp_path / "ran"
    folder.mkdir()
    for name in ("structlog", "asyncio", "pydantic", "typer"):
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(folder)
    child = ChildProcess([*PYTHON, *module.split()])
    await child.open()

    # It ends by itself when it has started, because its parent has gone.
    await child.close(seconds=60.0)

    assert not ran.exists()
