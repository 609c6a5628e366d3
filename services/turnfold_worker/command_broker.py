"""The FastStream broker of a worker: the requests that write."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from turnfold.bus.answering import most_answer_bytes
from turnfold.bus.broker import Broker
from turnfold.bus.connection import broker_options
from turnfold.bus.events import BusEvents
from turnfold.bus.stream_state import last_sequence
from turnfold.contracts.erasures import ErasedSessions
from turnfold.process.clock import now_ms
from turnfold.process.request_limits import ConcurrencyLimiter
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold.store.compact.requests import SqlSessionCommands
from turnfold.store.compact.versions import SqlVersionStore
from turnfold.store.database.secrets import SIGNED_ACTORS, read_secret
from turnfold.store.query.dead_letters import SqlDeadLetterStore
from turnfold.store.query.history import SqlHistoryStore
from turnfold_worker.actors import Actors, watched
from turnfold_worker.commands import Commands
from turnfold_worker.context import WorkerContext
from turnfold_worker.handlers import CommandServer


@asynccontextmanager
async def command_broker(
    context: WorkerContext,
    *,
    on_change: Callable[[], object],
    on_erased: Callable[[ErasedSessions], Awaitable[None]],
    ingested_to: Callable[[], Awaitable[int]],
) -> AsyncGenerator[None]:
    """Answer requests that write in the body. On leaving it, finish the running requests.

    The callbacks are those of `Commands`.
    """
    database = context.database
    secret = partial(read_secret, database, SIGNED_ACTORS)
    actors = Actors(read_secret=secret, now_ms=now_ms)
    server = CommandServer(ConcurrencyLimiter(context.settings), actors)
    broker = Broker(watched(broker_options(context.settings, "worker"), actors.probe))
    commands = Commands(
        sessions=SqlSessionCommands(database),
        versions=SqlVersionStore(database),
        campaigns=SqlCampaignStore(database),
        histories=SqlHistoryStore(database),
        letters=SqlDeadLetterStore(database),
        stream=BusEvents(
            context.client,
            read_secret=secret,
            on_foreign=context.telemetry.metrics.foreign.inc,
        ),
        installation=context.installation,
        now_ms=now_ms,
        last_seq=lambda: last_sequence(context.client),
        ingested_to=ingested_to,
        most_answer_bytes=lambda: most_answer_bytes(context.client),
        on_change=on_change,
        on_erased=on_erased,
    )
    for name, handle in commands.handlers().items():
        server.listen(broker, name, handle)
    async with _started(broker, actors, server):
        yield


@asynccontextmanager
async def _started(broker: Broker, actors: Actors, server: CommandServer) -> AsyncGenerator[None]:
    # The probe must have settled before the first request arrives.
    await actors.probe.attach(await broker.connect())
    await broker.start()
    try:
        yield
    finally:
        await broker.finish(server.close)
