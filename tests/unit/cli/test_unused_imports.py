"""Services and commands do not load what their libraries import for others."""

import os
import subprocess
import sys

LOADED = """
import sys
from turnfold.cli.services import unused_imports_skipped

with unused_imports_skipped():
    import turnfold_migrations, turnfold_query.app, turnfold_worker.app
print(*sorted(name for name in sys.modules if name in {names}))
import rich
"""
UNUSED = {"aiohttp", "litellm", "pydantic.v1", "rich", "sqlalchemy.orm", "toktok", "typer"}


def test_services_load_nothing_of_this_and_the_process_may_load_it_afterwards() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(names=UNUSED)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


COMMAND = """
import sys
from turnfold.cli import main

try:
    main(["search", "support", "mia", "words"])
except SystemExit:
    print(*sorted(name for name in sys.modules if name in {names}))
import aiohttp
from aiohttp.web import Application
print(aiohttp.ClientSession.__name__, Application.__name__)
"""


def test_a_command_loads_a_package_for_other_urls_when_it_is_used() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            COMMAND.format(names={"aiohttp.client", "turnfold.core.summary.prompt"}),
        ],
        env=os.environ | {"TURNFOLD_NATS_URL": "nats://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.splitlines()) == (0, ["", "ClientSession Application"])
    assert "no server answers" in done.stderr
