"""Many inputs for many decoders: what was tried, what failed, and how long and how much memory the worst took."""

import resource
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.fuzz.decoders import DECODERS, Decoder

BATCH = 500
MOST_SECONDS = 2.0
"""Processor time that one input of 16 KiB may take on any machine; most take a ten-thousandth of it."""
MOST_BYTES = 256 * 1024 * 1024
"""By how much all inputs of a batch together may raise what a process uses at most."""


@dataclass(slots=True)
class Tried:
    """What came of the inputs of one decoder; `failures` are their numbers and faults, `seconds` is processor time."""

    decoder: str
    inputs: int = 0
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)
    grown_bytes: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Tried") -> None:
        """Take in another batch."""
        self.inputs += other.inputs
        self.seconds += other.seconds
        self.slowest = max(self.slowest, other.slowest)
        self.grown_bytes = max(self.grown_bytes, other.grown_bytes)
        self.failures += other.failures


def tried(decoder: Decoder, numbers: Iterable[int], *, seed: int) -> Tried:
    """Hand a decoder the inputs of these numbers."""
    found = Tried(decoder.name)
    before = _peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            data = decoder.input(seed, number)
            began = time.process_time()
            fault = decoder.fault(data, Path(folder))
            took = time.process_time() - began
            found.inputs += 1
            found.seconds += took
            found.slowest = max(found.slowest, (took, number))
            if fault is None and took > MOST_SECONDS:
                fault = f"it took {took:.1f} s"
            if fault is not None:
                found.failures.append((number, fault))
    found.grown_bytes = _peak_bytes() - before
    if found.grown_bytes > MOST_BYTES:
        found.failures.append(
            (found.slowest[1], f"memory grew by {found.grown_bytes:,} bytes in this batch")
        )
    return found


def all_tried(
    inputs: int, *, seed: int, processes: int, only: Sequence[str] = ()
) -> Iterator[Tried]:
    """So many inputs, shared evenly among the decoders, a batch at a time as it is done."""
    chosen = [decoder for decoder in DECODERS if not only or decoder.name in only]
    each = -(-inputs // len(chosen))
    batches = [
        (decoder.name, range(start, min(start + BATCH, each)))
        for start in range(0, each, BATCH)
        for decoder in chosen
    ]
    work = partial(_batch, seed=seed)
    if processes == 1:
        yield from map(work, batches)
        return
    with ProcessPoolExecutor(processes) as pool:
        for done in as_completed([pool.submit(work, batch) for batch in batches]):
            yield done.result()


def named(name: str) -> Decoder:
    """The decoder of this name."""
    return next(decoder for decoder in DECODERS if decoder.name == name)


def _batch(batch: tuple[str, Sequence[int]], *, seed: int) -> Tried:
    name, numbers = batch
    return tried(named(name), numbers, seed=seed)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
