"""The process that weighs while events come faster than the worker's own process can weigh and store them.

It has no bus and no database, ends with the worker however that ends, and loads as little as it can.
"""

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from threading import Thread

from turnfold.contracts.events import Limits
from turnfold.operations.weighing import Batch, Delivery, weigh_all
from turnfold.vocabulary import load_counter

_counters: list[Callable[[str], int]] = []


def begin() -> None:
    """Load the vocabulary, and leave interrupts to the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_worker, daemon=True).start()
    _counters.append(load_counter())


def weigh(deliveries: Sequence[Delivery], limits: Limits, image_tokens: int) -> Batch:
    """Read and weigh a batch."""
    return weigh_all(deliveries, count=_counters[0], limits=limits, image_tokens=image_tokens)


def _end_with_worker() -> None:
    worker = parent_process()
    if worker is not None:
        worker.join()
    os._exit(0)
