"""The compaction worker: it stores what is published, evicts at once, and has summaries written later."""

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog
import uvloop
from faststream.nats import NatsBroker

from turnfold.bus.admission import ConcurrencyLimiter, shares_of
from turnfold.bus.broker import Broker
from turnfold.bus.connection import broker_options, connect
from turnfold.bus.events import BusEvents
from turnfold.bus.streams import last_sequence, wait_for_streams
from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.core.eviction.eviction import SUMMARY_DELAY_MS
from turnfold.core.text.tokens import Count
from turnfold.model_info.context_windows import ModelWindows
from turnfold.model_info.tokenizer import load_counter
from turnfold.models import ChildSummarizer
from turnfold.nats_client.acknowledgements import Publisher
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.ingest.decode import decode_batch
from turnfold.operations.policy import policy_resolver
from turnfold.ports.compact import Job, JobKind
from turnfold.ports.ingest import IngestResult, Installation
from turnfold.process.http_server import HttpServer
from turnfold.process.ready import announce
from turnfold.process.scheduling import lower_priority
from turnfold.process.tasks import cancel_and_wait
from turnfold.process.watchdog import Watchdog
from turnfold.settings import Settings
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold.store.compact.jobs.store import SqlJobStore
from turnfold.store.compact.requests import SqlSessionCommands
from turnfold.store.compact.versions import SqlVersionStore
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import WriterLock, wait_for_schema, wait_until_adopted
from turnfold.store.database.outbox import SqlOutboxStore
from turnfold.store.database.secrets import SIGNED_ACTORS, read_secret
from turnfold.store.database.statistics import SqlStatistics
from turnfold.store.ingest.erase import SqlErasureStore
from turnfold.store.ingest.idle import SqlIdleStore
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold.store.ingest.search_index import SqlSearchIndex
from turnfold.store.query.dead_letters import SqlDeadLetterStore
from turnfold.store.query.history import SqlHistoryStore
from turnfold_worker.actors import Actors, watched
from turnfold_worker.dead_letters import make_letters_router
from turnfold_worker.handlers import CommandServer, make_request_router
from turnfold_worker.health import HealthSources, WorkerHealth, make_http
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
from turnfold_worker.loops.write_probe import WriteProbe
from turnfold_worker.metrics import WorkerMetrics
from turnfold_worker.receiver import Receiver
from turnfold_worker.versions import make_versions_router

log = structlog.get_logger()

STOP_SECONDS = 8.0
HEALTH_CONNECTIONS = 256
"""How long what is in hand may take to finish; the rest comes again."""

SILENT_SECONDS = 120.0
"""A consumer that says nothing for so long may answer a new process. A connection that is dead is noticed after 80 at most."""
BATCH_SECONDS = 120.0
"""So long without an end of any batch, and the database has forgotten us; it gives up by itself much sooner."""

Result = TypeVar("Result")


def main(settings: Settings, receiver: Receiver) -> int:
    """Run a worker with this receiver until it is told to stop; the status to exit with."""
    lower_priority()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, receiver))
    return 0


def now_ms() -> int:
    """The clock of leases and attempts."""
    return time.time_ns() // 1_000_000


async def _run(settings: Settings, receiver: Receiver) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    seen = Telemetry(Watchdog(settings.watchdog_seconds))
    seen.watchdog.start()
    database = Database(settings.database_url, writes=True)
    try:
        starting = asyncio.create_task(
            _serve(settings, database, receiver, seen, stop), name="worker"
        )
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await starting
            except TimeoutError:
                log.warning("worker.stopped_late", seconds=STOP_SECONDS)
        stopping.cancel()
        if starting.done():
            starting.result()
    finally:
        await database.close()
        seen.watchdog.stop()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What looks at a worker while it works."""

    watchdog: Watchdog
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    health: WorkerHealth = field(default_factory=WorkerHealth)


async def _serve(
    settings: Settings, database: Database, receiver: Receiver, seen: Telemetry, stop: asyncio.Event
) -> None:
    """Tell how the worker is while it runs."""
    listener = (
        None
        if settings.worker_http_port is None
        else await _listening(settings.worker_http_host, settings.worker_http_port, seen)
    )
    try:
        await _start(settings, database, receiver, seen, stop)
    finally:
        if listener is not None:
            await listener.close()


async def _listening(host: str, port: int, seen: Telemetry) -> HttpServer:
    listener = HttpServer(
        make_http(seen.health, seen.metrics), host=host, port=port, connections=HEALTH_CONNECTIONS
    )
    await listener.opened()
    log.info("worker.listening", port=listener.port)
    return listener


async def _start(
    settings: Settings, database: Database, receiver: Receiver, seen: Telemetry, stop: asyncio.Event
) -> None:
    """Build the parts, run them until told to stop, and take them down in order."""
    # litellm takes seconds to load: its child begins first. Without a model the child is light, and waits for its first job.
    summarizer = ChildSummarizer(preload=_has_model(settings))
    if _has_model(settings):
        await summarizer.start()
    counting = asyncio.create_task(asyncio.to_thread(load_counter))
    await _unless(stop, wait_for_schema(database))
    client = await connect(settings, name="worker", seconds=60.0)
    try:
        created = await _unless(stop, wait_for_streams(client))
        if created is None:
            return
        await _unless(stop, wait_until_adopted(database, created=created))
        lock = WriterLock(settings.database_url)
        if not lock.try_to_take():
            log.info("worker.standby")
            seen.health.waits_for = "it stands by: another worker writes to this file"
            await _unless(stop, lock.take())
        if stop.is_set():
            return
        await _work(settings, database, await counting, client, receiver, summarizer, seen, stop)
    finally:
        await receiver.close()
        await summarizer.close()
        with contextlib.suppress(Exception):
            await client.close()


async def _work(
    settings: Settings, database: Database, count: Count, client: NatsClient, receiver: Receiver, summarizer: ChildSummarizer, seen: Telemetry,
    stop: asyncio.Event,
) -> None:  # fmt: skip
    _advise(settings)
    policy = policy_resolver(settings.preset, settings.policy_of, settings.allowance)
    windows = ModelWindows()
    installation = Installation(
        policy,
        model_window=lambda model, numbers: windows(model, override=numbers.context_window),
        count=count,
        max_sessions=settings.max_sessions_per_agent,
        allowance=settings.allowance,
    )
    intake_store, jobs = SqlIngestStore(database), SqlJobStore(database)
    if database.is_sqlite:
        # The lock of the writer is ours, so whoever held a lease is gone.
        await jobs.end_leases()
    intake = IngestLoop(
        receiver=receiver,
        client=client,
        store=intake_store,
        installation=installation,
        metrics=seen.metrics,
    )
    compactor = Compactor(
        store=jobs, summarizer=summarizer, writing=_writing(settings, windows), count=count, policy=policy, now_ms=now_ms,
        concurrency=settings.summary_concurrency, is_busy=lambda: intake.is_busy,
    )  # fmt: skip
    relay = Relay(
        store=SqlOutboxStore(database), publisher=Publisher(client, NOTICES_STREAM, on_foreign=seen.metrics.disturbed),
        is_busy=lambda: intake.is_busy,
    )  # fmt: skip
    weigh = partial(
        decode_batch,
        count=count,
        limits=settings.event_limits,
        image_tokens=settings.policy.image_tokens,
    )
    catch_up = CatchUp(store=intake_store, client=client, intake=intake, weigh=weigh)
    sweeper = GapFinder(store=intake_store, client=client)
    pruner = Pruner(store=intake_store, client=client, hours=settings.stream_retention_hours)
    idler = IdleEvictor(
        store=SqlIdleStore(database),
        installation=installation,
        now_ms=now_ms,
        on_evicted=compactor.wake,
    )
    eraser = ErasureRunner(
        store=SqlErasureStore(database), client=client, installation=installation, now_ms=now_ms
    )
    indexer = Indexer(store=SqlSearchIndex(database), is_busy=lambda: intake.is_busy)
    figures = SqlStatistics(database)
    prober = WriteProbe(probe=figures.probe)

    loop = asyncio.get_running_loop()

    def on_stored(done: IngestResult) -> None:
        if done.evictions:
            # The window that follows a turn goes first.
            loop.call_later(SUMMARY_DELAY_MS / 1000, relay.wake)
            loop.call_later(SUMMARY_DELAY_MS / 1000, compactor.wake)

    campaigner = CampaignRunner(
        store=SqlCampaignStore(database),
        installation=installation,
        now_ms=now_ms,
        on_opened=compactor.wake,
    )

    def look_again() -> None:
        for part in (relay, campaigner, idler, compactor):
            part.wake()

    intake.on_stored = on_stored
    compactor.on_done, compactor.on_attempt = _ended(relay, campaigner), seen.metrics.attempted
    actors = Actors(read_secret=partial(read_secret, database, SIGNED_ACTORS), now_ms=now_ms)
    desk = CommandServer(ConcurrencyLimiter(shares_of(settings)), actors)
    broker = await _started_broker(
        settings, database, client, installation, look_again, eraser, desk, seen.metrics.disturbed
    )

    def tell_processes() -> None:
        pids = {"worker": os.getpid(), "receiver": receiver.pid, "model": summarizer.pid}
        announce({name: pid for name, pid in pids.items() if pid is not None})

    keeper = ChildMonitor(summarizer=summarizer, on_change=tell_processes)
    parts = (
        catch_up,
        compactor,
        relay,
        sweeper,
        pruner,
        idler,
        campaigner,
        eraser,
        indexer,
        keeper,
        prober,
    )
    loops = _running(intake, receiver, parts, seen.metrics)
    seen.watchdog.watch("the consumer", lambda: receiver.words, seconds=SILENT_SECONDS)
    seen.watchdog.watch("the intake", lambda: intake.ended, seconds=BATCH_SECONDS)
    seen.health.parts = HealthSources(client, receiver, prober, figures)
    await _unless(stop, receiver.loaded())
    if _has_model(settings):
        # Events are stored already; whoever waits for the ready line may count on summaries too.
        await _unless(stop, summarizer.loaded())
    tell_processes()
    receiver.on_change = tell_processes
    # What was imported stays, and need not be looked at again; batches make many short-lived values and no cycles.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    log.info("worker.started", pid=os.getpid())
    await _until_stopped(stop, loops, broker, desk)


def _advise(settings: Settings) -> None:
    """Log what an operator should change."""
    if settings.lacks_session_models:
        log.warning(
            "summary_model.not_allowed",
            advice="TURNFOLD_SUMMARY_MODEL is session: set TURNFOLD_SUMMARY_MODELS to the models allowed",
        )


def _running(
    intake: IngestLoop, receiver: Receiver, parts: Sequence[PollingLoop], metrics: WorkerMetrics
) -> list[asyncio.Task[None]]:
    """The loops of a worker, each of which goes on after errors."""
    for part in parts:
        part.on_failure = metrics.failed
    receiver.on_failure = metrics.failed
    return [
        asyncio.create_task(intake.run(), name=type(intake).__name__),
        *(asyncio.create_task(part.run(), name=type(part).__name__) for part in parts),
    ]


def _ended(relay: Relay, campaigner: CampaignRunner) -> Callable[[Job], None]:
    """What an ended job wakes: it left notices, and may have made room for the next of a campaign."""

    def on_done(job: Job) -> None:
        relay.wake()
        if job.writes is JobKind.REGENERATED:
            campaigner.wake()

    return on_done


async def _until_stopped(
    stop: asyncio.Event,
    loops: Sequence[asyncio.Task[None]],
    broker: NatsBroker,
    desk: CommandServer,
) -> None:
    """Run until told to stop, or a part ends that should not; then take nothing more and finish what is in hand."""
    try:
        stopped = asyncio.create_task(stop.wait(), name="stop")
        done, _ = await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            task.result()
    finally:
        with contextlib.suppress(Exception):
            await broker.stop()
        await desk.close()
        await cancel_and_wait(*loops)
        log.info("worker.stopped")


def _writing(settings: Settings, windows: ModelWindows) -> SummaryConfig:
    """How summaries are asked for in this installation."""
    return SummaryConfig(
        model=settings.summary_model,
        api_base=settings.summary_api_base,
        api_key=settings.summary_api_key,
        key_models=settings.key_models,
        allowance=settings.allowance,
        call_timeout_seconds=settings.summary_timeout_seconds,
        job_timeout_seconds=settings.summary_job_timeout_seconds,
        lease_seconds=settings.summary_lease_seconds,
        window=lambda model: windows(model, override=settings.summary_window),
        task=settings.summary_prompt,
        redactions=settings.redact_patterns,
    )


async def _started_broker(
    settings: Settings,
    database: Database,
    client: NatsClient,
    installation: Installation,
    look_again: Callable[[], object],
    eraser: ErasureRunner,
    desk: CommandServer,
    disturbed: Callable[[], object],
) -> NatsBroker:
    """Who answers requests that write."""
    broker = Broker(
        **watched(broker_options(settings, "worker"), desk.actors.probe),
        logger=None,
        graceful_timeout=5.0,
        apply_types=False,
    )
    broker.include_routers(
        make_request_router(
            changes=SqlSessionCommands(database),
            installation=installation,
            now_ms=now_ms,
            on_change=look_again,
            last_seq=lambda: last_sequence(client),
            on_erased=eraser.erased,
            desk=desk,
        ),
        make_versions_router(
            store=SqlVersionStore(database),
            campaigns=SqlCampaignStore(database),
            histories=SqlHistoryStore(database),
            installation=installation,
            now_ms=now_ms,
            on_change=look_again,
            desk=desk,
        ),
        make_letters_router(
            store=SqlDeadLetterStore(database),
            stream=BusEvents(client, on_foreign=disturbed),
            now_ms=now_ms,
            desk=desk,
        ),
    )
    # Who asks is known before anybody does.
    await desk.actors.probe.attach(await broker.connect())
    await broker.start()
    return broker


def _has_model(settings: Settings) -> bool:
    """Whether this installation names a model; an agent or a session may name one besides."""
    return (settings.policy.summary_model or settings.summary_model) is not None


async def _unless(stop: asyncio.Event, waiting: Coroutine[Any, Any, Result]) -> Result | None:
    """Wait for this, or until told to stop; None when that came first."""
    task = asyncio.create_task(waiting)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        await cancel_and_wait(task)
        return None
    return task.result()
