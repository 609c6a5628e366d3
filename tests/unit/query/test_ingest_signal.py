"""Requests that wait for an event are woken, whenever its signal came."""

import asyncio

import pytest

from turnfold.process.tasks import cancel_and_wait
from turnfold_query import ingest_signal
from turnfold_query.ingest_signal import NatsIngestSignal

LONG_SECONDS = 3_600


@pytest.mark.proves("W5")
async def test_what_was_ingested_just_before_a_request_waits_needs_no_further_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such requests waited for the next look, 50 ms later, with one already waiting or none."""
    monkeypatch.setattr(ingest_signal, "LOOK_SECONDS", LONG_SECONDS)
    sequence = 7

    async def ingested_to() -> int:
        return sequence

    signal = NatsIngestSignal(ingested_to)
    async with asyncio.timeout(30):
        signal.notify()
        await signal.reached(7, LONG_SECONDS)
        waiting = asyncio.create_task(signal.reached(9, LONG_SECONDS))
        sequence = 8
        signal.notify()
        await signal.reached(8, LONG_SECONDS)

        await signal.reached(8, LONG_SECONDS)

    assert not waiting.done()
    await cancel_and_wait(waiting)
    await signal.close()
