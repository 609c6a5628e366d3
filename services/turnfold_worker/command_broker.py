"""The FastStream broker of a worker: the requests that write."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from turnfold.bus.admission import ConcurrencyLimiter, shares_of
from turnfold.bus.broker import Broker
from turnfold.bus.connection import broker_options
from turnfold.bus.events import BusEvents
from turnfold.bus.stream_state import last_sequence
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold.store.compact.requests import SqlSessionCommands
from turnfold.store.compact.versions import SqlVersionStore
from turnfold.store.database.secrets import SIGNED_ACTORS, read_secret
from turnfold.store.query.dead_letters import SqlDeadLetterStore
from turnfold.store.query.history import SqlHistoryStore
from turnfold_worker.actors import Actors, watched
from turnfold_worker.context import WorkerContext, now_ms
from turnfold_worker.dead_letters import make_letters_router
from turnfold_worker.edits import make_edits_router
from turnfold_worker.handlers import CommandServer, make_request_router
from turnfold_worker.versions import make_campaigns_router, make_versions_router


@asynccontextmanager
async def command_broker(
    context: WorkerContext,
    *,
    on_change: Callable[[], object],
    on_erased: Callable[[], object],
    ingested_to: Callable[[], Awaitable[int]],
) -> AsyncGenerator[None]:
    """Answer requests that write in the body. On leaving it, finish the running requests.

    `on_change` is called after each request that may have opened jobs or written notices, and
    `on_erased` after each erasure. `ingested_to` returns up to where all events are stored.
    """
    database, installation = context.database, context.installation
    actors = Actors(read_secret=partial(read_secret, database, SIGNED_ACTORS), now_ms=now_ms)
    stream = BusEvents(context.client, on_foreign=context.telemetry.metrics.disturbed)
    server = CommandServer(ConcurrencyLimiter(shares_of(context.settings)), actors)
    broker = Broker(
        **watched(broker_options(context.settings, "worker"), actors.probe),
        logger=None,
        graceful_timeout=5.0,
        apply_types=False,
    )
    broker.include_routers(
        make_request_router(
            commands=SqlSessionCommands(database),
            installation=installation,
            now_ms=now_ms,
            on_change=on_change,
            last_seq=lambda: last_sequence(context.client),
            ingested_to=ingested_to,
            on_erased=on_erased,
            server=server,
        ),
        make_versions_router(
            store=SqlVersionStore(database),
            histories=SqlHistoryStore(database),
            installation=installation,
            now_ms=now_ms,
            on_change=on_change,
            server=server,
        ),
        make_campaigns_router(
            store=SqlCampaignStore(database),
            installation=installation,
            now_ms=now_ms,
            on_change=on_change,
            server=server,
        ),
        make_letters_router(
            store=SqlDeadLetterStore(database), stream=stream, now_ms=now_ms, server=server
        ),
        make_edits_router(
            store=SqlHistoryStore(database), stream=stream, ingested_to=ingested_to, server=server
        ),
    )
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
        with suppress(Exception):
            await broker.stop()
        await server.close()
