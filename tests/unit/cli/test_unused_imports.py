"""Services do not load what their libraries import for others."""

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
