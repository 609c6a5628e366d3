"""The query service: answers requests that read, over NATS and HTTP, and never writes."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial

import nats.errors
import structlog
import uvloop
from nats.aio.client import Client
from starlette.types import ASGIApp

from turnfold.access.bearers import TokenRegistry, check_bind_address, is_loopback
from turnfold.bus.broker import Broker
from turnfold.bus.connection import broker_options, connect
from turnfold.bus.streams import wait_for_streams
from turnfold.contracts.catalog import wildcard_subject
from turnfold.contracts.subjects import QUERY_QUEUE
from turnfold.errors import Unavailable
from turnfold.model_info.context_windows import installed_windows
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.policy import Explain, explanation
from turnfold.process.child_process import ChildProcess
from turnfold.process.http_server import STOP_SECONDS, HttpServer
from turnfold.process.memory import return_freed_memory
from turnfold.process.ready import ProcessAnnouncer
from turnfold.process.request_limits import ConcurrencyLimiter
from turnfold.process.scheduling import tune_interpreter
from turnfold.process.tasks import at_most, cancel_and_wait, stop_event, unless
from turnfold.process.watchdog import Watchdog
from turnfold.settings import Settings, redacted
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import wait_for_schema
from turnfold.store.database.secrets import SIGNED_ACTORS, read_secret
from turnfold.store.database.sequence_ranges import whole_to
from turnfold.store.query.agent_lists import SqlAgentLists
from turnfold.store.query.dead_letters import SqlDeadLetterStore
from turnfold.store.query.history import SqlHistoryStore
from turnfold.store.query.inspection import SqlInspectionStore
from turnfold.store.query.recall import SqlRecallStore
from turnfold.store.query.window import AT_ONCE, SqlWindowStore
from turnfold_query.asyncapi import asyncapi_document
from turnfold_query.environment import query_environment
from turnfold_query.erasures import ErasureFollower, erasure_follower
from turnfold_query.handlers import DIRECT, REQUEST_MODELS, QueryDispatcher, QueryServer
from turnfold_query.hints import HintSender
from turnfold_query.http.app import make_http
from turnfold_query.http.changes import ChangeStreams
from turnfold_query.http.inspections import Inspector
from turnfold_query.http.service import PROBE_SECONDS
from turnfold_query.ingest_signal import NatsIngestSignal, follow_notices
from turnfold_query.lane.parent import Lane
from turnfold_query.metrics import QueryMetrics
from turnfold_query.newest import NewestLookup

log = structlog.get_logger()


def main(settings: Settings, lane_process: ChildProcess | None) -> int:
    """Run a query server until a signal stops it, and return its exit status."""
    uvloop.run(_run(settings, lane_process))
    return 0


async def _run(settings: Settings, lane_process: ChildProcess | None) -> None:
    check_bind_address(
        settings.http_host,
        has_tokens=settings.http_tokens is not None,
        is_checked_elsewhere=settings.http_checked_elsewhere,
    )
    bearers = TokenRegistry(settings.http_tokens) if settings.http_tokens is not None else None
    is_plain = settings.http_certificate is None and not is_loopback(settings.http_host)
    if bearers is not None and is_plain:
        log.warning(
            "http.unencrypted",
            advice="tokens travel in the clear: set TURNFOLD_HTTP_CERTIFICATE, or encrypt in front",
        )
    stop = stop_event()
    watchdog = Watchdog(settings.watchdog_seconds)
    watchdog.start()
    # Only workers write: a query server that has a fault cannot harm the database.
    database = Database(settings.database_url, writes=False)
    metrics, announcer = QueryMetrics(), ProcessAnnouncer("query")
    lane = Lane(
        lane_process, on_change=partial(announcer.update, "lane"), on_death=metrics.lane_deaths.inc
    )
    try:
        # If `stop` is set, the next wait ends at once as well, so that one check is enough.
        await unless(stop, wait_for_schema(database))
        client = await unless(stop, connect(settings, name="query", seconds=60.0))
        if client is None:
            return
        try:
            if await unless(stop, wait_for_streams(client)) is not None:
                await _serve(
                    settings,
                    database,
                    client,
                    lane=lane,
                    metrics=metrics,
                    announcer=announcer,
                    bearers=bearers,
                    stop=stop,
                )
        finally:
            with contextlib.suppress(Exception):
                await client.close()
    finally:
        await lane.close()
        await database.close()
        watchdog.stop()


async def _serve(
    settings: Settings,
    database: Database,
    client: NatsClient,
    *,
    lane: Lane,
    metrics: QueryMetrics,
    announcer: ProcessAnnouncer,
    bearers: TokenRegistry | None,
    stop: asyncio.Event,
) -> None:
    windows, recall = SqlWindowStore(database, AT_ONCE), SqlRecallStore(database)
    model_windows = installed_windows()
    # At the start, and not in the first request, while others wait.
    model_windows.read()
    environment = query_environment(settings, recall, model_windows)
    hints = HintSender(client.publish)
    ingest_signal = NatsIngestSignal(windows.ingested_to)
    dispatcher = QueryDispatcher(
        windows=windows,
        histories=SqlHistoryStore(database),
        lists=SqlAgentLists(database),
        lane=lane,
        environment=environment,
        ingest_signal=ingest_signal.reached,
        newest=NewestLookup(client, windows.ingested_to),
        hints=hints,
        metrics=metrics,
        request_seconds=settings.request_seconds,
        explain=_explanation_of(settings),
    )
    limiter = ConcurrencyLimiter(settings)
    server = QueryServer(dispatcher, metrics, limiter)
    broker = Broker(broker_options(settings, "query"))
    for name in REQUEST_MODELS.keys() - DIRECT:
        broker.listen(wildcard_subject(name), QUERY_QUEUE, partial(server.take, name))
    app = _http_app(
        settings, database, client, dispatcher, metrics, limiter, bearers, is_stopping=stop.is_set
    )
    http_server = _http_server(app, settings)

    erasures = erasure_follower(database, windows, recall, environment)
    sending = asyncio.create_task(hints.run(), name="hints")
    trimming = asyncio.create_task(return_freed_memory(), name="memory")
    forgetting = asyncio.create_task(erasures.run(), name="erasures")
    try:
        begun = _begin(client, lane, ingest_signal, erasures, server, broker, http_server)
        if await unless(stop, begun):
            # After the start: objects that exist by now are exempt from garbage collection.
            tune_interpreter()
            announcer.begin({"lane": lane.pid})
            log.info("query.started", pid=os.getpid(), port=http_server.port)
            await http_server.until(stop)
    finally:
        await at_most(STOP_SECONDS, _stop(http_server, broker, server))
        # After `_stop`, because the requests that end there may still wait for an event.
        await ingest_signal.close()
        await cancel_and_wait(sending, trimming, forgetting)
    log.info("query.stopped")


async def _begin(
    client: NatsClient,
    lane: Lane,
    ingest_signal: NatsIngestSignal,
    erasures: ErasureFollower,
    server: QueryServer,
    broker: Broker,
    http_server: HttpServer,
) -> bool:
    """Take requests; return True, which tells it from an interrupted start."""
    await lane.start()

    def on_erased() -> None:
        erasures.notify()
        lane.notify_of_erasure()

    # Before any request: a session that was cached before would outlive its erasure in memory.
    await follow_notices(client, on_ingested=ingest_signal.notify, on_erased=on_erased)
    for name in DIRECT:
        await server.listen(client, name)
    await broker.start()
    # Before the announcement, or a request that follows it may find no responder.
    await _confirm_subscriptions(client, broker.config.connection_state.connection)
    await http_server.open()
    return True


async def _stop(http_server: HttpServer, broker: Broker, server: QueryServer) -> None:
    """Refuse new connections, then new requests, and wait for the running ones."""
    http_server.refuse()
    await asyncio.gather(broker.finish(server.close), http_server.close())


def _explanation_of(settings: Settings) -> Explain:
    return explanation(
        settings.preset,
        settings.policy_of,
        settings.allowance,
        origins=settings.origins,
        short_names=frozenset(settings.short_overrides),
    )


async def _confirm_subscriptions(*connections: Client) -> None:
    for connection in connections:
        # If the bus is away, it hears of the subscriptions when it is back.
        with contextlib.suppress(nats.errors.TimeoutError):
            await connection.flush()


def _http_app(
    settings: Settings,
    database: Database,
    client: NatsClient,
    dispatcher: QueryDispatcher,
    metrics: QueryMetrics,
    limiter: ConcurrencyLimiter,
    bearers: TokenRegistry | None,
    *,
    is_stopping: Callable[[], bool],
) -> ASGIApp:
    async def is_ready() -> list[str]:
        missing = [] if client.is_connected else ["the bus is not connected"]
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await database.snapshot(whole_to)
        except (Unavailable, TimeoutError):
            missing.append("the database cannot be read")
        return missing

    histories, inspections = SqlHistoryStore(database), SqlInspectionStore(database)
    return make_http(
        dispatcher=dispatcher,
        histories=histories,
        dead_letters=SqlDeadLetterStore(database),
        inspector=Inspector(
            inspections,
            histories,
            request_seconds=settings.request_seconds,
            windows=lambda: metrics.windows,
            system=redacted(settings.nats_url),
        ),
        streams=ChangeStreams(inspections, is_stopping),
        client=client,
        metrics=metrics,
        limits=settings.event_limits,
        is_ready=is_ready,
        asyncapi=lambda: asyncapi_document(redacted(settings.nats_url)),
        limiter=limiter,
        memory_bytes=settings.max_body_memory,
        request_seconds=settings.request_seconds,
        bearers=bearers,
        is_local=not settings.http_checked_elsewhere,
        read_secret=partial(read_secret, database, SIGNED_ACTORS),
    )


def _http_server(app: ASGIApp, settings: Settings) -> HttpServer:
    return HttpServer(
        app,
        host=settings.http_host,
        port=settings.http_port,
        port_setting="TURNFOLD_HTTP_PORT",
        connections=settings.max_connections,
        certificate=settings.http_certificate,
        certificate_key=settings.http_certificate_key,
    )
