"""What every test gets: a known environment, examples that repeat, and a PostgreSQL when it asks for one."""

import gc
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

from tests import fork_server
from tests.postgres import Postgres, running_postgres
from turnfold.observability.logs import log_exception

# `ci` finds the same examples everywhere, and so does `deep`, a step of .ci/run, which finds four times as many;
# `search` looks for new ones: make test HYPOTHESIS_PROFILE=search.
# Explaining a failure took longer than the timeout of a test, which then hid the failure.
settings.register_profile(
    "ci",
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.target, Phase.shrink],
)
settings.register_profile("deep", settings.get_profile("ci"), max_examples=100)
settings.register_profile(
    "search",
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Settings of somebody's own system must not reach the systems under test, nor their child processes. Unbuffered streams hide errors that
# users see: a full disk is noticed only when the output ends.
for name in [name for name in os.environ if name.startswith(("TURNFOLD_", "PYTHONUNBUFFERED"))]:
    del os.environ[name]

# Exceptions are logged as services log them: structlog's own tracebacks, with all variables, took half a second each.
*steps, renderer = structlog.get_config()["processors"]
structlog.configure(processors=[*steps, log_exception, renderer])


FORK_NOTHING = {"contract", "property", "unit"}
"""Folders of tests that need no processes."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Begin the server from which all testers fork processes."""
    if any(FORK_NOTHING.isdisjoint(Path(name).parts) for name in node.config.args):
        node.workerinput["fork_server"] = fork_server.begin()


def pytest_configure(config: pytest.Config) -> None:
    """Fork from the server that was begun for all testers."""
    if begun := getattr(config, "workerinput", {}).get("fork_server"):
        fork_server.use(begun)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the modules and tests that stay until the end: that took a quarter of this time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


WAITING = ("chaos", "console", "journeys", "services")
"""Folders of tests that wait for processes, timers and disks; other tests compute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that wait among those that compute, so that no core is idle; the short ones of tests/unit fill up the end."""
    groups: dict[str, list[Path]] = {"waiting": [], "computing": [], "unit": []}
    for path in dict.fromkeys(item.path for item in items):
        folder = path.relative_to(Path(__file__).parent).parts[0]
        name = "waiting" if folder in WAITING else "unit" if folder == "unit" else "computing"
        groups[name].append(path)
    places = {
        path: (name == "unit", (number + 0.5) / len(group))
        for name, group in groups.items()
        for number, path in enumerate(group)
    }
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server for the whole run, started by the first test that asks."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def sql(request: pytest.FixtureRequest) -> Postgres | None:
    """Where databases are for a test of both kinds: on this server, or in files where it is None."""
    server: Postgres | None = (
        request.getfixturevalue("postgres") if request.param == "postgresql" else None
    )
    return server


@pytest.fixture
async def postgres_url(postgres: Postgres) -> AsyncIterator[str]:
    """The URL of an empty database of the test's own, as `TURNFOLD_DATABASE_URL` wants it."""
    database = await postgres.create_database()
    yield postgres.url(database)
    await postgres.drop_database(database)
