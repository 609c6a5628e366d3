"""Windows, batches and jobs leave nothing behind that only the garbage collector finds.

A query server collects seldom. Garbage that waits for it takes a gigabyte within half an hour of
load, and each collection then holds up all requests for seconds.
"""

import gc
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.contract.query.test_recall import Asker
from tests.contract.query.test_search import indexed
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    retracted,
    summary,
    tool,
    turn,
    turns,
    user,
)
from turnfold.cache import SessionCaches
from turnfold.errors import CannotFit
from turnfold.store.database import inline_reader


@contextmanager
def garbage_found() -> Generator[Counter[str]]:
    """Count the product's objects that die meanwhile, but only for the collector."""
    found = Counter[str]()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(
            type(one).__qualname__
            for one in gc.garbage
            if type(one).__module__.partition(".")[0] == "turnfold"
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.proves("O9", "L8")
@pytest.mark.parametrize("is_far", [False, True])
async def test_windows_leave_no_garbage_for_the_collector(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, *, is_far: bool
) -> None:
    """O9: also where windows are read in a thread, as after a slow read."""
    if is_far:
        monkeypatch.setattr(inline_reader, "PAUSE_SECONDS", 600.0)
        monkeypatch.setattr(inline_reader, "SLOW_SECONDS", -1.0)
    await stores.ingest(*turns(1, 9))
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary("They chose port 8443."), reason=None, now_ms=NOON)
    results = [tool(f"c{number}", "a line of a log\n" * 90) for number in range(4)]
    calls = [assistant(None, f"c{number}") for number in range(4)]
    work = [one for pair in zip(calls, results, strict=True) for one in pair]
    await stores.ingest(turn(10, user("Read the question 3."), *work, user("so?")))
    asker = Asker(stores)

    with garbage_found() as garbage:
        for seq, budget in enumerate((4_000, 900, 500, 20), start=11):
            try:
                await asker.told(max_tokens=budget)
                await asker.told(max_tokens=budget, format="anthropic", placement="user")
            except CannotFit:
                assert budget == 20
            await stores.ingest(turn(seq, user(f"and {seq}?")))
            await asker.told(max_tokens=max(budget, 500), entries=True)
        SessionCaches(*asker.environment.caches).clear()

    assert not garbage


@pytest.mark.proves("O9")
async def test_batches_and_jobs_leave_no_garbage_for_the_collector(stores: Stores) -> None:
    with garbage_found() as garbage:
        for number in range(3):
            await stores.ingest(*turns(1 + 10 * number, 7))
            await stores.ingest(retracted(9 + 10 * number, f"e{7 + 10 * number}#0"))
            await indexed(stores)
            for job in await stores.claim():
                work = await stores.jobs.load(job, now_ms=NOON)
                await stores.jobs.commit(
                    job, summary("They spoke."), leaving=work.leaving, reason=None, now_ms=NOON
                )
        await stores.history.page(KEY, after_position=0, limit=100)

    assert not garbage
