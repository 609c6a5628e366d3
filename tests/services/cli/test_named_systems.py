"""No command acts on a system that was not named (O8, C73)."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import turnfold
from tests.running_system import Command, command, running_system
from turnfold.cli.application import application
from turnfold.errors import StartError
from turnfold.process.directory import DataDirectory
from turnfold.process.directory import running_system as ready_line

READING: set[tuple[str, ...]] = {
    ("audit",), ("console",), ("context",), ("deadletters", "list"), ("deadletters", "show"), ("doctor",), ("mcp",), ("search",),
    ("history",), ("policy", "show"),
    ("sessions",),
    ("summaries", "diff"), ("summaries", "list"), ("summaries", "show"),
}  # fmt: skip
"""Commands that change nothing. Every other command has to refuse where no system is named."""
OF_THEIR_OWN: set[tuple[str, ...]] = {
    ("up",),
    ("demo",),
    ("completion",),
    ("keys", "list"),
    ("keys", "nats"),
    ("keys", "new"),
    ("keys", "revoke"),
    ("keys", "token"),
}
"""Commands that start a system of their own, or work on files of keys."""
SERVICES: set[tuple[str, ...]] = {("worker",), ("query",), ("proxy",)}
"""Processes that an operator sets up; they check themselves that bus and database belong together."""
ARGUMENTS: dict[tuple[str, ...], list[str]] = {
    ("compact",): ["ada", "s-1"],
    ("erase",): ["ada", "s-1", "--yes"],
    ("restore",): ["ada", "s-1", "--yes"],
    ("policy", "set"): ["ada", "s-1", "--mode", "manual"],
    ("summaries", "promote"): ["ada", "s-1", "1"],
    ("summaries", "regenerate"): ["ada", "s-1", "--no-wait"],
    ("deadletters", "replay"): ["--all"],
    ("replay",): ["{file}"],
    ("migrate",): [],
}  # fmt: skip
READS: dict[tuple[str, ...], list[str]] = {
    ("console",): [], ("context",): ["ada", "s-1"], ("sessions",): [], ("audit",): [], ("deadletters", "list"): [], ("doctor",): [],
}  # fmt: skip


def every_command(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of all commands."""
    for name, one in getattr(group, "commands", {}).items():
        yield from every_command(one, (*path, name))
    if not hasattr(group, "commands"):
        yield path


ALL = sorted(every_command(typer.main.get_command(application())))
CHANGING = [path for path in ALL if path not in READING | OF_THEIR_OWN | SERVICES]


async def run(
    path: tuple[str, ...], arguments: list[str], environ: dict[str, str], folder: Path
) -> Command:
    file = folder / "one.jsonl"
    file.write_text(json.dumps({"role": "user", "content": "Hello."}) + "\n")
    return await command(
        *path, *(argument.format(file=file) for argument in arguments), environ=environ
    )


@pytest.mark.proves("O8", "C73")
async def test_a_directory_in_which_nothing_runs_leads_no_command_to_the_default_ports(
    tmp_path: Path,
) -> None:
    """O8, C73: a system listens on the default ports; an empty and a stale directory are named, or none at all."""
    async with running_system(tmp_path / "other", nats_port=4222, http_port=8080) as other:
        async with turnfold.connect(other.nats_url, environ={}) as client:
            session = client.session("ada", "s-1")
            await session.turn_completed([{"role": "user", "content": "Keep this."}])
            before = await session.context(wait_ms=5_000)
        empty, stale = tmp_path / "empty", tmp_path / "stale"
        empty.mkdir()
        stale.mkdir()
        (stale / "turnfold.json").write_text((tmp_path / "other" / "turnfold.json").read_text())
        (stale / "up.lock").write_text((tmp_path / "other" / "up.lock").read_text())
        refused = {}
        for path in CHANGING:
            for name, environ in (("empty", empty), ("stale", stale), ("none", None)):
                named = {} if environ is None else {"TURNFOLD_DATA_DIR": str(environ)}
                refused[path, name] = await run(path, ARGUMENTS[path], named, tmp_path)
        read = {
            path: await run(path, some, {"TURNFOLD_DATA_DIR": str(empty)}, tmp_path)
            for path, some in READS.items()
        }
        by_default = await run(("context",), ["ada", "s-1", "--json"], {}, tmp_path)
        named = {"TURNFOLD_DATA_DIR": str(tmp_path / "other")}
        doctor = await run(("doctor",), ["--json"], named, tmp_path)
        async with turnfold.connect(other.nats_url, environ={}) as client:
            after = await client.session("ada", "s-1").context()
        erased = await run(("erase",), ["ada", "s-1", "--yes"], named, tmp_path)
    nothing_runs = await run(("console",), [], {}, tmp_path)

    assert before.messages == after.messages != []
    for (path, name), done in refused.items():
        told = "no system is named" if name == "none" else "no system runs in"
        assert (done.status, done.out, done.err.count("\n")) == (1, "", 1), (path, name, done)
        assert told in done.err
    for path, done in read.items():
        assert (done.status, done.out) == (1, ""), (path, done)
        assert "no system runs in" in done.err
    assert by_default.status == 0
    assert (nothing_runs.status, nothing_runs.out) == (1, "")
    assert "no query service answers at http://127.0.0.1:8080" in nothing_runs.err
    assert str(tmp_path / "other") in doctor.rows[0]["found"]
    assert erased.status == 0
    assert str(tmp_path / "other") in erased.err
    assert str(tmp_path / "other") in erased.out


@pytest.mark.proves("O8", "C73")
def test_every_command_is_known_to_read_or_to_change() -> None:
    """O8: a new command counts as one that changes something until it is listed as reading."""
    assert set(CHANGING) == set(ARGUMENTS)


@pytest.mark.proves("O8", "C73")
async def test_a_bus_that_is_named_is_not_read_over_the_default_http_port(tmp_path: Path) -> None:
    done = await command("sessions", environ={"TURNFOLD_NATS_URL": "nats://127.0.0.1:1"})

    assert (done.status, done.out) == (1, "")
    assert "TURNFOLD_HTTP_HOST" in done.err


def test_the_lock_says_whether_a_system_runs(tmp_path: Path) -> None:
    assert ready_line(tmp_path / "missing") is None
    directory = DataDirectory.claim(tmp_path)
    with pytest.raises(StartError, match="not ready"):
        ready_line(tmp_path)
    directory.write_ready({"nats_url": "nats://127.0.0.1:1", "pids": {"nats": os.getpid()}})

    assert (ready_line(tmp_path) or {})["nats_url"] == "nats://127.0.0.1:1"
    directory.close()
    assert ready_line(tmp_path) is None
