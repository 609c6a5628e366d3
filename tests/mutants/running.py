"""Run the tests that cover a mutant, in a copy of the checkout."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

from tests.mutants.child import start
from tests.mutants.mutants import Mutant, Span, read_source
from tests.mutants.plugin import COVER, SELECT

TESTS = ("tests/unit", "tests/property", "tests/contract", "tests/integration")
"""The tests that run in one process. Those of services, journeys and chaos start processes, whose lines belong to no test."""
SHELVES = ("shared", "services", "migrations")
START_SECONDS = 45
FILES_AT_ONCE = 12
"""Test files that are measured in one run of pytest; what earlier runs measured stays when one is ended."""
FIRST_FILES = 4
WITHOUT_WAITING = ("tests/unit/", "tests/property/", "tests/contract/")
"""Tests that wait for nothing, at least on SQLite: they fail on a machine of any speed, unless pytest ends one that takes too long."""
_NUMBERS = count(1)
SLACK = 4
WHOLE_FILE = (1, sys.maxsize)


class Outcome(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    UNCOVERED = "uncovered"
    UNDECIDED = "undecided"
    """The tests fail or take too long without the change as well, as on a loaded machine: a later run decides."""
    INVALID = "invalid"
    """The change is no Python: it says nothing about tests."""


@dataclass(frozen=True, slots=True)
class Covering:
    """Which tests execute which lines, and how long each takes."""

    seconds: Mapping[str, float]
    on_postgres: frozenset[str]
    lines: Mapping[str, Mapping[int, set[str]]]

    def tests(self, mutant: Mutant) -> Sequence[str]:
        """Return the tests that execute the mutant's statement, or else its function; those of the quickest files first.

        Tests on PostgreSQL come last: its server takes longer, and most code is the same on SQLite. A function that runs while its module is
        imported, to make a constant, is executed by no test: all tests that execute anything in its file are chosen then.
        """
        chosen = (
            self._on(mutant.path, mutant.statement)
            or self._on(mutant.path, mutant.body)
            or self._on(mutant.path, WHOLE_FILE)
        )
        return [
            *self._quickest_first(chosen - self.on_postgres),
            *self._quickest_first(chosen & self.on_postgres),
        ]

    def _quickest_first(self, names: Iterable[str]) -> Sequence[str]:
        by_file: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda name: self.seconds[name]):
            by_file.setdefault(name.partition("::")[0], []).append(name)
        files = sorted(
            by_file.values(), key=lambda of_file: sum(self.seconds[name] for name in of_file)
        )
        return [name for of_file in files for name in of_file]

    def _on(self, path: str, span: Span) -> set[str]:
        return {
            name
            for line, names in self.lines.get(path, {}).items()
            if span[0] <= line <= span[1]
            for name in names
        }


def copy_tree(root: Path, commit: str, directory: Path) -> None:
    """Unpack a commit anew; nothing is ever changed in the checkout itself."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "-C", root, "archive", commit], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(directory)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", *SHELVES, "tests"], cwd=directory, check=True
    )


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a commit: each test file by its path, with the hash of what is in it, and the hash of all the code that they use."""

    files: Mapping[str, str]
    code: str

    @staticmethod
    def of(root: Path, commit: str) -> "Suite":
        """Read it from git."""
        listed = subprocess.run(
            ["git", "-C", root, "ls-tree", "-r", commit], capture_output=True, check=True, text=True
        ).stdout
        blobs = {
            path: entry.split()[2]
            for entry, _, path in (line.partition("\t") for line in listed.splitlines())
        }
        tests = {
            path: blob
            for path, blob in blobs.items()
            if path.startswith(TESTS) and Path(path).name.startswith("test_")
        }
        used = [
            f"{path} {blob}" for path, blob in blobs.items() if path not in tests and _is_used(path)
        ]
        return Suite(tests, _hash(*used))

    def hash_of(self, tests: Iterable[str]) -> str:
        """Return a hash that changes if one of these tests may have changed."""
        return _hash(self.code, *sorted({self.files[name.partition("::")[0]] for name in tests}))


def _is_used(path: str) -> bool:
    is_code = path.startswith((*SHELVES, "tests/")) and path.endswith(".py")
    return (
        is_code
        and not path.startswith("tests/mutants/")
        and not Path(path).name.startswith("test_")
    )


def covering(tree: Path, suite: Suite, folder: Path, *, processes: int, seconds: int) -> Covering:
    """Find out what each test executes. A test file that did not change, with the code it uses, is not run for this again."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {path: folder / f"{suite.hash_of([path])}.json" for path in suite.files}
    missing = [path for path, file in kept.items() if not file.exists()]
    # In the order of TESTS: pure tests are quick, and measure most of the core.
    missing.sort(key=lambda path: next(n for n, top in enumerate(TESTS) if path.startswith(top)))
    for start_at in range(0, len(missing), FILES_AT_ONCE * processes):
        batch = missing[start_at : start_at + FILES_AT_ONCE * processes]
        parts = folder / "parts"
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir()
        workers = ("-n", str(processes), "--dist", "loadfile") if processes > 1 else ()
        _run(tree, [*workers, *batch], {COVER: str(parts)}, folder / "pytest.log", seconds=seconds)
        for part in parts.glob("*.json"):
            for path, executed in _by_file(json.loads(part.read_text())).items():
                kept[path].write_text(json.dumps(executed))
        for path in batch:
            if not kept[path].exists():
                kept[path].write_text(json.dumps({"tests": [], "lines": {}}))
    return _merged([json.loads(file.read_text()) for file in kept.values()])


Executed = dict[str, Any]
"""What the plugin writes: tests with their seconds, whether they are of no use, and whether they need PostgreSQL; for each line its tests."""


def _by_file(part: Executed) -> dict[str, Executed]:
    found: dict[str, Executed] = {}
    places: list[tuple[str, int]] = []
    for test in part["tests"]:
        of_file = found.setdefault(test[0].partition("::")[0], {"tests": [], "lines": {}})
        places.append((test[0].partition("::")[0], len(of_file["tests"])))
        of_file["tests"].append(test)
    for path, lines in part["lines"].items():
        for line, numbers in lines.items():
            for name, place in (places[number] for number in numbers):
                found[name]["lines"].setdefault(path, {}).setdefault(line, []).append(place)
    return found


def _merged(parts: Iterable[Executed]) -> Covering:
    seconds: dict[str, float] = {}
    on_postgres: set[str] = set()
    lines: dict[str, dict[int, set[str]]] = {}
    for part in parts:
        names = [name for name, *_ in part["tests"]]
        useless = {name for name, _, is_useless, _ in part["tests"] if is_useless}
        on_postgres |= {name for name, _, _, is_on_postgres in part["tests"] if is_on_postgres}
        seconds |= {name: took for name, took, *_ in part["tests"]}
        for path, numbers in part["lines"].items():
            for line, tests in numbers.items():
                lines.setdefault(path, {}).setdefault(int(line), set()).update(
                    {names[number] for number in tests} - useless
                )
    return Covering(seconds, frozenset(on_postgres), lines)


def _hash(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def run_mutant(
    tree: Path, mutant: Mutant, tests: Sequence[str], *, seconds: float
) -> tuple[Outcome, str]:
    """Write the mutant into the copy, run its tests until one fails, and put the file back; the outcome, and the test that failed."""
    if not tests:
        return Outcome.UNCOVERED, ""
    file = tree / mutant.path
    whole, written_at = file.read_text(), file.stat().st_mtime
    code = _source(tree, mutant.path).mutated(mutant)
    try:
        compile(code, mutant.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return Outcome.INVALID, ""
    log = tree.with_suffix(".log")
    limit = START_SECONDS + SLACK * seconds
    try:
        file.write_text(code)
        # Byte code is found by the time and the length of its source: a time of its own keeps the mutant's from being taken for another's.
        os.utime(file, (written_at, written_at + 10 + next(_NUMBERS)))
        status = _run_in_parts(tree, tests, log, seconds=limit)
    finally:
        file.write_text(whole)
        os.utime(file, (written_at, written_at))
    if status is None:
        is_quick = _run_in_parts(tree, tests, log, seconds=limit) == 0
        return (Outcome.TIMEOUT if is_quick else Outcome.UNDECIDED), ""
    if status == 0:
        return Outcome.SURVIVED, ""
    failed = [
        line
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    if status > 0 and not failed:
        raise RuntimeError(
            f"pytest ended with {status} for {mutant}, and no test of it failed; its output is in {log}"
        )
    if not failed:
        return Outcome.KILLED, f"ended by signal {-status}"
    by = failed[0][:200]
    name = failed[0].partition(" ")[2].partition(" - ")[0]
    may_wait = not name.startswith(WITHOUT_WAITING) or "[postgres" in name
    is_doubtful = "::" in name and (may_wait or "Timeout" in failed[0])
    if is_doubtful and _run_selected(tree, [name], log, seconds=limit) != 0:
        return Outcome.UNDECIDED, by
    return Outcome.KILLED, by


def _run_in_parts(tree: Path, tests: Sequence[str], log: Path, *, seconds: float) -> int | None:
    """Run the tests of the first files, then the others: most mutants are killed by the first ones.

    Pytest imports every file before it runs a test, which takes longer than most tests.
    """
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))[:FIRST_FILES]
    first = [name for name in tests if name.partition("::")[0] in files]
    rest = [name for name in tests if name.partition("::")[0] not in files]
    status = _run_selected(tree, first, log, seconds=seconds)
    return _run_selected(tree, rest, log, seconds=seconds) if status == 0 and rest else status


def _run_selected(tree: Path, tests: Sequence[str], log: Path, *, seconds: float) -> int | None:
    """Run these tests until one fails; the exit status, or None if the time is over."""
    selection = tree.with_suffix(".tests.json")
    selection.write_text(json.dumps(tests))
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
    return _run(tree, ["-x", *files], {SELECT: str(selection)}, log, seconds=seconds)


_source = lru_cache(maxsize=64)(read_source)
"""The mutants of a file, which is the same in all copies whenever no mutant is written into it."""


def _run(
    tree: Path, arguments: Sequence[str], variables: Mapping[str, str], log: Path, *, seconds: float
) -> int | None:
    """Run pytest in the copy; its exit status, or None when it had to be ended."""
    options = (
        "-q",
        "-p",
        "tests.mutants.plugin",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=line",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    )
    process = start(tree, [*options, *arguments], variables, SHELVES, log)
    process.join(seconds)
    status: int | None = process.exitcode
    # Also what the tests started and left behind, which is in the session of its own.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    process.close()
    return status
