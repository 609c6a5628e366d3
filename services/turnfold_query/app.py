"""The query service: it answers what a model should see next, over the bus and over HTTP, and writes nothing."""

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import structlog
import uvloop
from faststream import FastStream
from faststream.nats import NatsBroker
from nats.aio.msg import Msg

from turnfold.access.bearers import TokenRegistry, check_bind_address, is_loopback
from turnfold.bus.admission import ConcurrencyLimiter, shares_of
from turnfold.bus.broker import Broker
from turnfold.bus.connection import broker_options, connect
from turnfold.bus.streams import wait_for_streams
from turnfold.contracts.subjects import ERASED, INGESTED
from turnfold.errors import Unavailable
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.policy import explanation
from turnfold.process.http_server import HttpServer
from turnfold.process.ready import announce
from turnfold.process.watchdog import Watchdog
from turnfold.settings import Settings
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import next_seq, wait_for_schema
from turnfold.store.query.dead_letters import SqlDeadLetterStore
from turnfold.store.query.history import SqlHistoryStore
from turnfold.store.query.secrets import SIGNED_ACTORS, read_secret
from turnfold.store.query.window import AT_ONCE, SqlWindowStore
from turnfold_query.handlers import CONTEXT, QueryDispatcher, QueryServer, make_router
from turnfold_query.http.app import make_http
from turnfold_query.lane import Lane
from turnfold_query.metrics import QueryMetrics
from turnfold_query.windows import answering_of

log = structlog.get_logger()

LOOK_SECONDS = 0.05
"""How often it is looked whether events were ingested while somebody waits, should word of that get lost."""


SWITCH_SECONDS = 0.001
"""The event loop waits so long for a thread that computes; five times longer is usual."""
WAKE_SECONDS = 0.005
"""It is looked no more often than this, however often somebody says that something was ingested."""
FORGET_SECONDS = 0.2
"""The caches are emptied no more often than this."""


class Bounded:
    """Has something done when it is called for, but no more often than so: what is called for in between is done once, at its end."""

    def __init__(self, do: Callable[[], object], *, every_seconds: float) -> None:
        self._do = do
        self._every_seconds = every_seconds
        self._done_at = -math.inf
        self._later: asyncio.TimerHandle | None = None

    def call(self) -> None:
        """Do it now, or as soon as it may be done."""
        if self._later is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._done_at + self._every_seconds - loop.time()
        if wait <= 0:
            self._now()
        else:
            self._later = loop.call_later(wait, self._now)

    def _now(self) -> None:
        self._later = None
        self._done_at = asyncio.get_running_loop().time()
        self._do()


class NatsIngestSignal:
    """Wakes the requests that wait for an event. However many wait, one looks how far events are ingested."""

    def __init__(self, ingested_to: Callable[[], Awaitable[int]]) -> None:
        self._ingested_to = ingested_to
        self._told = asyncio.Event()
        self._telling = Bounded(self._told.set, every_seconds=WAKE_SECONDS)
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._looking: asyncio.Task[None] | None = None

    def tell(self) -> None:
        """Something was ingested."""
        self._telling.call()

    async def reached(self, seq: int, seconds: float) -> None:
        """Return when everything up to this sequence is ingested, or after so many seconds."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[mine] = seq
        if self._looking is None:
            self._told.clear()
            self._looking = asyncio.create_task(self._look(), name="arrivals")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await mine
        finally:
            del self._waiting[mine]

    async def _look(self) -> None:
        """Look when a worker says that it ingested something, and now and then, for as long as somebody waits."""
        try:
            while self._waiting:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._told.wait()
                self._told.clear()
                with contextlib.suppress(Unavailable):
                    self._wake(await self._ingested_to())
        finally:
            self._looking = None

    def _wake(self, ingested_to: int) -> None:
        for waiting, seq in self._waiting.items():
            if seq <= ingested_to and not waiting.done():
                waiting.set_result(None)


def main(settings: Settings, lane: Lane, *, http_host: str, http_port: int) -> int:
    """Run a query server with this lane until it is told to stop; the status to exit with."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, lane, http_host, http_port))
    return 0


async def _run(settings: Settings, lane: Lane, http_host: str, http_port: int) -> None:
    check_bind_address(
        http_host,
        has_tokens=settings.http_tokens is not None,
        is_checked_elsewhere=settings.http_checked_elsewhere,
    )
    bearers = TokenRegistry(settings.http_tokens) if settings.http_tokens is not None else None
    if bearers is not None and settings.http_certificate is None and not is_loopback(http_host):
        log.warning(
            "http.unencrypted",
            advice="tokens travel in the clear: set TURNFOLD_HTTP_CERTIFICATE, or encrypt in front",
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watchdog = Watchdog(settings.watchdog_seconds)
    watchdog.start()
    database = Database(settings.database_url, writes=False)
    try:
        await wait_for_schema(database)
        client = await connect(settings, name="query", seconds=60.0)
        try:
            await wait_for_streams(client)
            await _serve(settings, database, client, lane, stop, http_host, http_port, bearers)
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
    lane: Lane,
    stop: asyncio.Event,
    http_host: str,
    http_port: int,
    bearers: TokenRegistry | None,
) -> None:
    answering = answering_of(settings)
    metrics, histories, stored = (
        QueryMetrics(),
        SqlHistoryStore(database),
        SqlWindowStore(database, AT_ONCE),
    )
    arrivals = NatsIngestSignal(stored.ingested_to)
    questions = QueryDispatcher(
        windows=stored,
        histories=histories,
        lane=lane,
        answering=answering,
        arrivals=arrivals,
        metrics=metrics,
        request_seconds=settings.request_seconds,
        explain=explanation(
            settings.preset,
            settings.policy_of,
            settings.allowance,
            origins=settings.origins,
            short_names=frozenset(settings.short_overrides),
        ),
    )
    admission = ConcurrencyLimiter(shares_of(settings))
    desk = QueryServer(questions, metrics, admission)

    def broker_of(names: Iterable[str]) -> NatsBroker:
        made = Broker(
            **broker_options(settings, "query"),
            logger=None,
            graceful_timeout=5.0,
            apply_types=False,
        )
        made.include_router(make_router(desk, names))
        return made

    broker = broker_of(name for name in questions.shapes if name != CONTEXT)

    async def is_ready() -> list[str]:
        missing = [] if client.is_connected else ["the bus is not connected"]
        try:
            await next_seq(database)
        except Unavailable:
            missing.append("the database cannot be read")
        return missing

    def forget() -> None:
        stored.forget()
        answering.clear_caches()
        lane.forget()

    forgetting = Bounded(forget, every_seconds=FORGET_SECONDS)

    async def on_word(message: Msg) -> None:
        # Anybody may send it, as often as they like.
        if message.data == ERASED:
            forgetting.call()
        arrivals.tell()

    app = make_http(
        dispatcher=questions,
        histories=histories,
        dead_letters=SqlDeadLetterStore(database),
        client=client,
        metrics=metrics,
        limits=settings.event_limits,
        is_ready=is_ready,
        asyncapi=lambda: asyncapi_of(broker_of(questions.shapes)),
        admission=admission,
        memory_bytes=settings.max_body_memory,
        request_seconds=settings.request_seconds,
        bearers=bearers,
        read_secret=partial(read_secret, database, SIGNED_ACTORS),
    )
    listener = HttpServer(
        app,
        host=http_host,
        port=http_port,
        connections=settings.max_connections,
        certificate=settings.http_certificate,
        certificate_key=settings.http_certificate_key,
    )
    lane.on_death = metrics.lane_died
    try:
        await lane.start()
        await client.subscribe(INGESTED, cb=on_word)
        await desk.listen(client, CONTEXT)
        await broker.start()
        # One flush may overtake the subscriptions it should follow; a second cannot.
        for connection in (client, broker.config.connection_state.connection):
            await connection.flush()
            await connection.flush()
        await listener.opened()
        _settle()
        lane.on_change = partial(_tell_processes, lane)
        lane.on_change()
        log.info("query.started", pid=os.getpid(), port=http_port)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, listener.ended], return_when=asyncio.FIRST_COMPLETED)
    finally:
        listener.refuse()
        with contextlib.suppress(Exception):
            await broker.stop()
        await desk.close()
        await listener.close()
        log.info("query.stopped")


def _settle() -> None:
    """What is made by now stays: no collection needs to look at it, and there are few cycles to find afterwards."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(SWITCH_SECONDS)


def _tell_processes(lane: Lane) -> None:
    announce({"query": os.getpid()} | ({} if lane.pid is None else {"lane": lane.pid}))


def asyncapi_of(broker: NatsBroker) -> str:
    """The bus as an AsyncAPI document."""
    return FastStream(broker, logger=None).schema.to_specification().to_json()
