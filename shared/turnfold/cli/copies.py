"""The modules that `turnfold up` loads, so that its services are copies of it and share memory."""

import gc
import importlib
from collections.abc import Iterator
from typing import Final

from turnfold.cli.services import unused_imports_skipped
from turnfold.process.memory import trim_memory

MIGRATION: Final = "turnfold_migrations"
SERVICES: Final = (
    "turnfold_worker.app",
    "turnfold_worker.receiver.child",
    "turnfold_query.app",
    "turnfold_query.lane.child",
)
"""The modules of a worker, a query server and their children.

Only a proxy uses its own modules, and only a first start Alembic, so they load in the copy.
"""


def load() -> Iterator[str]:
    """Load the services; yield the name of each one when it may be copied."""
    gc.disable()
    try:
        with unused_imports_skipped():
            importlib.import_module(MIGRATION)
            # Without a collection first, which would take 0.1 s and find next to nothing.
            gc.freeze()
            # It works while the others load.
            yield "migrate"
            for module in SERVICES:
                importlib.import_module(module)
            from turnfold.model_info.context_windows import installed_windows
            from turnfold.model_info.tokenizer import load_counter

            # The tables of the tokenizer are only complete after a first count.
            load_counter()("first")
            installed_windows().read()
            # Otherwise this process and its copies keep the megabytes that loading has freed.
            trim_memory()
            gc.freeze()
            yield from ("worker", "query", "proxy")
    finally:
        gc.enable()
