"""The imports of services, commands and summarizers, and their vocabulary, loaded before processes are forked."""

import gc
import logging
import pkgutil
from contextlib import suppress
from importlib import import_module

import turnfold.cli
from turnfold.errors import StartError
from turnfold.model_info.tokenizer import load_counter
from turnfold.models.call import load_litellm

for found in pkgutil.iter_modules(turnfold.cli.__path__):
    if not found.name.startswith("_"):
        import_module(f"turnfold.cli.{found.name}")
for name in (
    "alembic.command",
    "tests.chaos.crashing_worker",
    "tests.forked_processes",
    "turnfold.models.child",
    "turnfold_migrations",
    "turnfold_proxy.app",
    "turnfold_query.app",
    "turnfold_query.lane.child",
    "turnfold_worker.app",
    "turnfold_worker.receiver.child",
):
    import_module(name)
load_counter()
with suppress(StartError):  # environments of hosts may lack it
    load_litellm()
# It silences the summarizer, and no service.
logging.disable(logging.NOTSET)
# A collection of garbage would copy the pages that processes share.
gc.freeze()
