"""Files are readable by their owner only, for every umask (X9)."""

import os
import stat
from pathlib import Path

import pytest

import turnfold
from tests.running_system import running_parts, running_system


def open_to_others(directory: Path) -> list[str]:
    """The files that others may read or write, and the directories among them that others may enter."""
    found = [*directory.rglob("*")]
    return sorted(
        str(path.relative_to(directory))
        for path in found
        if stat.S_IMODE(path.lstat().st_mode) & 0o077
    )


@pytest.mark.proves("X9")
async def test_a_system_keeps_its_files_private_in_a_directory_that_existed(tmp_path: Path) -> None:
    """X9: database, log of SQLite, streams, logs, lock and ready line, with a umask that opens everything."""
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o755)
    (data_dir / "turnfold.db").touch(mode=0o666)
    (data_dir / "turnfold.db").chmod(0o644)
    before = os.umask(0)
    try:
        async with (
            running_system(data_dir) as system,
            turnfold.connect(system.nats_url, environ={}) as client,
        ):
            session = client.session("ada", "s-1")
            await session.turn_completed([{"role": "user", "content": "Keep this."}])
            await session.context(wait_ms=5_000)
            names = {path.name for path in data_dir.iterdir()}
            found = open_to_others(data_dir)
    finally:
        os.umask(before)

    assert {"turnfold.db", "turnfold.db-wal", "turnfold.db-shm", "turnfold.json", "nats"} <= names
    # Inside of a directory that only its owner enters, the modes of the server's own files do not matter.
    assert [name for name in found if not name.startswith("nats/")] == []
    assert stat.S_IMODE((data_dir / "nats").stat().st_mode) == 0o700


@pytest.mark.proves("X9")
async def test_a_worker_takes_an_open_database_from_everybody_else(tmp_path: Path) -> None:
    """X9: files of an earlier version are 0644 in a directory that existed."""
    before = os.umask(0)
    try:
        async with running_parts(tmp_path) as parts:
            parts.database.chmod(0o644)
            async with parts.running("worker"), parts.running("query"):
                found = [
                    name
                    for name in open_to_others(tmp_path)
                    if name.startswith(parts.database.name)
                ]
    finally:
        os.umask(before)

    assert found == []
