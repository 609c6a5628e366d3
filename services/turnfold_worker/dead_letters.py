"""The request that publishes dead letters again."""

from collections.abc import Callable, Mapping
from typing import Any

from faststream.nats import NatsRouter

from turnfold.contracts.reading import (
    read_command,
)
from turnfold.contracts.requests import (
    ReplayRequest,
)
from turnfold.operations.query import dead_letters as letters
from turnfold.ports.admin import DeadLetterStore, EventStream
from turnfold_worker.handlers import CommandServer

REPLAY = "deadletters.replay"


def make_letters_router(
    *, store: DeadLetterStore, stream: EventStream, now_ms: Callable[[], int], server: CommandServer
) -> NatsRouter:
    """Route the request that publishes dead letters again."""
    router = NatsRouter()

    async def on_replay(_: str, body: bytes, __: str) -> Mapping[str, Any]:
        return await letters.replay(
            read_command(ReplayRequest, None, body), store=store, stream=stream, now_ms=now_ms
        )

    server.listen(router, REPLAY, 0, on_replay)
    return router
