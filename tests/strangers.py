"""Listeners that reply to everything: ordinary subscribers of FastStream, whose return values go to whoever waits for a reply."""

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
from faststream.nats import NatsBroker

from turnfold.contracts.subjects import (
    AGENT_READS,
    AGENT_WRITES,
    ASKED,
    ERASURES,
    EVENTS_SUBJECTS,
    INGESTED,
    INSTALLATION_REQUESTS,
    NOTICES_SUBJECTS,
    READS,
    WRITES,
)

STREAMED = (*EVENTS_SUBJECTS, *NOTICES_SUBJECTS)
"""What travels into a stream, and is acknowledged by it."""
EVERY_SUBJECT = (
    *STREAMED,
    *(f"{name}.>" for name in (*READS, *AGENT_READS, *WRITES, *AGENT_WRITES)),
    *INSTALLATION_REQUESTS,
    INGESTED,
    f"{ASKED}.>",
    f"{ERASURES}.>",
    "$JS.API.>",
)
"""What listeners hear: events, notices, requests, words between services, and requests to JetStream."""


def replies() -> Iterator[Any]:
    """Everything that handlers return, in turn; forged acknowledgements among it."""
    sequences = itertools.count(1)
    while True:
        yield None
        yield ""
        yield {"ok": True}
        yield {"stream": "TURNFOLD_EVENTS", "seq": 1}
        yield {"stream": "TURNFOLD_NOTICES", "seq": next(sequences)}
        yield ["a", "list"]
        yield 7
        yield {"stream": "TURNFOLD_EVENTS", "seq": 1, "duplicate": True}
        yield {"stream": "TURNFOLD_EVENTS", "seq": 10**9 + next(sequences)}
        yield {"error": None}


@asynccontextmanager
async def listening(urls: Sequence[str]) -> AsyncGenerator[Counter[str]]:
    """Reply to everything on a bus, and count what was heard, by the name of its subject."""
    broker = NatsBroker(
        list(urls), logger=None, allow_reconnect=True, max_reconnect_attempts=-1, error_cb=_ignore
    )
    heard: Counter[str] = Counter()
    following = replies()

    def handler(name: str) -> Callable[[bytes], Any]:
        async def on_message(_: bytes) -> Any:
            heard[name] += 1
            return next(following)

        return on_message

    for subject in EVERY_SUBJECT:
        broker.subscriber(subject, decoder=_as_it_came)(handler(subject.removesuffix(".>")))
    await broker.start()
    try:
        yield heard
    finally:
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            await broker.stop()


async def _as_it_came(message: Any) -> bytes:
    return bytes(message.body)


async def _ignore(_: Exception) -> None:
    """A bus that is killed is no trouble of a listener's."""


def told_of(heard: Counter[str]) -> str:
    """What was heard, for a person."""
    return json.dumps(heard, sort_keys=True)
