"""A plugin of pytest that finds which tests execute which lines, or runs the tests that it is told to in the order that it is told."""

import json
import os
import resource
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

COVER = "MUTANTS_COVER"
"""The variable that names a folder: every test process writes there which lines its tests executed."""
SELECT = "MUTANTS_SELECT"
"""The variable that names a file with the ids of the tests to run."""
MEMORY_BYTES = 6 << 30
PACKAGES = ("core", "operations", "store")
ROOT = Path(__file__).parents[2]


def pytest_configure(config: pytest.Config) -> None:
    """Measure, if a folder is named; else take no more memory than a mutant may."""
    if COVER in os.environ:
        config.pluginmanager.register(Coverage(Path(os.environ[COVER])))
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that are selected, in the order in which they are."""
    if SELECT in os.environ:
        order = {
            name: place
            for place, name in enumerate(json.loads(Path(os.environ[SELECT]).read_text()))
        }
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


def needs_postgres(item: pytest.Item) -> bool:
    """Whether a test starts a PostgreSQL server."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    fixtures: Sequence[str] = getattr(item, "fixturenames", ())
    return "postgresql" in parameters.values() or "postgres" in fixtures


class Coverage:
    """What each test executes, and how long it takes."""

    def __init__(self, folder: Path) -> None:
        import coverage  # pyright: ignore[reportMissingImports]

        self._file = folder / f"{os.getpid()}.json"
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._on_postgres: set[str] = set()
        source = [str(ROOT / "shared" / "turnfold" / package) for package in PACKAGES]
        self._coverage: Any = coverage.Coverage(
            data_file=None, source=source, concurrency=["thread", "greenlet"], config_file=False
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Give what runs from here on to the test."""
        self._coverage.switch_context(item.nodeid)
        if needs_postgres(item):
            self._on_postgres.add(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the time of a test; one that fails without a mutant shows nothing about mutants."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed or report.skipped:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write what was measured."""
        self._coverage.stop()
        data = self._coverage.get_data()
        names = sorted(self._seconds)
        numbers = {name: number for number, name in enumerate(names)}
        lines = {
            str(Path(file).relative_to(ROOT)): {
                line: [numbers[name] for name in contexts if name in numbers]
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        tests = [
            [name, self._seconds[name], name in self._failed, name in self._on_postgres]
            for name in names
        ]
        self._file.write_text(json.dumps({"tests": tests, "lines": lines}))
