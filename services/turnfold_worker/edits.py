"""The request that retracts the newest messages of a session."""

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from faststream.nats import NatsRouter

from turnfold.contracts.history_requests import PopRequest
from turnfold.contracts.reading import (
    read_command,
)
from turnfold.contracts.subjects import key_of_subject
from turnfold.messages import SessionKey
from turnfold.operations.query.pop import pop
from turnfold.ports.admin import RetractionStream
from turnfold.ports.query import (
    HistoryStore,
)
from turnfold_worker.handlers import CommandServer

POP = "session.pop"


def make_edits_router(
    *,
    store: HistoryStore,
    stream: RetractionStream,
    ingested_to: Callable[[], Awaitable[int]],
    server: CommandServer,
) -> NatsRouter:
    """Route the request that retracts the newest messages."""
    router = NatsRouter()
    # Requests of one session take turns here, so that they need not try again.
    locks: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    async def on_pop(subject: str, body: bytes, _: str) -> str:
        key = key_of_subject(POP, subject)
        request = read_command(PopRequest, key, body)
        assert isinstance(key, SessionKey)
        async with locks.setdefault(key, asyncio.Lock()):
            return await pop(key, request, store=store, stream=stream, ingested_to=ingested_to)

    server.listen(router, POP, 2, on_pop)
    return router
