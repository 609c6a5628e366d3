"""The process of a worker.

`main` runs a worker. `_work` lists its loops; `context` holds the parts that they share.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

import structlog
import uvloop

from turnfold.bus.connection import connect
from turnfold.bus.stream_state import last_sequence
from turnfold.bus.streams import wait_for_streams
from turnfold.model_info.tokenizer import load_counter
from turnfold.models import ChildSummarizer
from turnfold.models.litellm_installed import can_call_models, missing_litellm
from turnfold.nats_client.connection import NatsClient
from turnfold.process.http_server import HttpServer
from turnfold.process.memory import forget_and_return_memory
from turnfold.process.ready import ProcessAnnouncer
from turnfold.process.scheduling import lower_priority, tune_interpreter
from turnfold.process.set_aside import SetAside
from turnfold.process.tasks import cancel_and_wait, stop_event, unless
from turnfold.process.watchdog import Watchdog
from turnfold.settings import Settings
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold.store.compact.jobs.store import SqlJobStore
from turnfold.store.compact.withdrawal import withdraw
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import (
    WriterLock,
    refuse_older_stream,
    wait_for_schema,
    wait_until_adopted,
)
from turnfold.store.database.outbox import SqlOutboxStore
from turnfold.store.database.statistics import SqlStatistics
from turnfold.store.ingest.budgets import SqlBudgetStore
from turnfold.store.ingest.erase import SqlErasureStore
from turnfold.store.ingest.idle import SqlIdleStore
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold.store.ingest.word_index.removal import empty_outdated
from turnfold.store.ingest.word_index.search_index import SqlSearchIndex
from turnfold_worker.command_broker import command_broker
from turnfold_worker.context import Telemetry, WorkerContext, make_context
from turnfold_worker.health import HealthSources, make_http
from turnfold_worker.loops.budgets import BudgetFollower
from turnfold_worker.loops.campaigns import CampaignRunner
from turnfold_worker.loops.catch_up import CatchUp
from turnfold_worker.loops.child_monitor import ChildMonitor
from turnfold_worker.loops.compact import Compactor
from turnfold_worker.loops.erase import ErasureRunner
from turnfold_worker.loops.gaps import GapFinder
from turnfold_worker.loops.idle import IdleEvictor
from turnfold_worker.loops.ingest import IngestLoop
from turnfold_worker.loops.polling import PollingLoop
from turnfold_worker.loops.prune import Pruner
from turnfold_worker.loops.relay import Relay
from turnfold_worker.loops.search_index import Indexer
from turnfold_worker.loops.truncate_wal import WalTruncator
from turnfold_worker.loops.vacuum import DeadRowVacuum
from turnfold_worker.loops.wakeups import Wakeups
from turnfold_worker.loops.write_probe import WriteProbe
from turnfold_worker.receiver.parent import Receiver, ReceiverProcess

log = structlog.get_logger()

STOP_SECONDS = 8.0
"""Grace period for running batches at shutdown. Unfinished events are redelivered."""
HEALTH_CONNECTIONS = 256

CONSUMER_SECONDS = 120.0
"""A consumer that sends nothing for so long may answer a new process.

The NATS client detects a dead connection after at most 80 seconds.
"""
BATCH_SECONDS = 120.0
"""If no running batch ends for so long, the database connection hangs.

Statements have much shorter timeouts.
"""


def main(settings: Settings, receiver_process: ReceiverProcess) -> int:
    """Run a worker until a signal stops it, and return its exit status.

    The worker owns `receiver_process`, which the caller starts early because it loads slowly.
    """
    # Before any thread starts, because threads inherit the priority. Windows go first.
    lower_priority()
    uvloop.run(_run(settings, receiver_process))
    return 0


async def _run(settings: Settings, receiver_process: ReceiverProcess) -> None:
    stop = stop_event()
    telemetry = Telemetry(Watchdog(settings.watchdog_seconds))
    telemetry.watchdog.start()
    database = Database(settings.database_url, writes=True)
    try:
        worker = asyncio.create_task(
            _serve(settings, database, receiver_process, telemetry, stop), name="worker"
        )
        stopping = asyncio.create_task(stop.wait(), name="stop")
        trimming = asyncio.create_task(forget_and_return_memory(), name="memory")
        await asyncio.wait([worker, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await worker
            except TimeoutError:
                log.warning("worker.stopped_late", seconds=STOP_SECONDS)
        stopping.cancel()
        await cancel_and_wait(trimming)
        # Cancelled if it stopped late: what it has not stored is delivered again.
        if worker.done() and not worker.cancelled():
            worker.result()
    finally:
        # After the loops: a batch that is committed now need not be delivered again.
        await database.close()
        telemetry.watchdog.stop()


async def _serve(
    settings: Settings,
    database: Database,
    receiver_process: ReceiverProcess,
    telemetry: Telemetry,
    stop: asyncio.Event,
) -> None:
    """Run the worker with its HTTP server for health and metrics."""
    # Before the start, so that `/readyz` says what the start waits for.
    async with _http_server(settings, telemetry):
        await _start(settings, database, receiver_process, telemetry, stop)


@contextlib.asynccontextmanager
async def _http_server(settings: Settings, telemetry: Telemetry) -> AsyncGenerator[None]:
    if settings.worker_http_port is None:
        yield
        return
    server = HttpServer(
        make_http(telemetry.health, telemetry.metrics),
        host=settings.worker_http_host,
        port=settings.worker_http_port,
        port_setting="TURNFOLD_WORKER_HTTP_PORT",
        connections=HEALTH_CONNECTIONS,
    )
    await server.open()
    log.info("worker.listening", port=server.port)
    try:
        yield
    finally:
        await server.close()


async def _start(
    settings: Settings,
    database: Database,
    receiver_process: ReceiverProcess,
    telemetry: Telemetry,
    stop: asyncio.Event,
) -> None:
    """Wait for the schema, the streams and the writer lock, then work until stopped.

    Raises:
        StartError: a model is configured, and litellm is not installed.
    """
    if _has_model(settings) and not can_call_models():
        raise missing_litellm()
    # Importing litellm takes seconds, so its process starts first. Without a model, the process
    # is light and starts with its first job.
    summarizer = ChildSummarizer(preload=_has_model(settings))
    if _has_model(settings):
        await summarizer.start()
    counting = asyncio.create_task(asyncio.to_thread(load_counter))
    announcer = ProcessAnnouncer("worker")
    receiver = Receiver(
        receiver_process,
        on_start=partial(announcer.update, "receiver"),
        on_failure=telemetry.metrics.failed,
    )
    client: NatsClient | None = None
    try:
        await unless(stop, wait_for_schema(database))
        client = await unless(stop, connect(settings, name="worker", seconds=60.0))
        created = await _adopted_stream(database, client, stop) if client else None
        lock = await _writer_lock(settings, telemetry, stop) if created else None
        # The lock is held for as long as this function runs.
        if client is None or created is None or lock is None:
            return
        await empty_outdated(database)
        context = make_context(
            settings,
            database=database,
            client=client,
            receiver=receiver,
            summarizer=summarizer,
            announcer=announcer,
            telemetry=telemetry,
            count=await counting,
        )
        _warn_about_settings(settings)
        await _work(context, stop, stream_created=created)
    finally:
        await receiver.close()
        await summarizer.close()
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()


async def _adopted_stream(
    database: Database, client: NatsClient, stop: asyncio.Event
) -> str | None:
    """Wait until the database belongs to the stream of this bus; None if stopped.

    Return the creation time of the stream (RFC 3339).
    """
    created = await unless(stop, wait_for_streams(client))
    if created is not None:
        await unless(stop, wait_until_adopted(database, created=created))
        await unless(stop, refuse_older_stream(database, partial(last_sequence, client)))
    return None if stop.is_set() else created


async def _writer_lock(
    settings: Settings, telemetry: Telemetry, stop: asyncio.Event
) -> WriterLock | None:
    """Take the lock of the process that writes; None if stopped."""
    lock = WriterLock(settings.database_url)
    if not lock.try_to_take():
        log.info("worker.standby")
        telemetry.health.waits_for = "standby: another worker holds the writer lock"
        await unless(stop, lock.take())
    return None if stop.is_set() else lock


async def _work(context: WorkerContext, stop: asyncio.Event, *, stream_created: str) -> None:
    """Run the loops of a worker, and answer requests that write, until stopped."""
    tune_interpreter(has_batches=True)
    database, telemetry = context.database, context.telemetry
    events = SqlIngestStore(database, withdraw, stream_created=stream_created)
    erasures = SqlErasureStore(
        database, stream_created=stream_created, aside=_aside(context, "ErasureRunner")
    )
    jobs = SqlJobStore(database, aside=_aside(context, "Compactor"))
    statistics = SqlStatistics(database)
    if database.is_sqlite:
        # This worker holds the writer lock, so the owners of all leases have exited.
        await jobs.end_leases()
    wakeups = Wakeups()
    ingest = IngestLoop(context, store=events, on_stored=wakeups.after_batch)
    erasure = ErasureRunner(context, store=erasures)
    budgets = SqlBudgetStore(database, aside=_aside(context, "BudgetFollower"))
    follower = BudgetFollower(context, store=budgets, wakeups=wakeups, is_busy=ingest.is_busy)
    probe = WriteProbe(probe=statistics.probe)
    loops = [
        CatchUp(context, store=events, ingest=ingest),
        Compactor(context, store=jobs, wakeups=wakeups, is_busy=ingest.is_busy),
        Relay(
            store=SqlOutboxStore(database, stream_created=stream_created),
            client=context.client,
            is_busy=ingest.is_busy,
            woken=wakeups.relay,
            on_foreign=telemetry.metrics.foreign.inc,
        ),
        GapFinder(context, store=events),
        Pruner(context, store=events),
        erasure,
        follower,
        *_background_loops(context, wakeups, is_busy=ingest.is_busy),
        probe,
    ]
    watch = telemetry.watchdog.watch
    watch("the consumer", lambda: context.receiver.activity, seconds=CONSUMER_SECONDS)
    watch("the intake", lambda: ingest.ended, seconds=BATCH_SECONDS)
    async with (
        _running(context, ingest, loops) as tasks,
        command_broker(
            context,
            on_change=wakeups.after_command,
            on_erased=erasure.after_erasure,
            ingested_to=events.ingested_to,
        ),
    ):
        await follower.listen(context.client)
        telemetry.health.parts = HealthSources(context.client, context.receiver, probe, statistics)
        await _announce_when_loaded(context, stop)
        await _until_stopped(stop, tasks)


def _background_loops(
    context: WorkerContext, wakeups: Wakeups, *, is_busy: Callable[[], bool]
) -> Sequence[PollingLoop]:
    """Make the loops that nothing else refers to."""
    database = context.database
    idle = SqlIdleStore(database, aside=_aside(context, "IdleEvictor"))
    campaigns = SqlCampaignStore(database, aside=_aside(context, "CampaignRunner"))
    index = SqlSearchIndex(database, context.installation.count, aside=_aside(context, "Indexer"))
    return (
        IdleEvictor(context, store=idle, wakeups=wakeups),
        CampaignRunner(context, store=campaigns, wakeups=wakeups),
        Indexer(store=index, woken=wakeups.indexer, is_busy=is_busy),
        WalTruncator(database),
        DeadRowVacuum(database),
        ChildMonitor(
            summarizer=context.summarizer, on_start=partial(context.announcer.update, "model")
        ),
    )


def _aside(context: WorkerContext, part: str) -> SetAside[Any]:
    return SetAside(part, context.telemetry.metrics.failed)


@contextlib.asynccontextmanager
async def _running(
    context: WorkerContext, ingest: IngestLoop, loops: Sequence[PollingLoop]
) -> AsyncGenerator[Sequence[asyncio.Task[None]]]:
    """Run the loops in the body, and end them on leaving it."""
    on_failure = context.telemetry.metrics.failed
    tasks = [
        asyncio.create_task(ingest.run(), name=type(ingest).__name__),
        *(
            asyncio.create_task(loop.run(on_failure=on_failure), name=type(loop).__name__)
            for loop in loops
        ),
    ]
    try:
        yield tasks
    finally:
        # After the broker, whose last requests may wait for events that are stored here.
        await cancel_and_wait(*tasks)
        await ingest.finish()
        log.info("worker.stopped")


async def _announce_when_loaded(context: WorkerContext, stop: asyncio.Event) -> None:
    """Announce the worker once its child processes can work.

    Events are stored before that, but the ready line promises summaries too.
    """
    await unless(stop, context.receiver.loaded())
    if _has_model(context.settings):
        await unless(stop, context.summarizer.loaded())
    context.announcer.begin({"receiver": context.receiver.pid, "model": context.summarizer.pid})
    log.info("worker.started", pid=os.getpid())


async def _until_stopped(stop: asyncio.Event, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the stop signal, or for a loop that ends.

    Raises:
        StartError: a loop needs a new process to continue.
    """
    stopped = asyncio.create_task(stop.wait(), name="stop")
    ended, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in ended - {stopped}:
        # Loops end only with an error, which this raises.
        task.result()


def _warn_about_settings(settings: Settings) -> None:
    if settings.lacks_session_models:
        log.warning(
            "summary_model.not_allowed",
            advice="TURNFOLD_SUMMARY_MODEL is session: "
            "set TURNFOLD_SUMMARY_MODELS to the models allowed",
        )


def _has_model(settings: Settings) -> bool:
    """Return whether the installation names a model. Agents and sessions may name others."""
    return settings.default_model is not None
