"""The query service: it answers what a model should see next, over the bus and over HTTP, and writes nothing."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Iterable

import structlog
import uvloop
from faststream import FastStream
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.aio.msg import Msg

from turnfold.access.bearers import Bearers, check_listening, is_loopback
from turnfold.bus.admission import Admission
from turnfold.bus.connection import broker_options, connect
from turnfold.bus.streams import wait_for_streams
from turnfold.contracts.subjects import ERASED, INGESTED
from turnfold.embedded.ready import announce
from turnfold.errors import Unavailable
from turnfold.listening import Listener
from turnfold.model_windows import ModelWindows
from turnfold.operations.query import Answering
from turnfold.operations.rules import policy_rule
from turnfold.settings import Settings
from turnfold.store.belonging import next_seq, wait_for_schema
from turnfold.store.engine import Database
from turnfold.store.history import SqlHistory
from turnfold.store.letters import SqlLetters
from turnfold.store.search import SqlSearch
from turnfold.store.window import SqlWindows
from turnfold.watchdog import Watchdog
from turnfold_query.handlers import CONTEXT, Desk, Questions, make_router
from turnfold_query.http import Admitted, make_http
from turnfold_query.metrics import Metrics

log = structlog.get_logger()

LOOK_SECONDS = 0.05
"""How often a waiting request looks by itself, should word of an ingest get lost."""


class Word:
    """Word from the workers that something was ingested."""

    def __init__(self) -> None:
        self._told = asyncio.Event()

    async def tell(self, _: object = None) -> None:
        """Wake everybody who waits."""
        self._told.set()
        self._told = asyncio.Event()

    async def next(self, seconds: float) -> None:
        """Return when told, or when it is time to look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, LOOK_SECONDS)):
                await self._told.wait()


def main(settings: Settings, *, http_host: str, http_port: int) -> int:
    """Run a query server until it is told to stop; the status to exit with."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, http_host, http_port))
    return 0


async def _run(settings: Settings, http_host: str, http_port: int) -> None:
    check_listening(http_host, has_tokens=settings.http_tokens is not None, is_checked_elsewhere=settings.http_checked_elsewhere)
    bearers = Bearers(settings.http_tokens) if settings.http_tokens is not None else None
    if bearers is not None and settings.http_certificate is None and not is_loopback(http_host):
        log.warning("http.unencrypted", advice="tokens travel in the clear: set TURNFOLD_HTTP_CERTIFICATE, or encrypt in front")
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
            await _serve(settings, database, client, stop, http_host, http_port, bearers)
        finally:
            with contextlib.suppress(Exception):
                await client.close()
    finally:
        await database.close()
        watchdog.stop()


async def _serve(
    settings: Settings,
    database: Database,
    client: Client,
    stop: asyncio.Event,
    http_host: str,
    http_port: int,
    bearers: Bearers | None,
) -> None:
    windows = ModelWindows()
    answering = Answering(
        policy=policy_rule(settings.preset, settings.policy_of),
        model_window=lambda model, policy: windows(model, override=policy.context_window),
    )
    word, metrics, histories = Word(), Metrics(), SqlHistory(database)
    stored = SqlWindows(database)
    questions = Questions(
        windows=stored,
        histories=histories,
        searching=SqlSearch(database),
        answering=answering,
        arrivals=word,
        metrics=metrics,
    )
    admission = Admission(settings.max_requests)
    desk = Desk(questions, metrics, admission)

    def broker_of(names: Iterable[str]) -> NatsBroker:
        made = NatsBroker(**broker_options(settings, "query"), logger=None, graceful_timeout=5.0, apply_types=False)
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

    async def on_word(message: Msg) -> None:
        if message.data == ERASED:
            stored.forget()
            answering.forget()
        await word.tell()

    app = make_http(
        questions=questions,
        histories=histories,
        dead_letters=SqlLetters(database),
        client=client,
        metrics=metrics,
        limits=settings.event_limits,
        is_ready=is_ready,
        asyncapi=lambda: asyncapi_of(broker_of(questions.shapes)),
        bearers=bearers,
    )
    listener = Listener(
        Admitted(app, admission),
        host=http_host,
        port=http_port,
        certificate=settings.http_certificate,
        certificate_key=settings.http_certificate_key,
    )
    try:
        await client.subscribe(INGESTED, cb=on_word)
        await desk.listen(client, CONTEXT)
        await broker.start()
        # One flush may overtake the subscriptions it should follow; a second cannot.
        for connection in (client, broker.config.connection_state.connection):
            await connection.flush()
            await connection.flush()
        await listener.opened()
        # What is made by now stays: no collection needs to look at it, and there are few cycles to find afterwards.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        announce({"query": os.getpid()})
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


def asyncapi_of(broker: NatsBroker) -> str:
    """The bus as an AsyncAPI document."""
    return FastStream(broker, logger=None).schema.to_specification().to_json()
