"""What a worker does on its own: compact what is pending, send what is to be told, close gaps in what is stored."""

import asyncio
import contextlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import nats.errors
import structlog
from nats.aio.client import Client

from turnfold.bus.asking import asking
from turnfold.bus.retention import prune_stream
from turnfold.bus.streams import ack_floor, read_events
from turnfold.contracts.subjects import ERASED, EVENTS_STREAM, INGESTED, NOTICES_STREAM
from turnfold.core.summary.fair_share import JobSlots
from turnfold.core.text.tokens import Count
from turnfold.errors import StartError, SummarizerError, Unavailable
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.observability.tracing import span
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Committed, Outcome, Retry, RolledBack, compact
from turnfold.operations.ingest.decode import DecodedBatch, Delivery
from turnfold.ports.admin import CampaignStore, ErasureStore, Notice, OutboxStore
from turnfold.ports.compact import Job, JobStore, Summarizer
from turnfold.ports.ingest import IdleStore, IngestStore, Installation, PolicyResolver, SearchIndex
from turnfold.process.scheduling import backoff_seconds
from turnfold.process.tasks import cancel_and_wait
from turnfold_worker.handlers import IngestLoop
from turnfold_worker.receiver.wire import BATCH

log = structlog.get_logger()

RETRY_SECONDS = 1.0
NOTICE_SECONDS = 10.0
GONE_ALREADY = (10_037, 10_043)
"""Error codes of JetStream: no such message (to read), no such message (to delete)."""
YIELD_SECONDS = 5.0
YIELDS_AGAIN_SECONDS = 0.25


class BusyDeferral:
    """Events go first: a summary or a notice may wait a little, an agent's next window should not. But no backlog stops them for good."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._since: float | None = None

    @property
    def go_first(self) -> bool:
        """Whether to wait; not for longer than `YIELD_SECONDS` in a row."""
        now = time.monotonic()
        if not self._is_busy():
            self._since = None
            return False
        self._since = self._since or now
        if now - self._since < YIELD_SECONDS:
            return True
        self._since = now
        return False


class PollingLoop(ABC):
    """A loop that works when woken, and looks by itself now and then: a lost wake-up costs time, never work."""

    poll_seconds = 1.0

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.on_failure: Callable[[str], object] = lambda _: None
        """Called with the name of a part that goes on after an error."""

    def wake(self) -> None:
        """There is work."""
        self._woken.set()

    async def run(self) -> None:
        """Work until cancelled, whatever goes wrong: the next look comes later and later, until one goes well.

        Raises:
            StartError: only a new process would do better.
        """
        failures = 0
        while True:
            self._woken.clear()
            try:
                wait = await self.work()
            except Unavailable as error:
                log.warning("loop.delayed", part=type(self).__name__, error=str(error))
                wait = RETRY_SECONDS
            except StartError:
                raise
            except Exception:
                self.on_failure(type(self).__name__)
                log.exception("work.failed", part=type(self).__name__, failures=failures + 1)
                await asyncio.sleep(backoff_seconds(failures))
                failures += 1
                continue
            failures = 0
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                continue

    @abstractmethod
    async def work(self) -> float:
        """Do what is there to do; seconds until the next look."""


class Compactor(PollingLoop):
    """Claims due jobs, a few at once and no agent's alone, and has them written."""

    def __init__(
        self,
        *,
        store: JobStore,
        summarizer: Summarizer,
        writing: SummaryConfig,
        count: Count,
        policy: PolicyResolver,
        now_ms: Callable[[], int],
        concurrency: int,
        is_busy: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._store = store
        self._summarizer = summarizer
        self._writing = writing
        self._count = count
        self._policy = policy
        self._now_ms = now_ms
        self._concurrency = concurrency
        self._events = BusyDeferral(is_busy)
        self._running: dict[asyncio.Task[None], Job] = {}
        self.on_done: Callable[[Job], object] = lambda _: None
        self.on_attempt: Callable[[Outcome | str], object] = lambda _: None

    async def run(self) -> None:
        """Work until cancelled; running jobs are left to whoever comes next."""
        try:
            await super().run()
        finally:
            await cancel_and_wait(*self._running)

    async def work(self) -> float:
        """Claim as many jobs as there are free places."""
        places = JobSlots.of(
            self._concurrency, Counter(job.key.agent_id for job in self._running.values())
        )
        if places.free <= 0:
            return self.poll_seconds
        if self._events.go_first:
            return YIELDS_AGAIN_SECONDS
        lease_ms = int(1000 * self._writing.lease_seconds)
        for job in await self._store.claim(
            places, lease_ms=lease_ms, now_ms=self._now_ms(), policy=self._policy
        ):
            task = asyncio.create_task(self._compact(job), name=f"compact-{job.compaction_ids[-1]}")
            self._running[task] = job
            task.add_done_callback(self._finished)
        # Whoever finishes looks again.
        if self._running or (due_ms := await self._store.next_due_ms()) is None:
            return self.poll_seconds
        return min(self.poll_seconds, max(0.01, (due_ms - self._now_ms()) / 1000))

    def _finished(self, task: asyncio.Task[None]) -> None:
        job = self._running.pop(task)
        self.wake()
        self.on_done(job)

    async def _compact(self, job: Job) -> None:
        began = time.monotonic()
        try:
            outcome = await self._traced(job)
        except Unavailable as error:
            self.on_attempt("delayed")
            log.warning(
                "compaction.delayed", compaction_id=job.compaction_ids[-1], error=str(error)
            )
            return
        except Exception:
            # The lease runs out and the job is tried again, by whoever comes first.
            self.on_attempt("crashed")
            log.exception("compaction.crashed", compaction_id=job.compaction_ids[-1])
            return
        self.on_attempt(outcome)
        seconds = round(time.monotonic() - began, 3)
        match outcome:
            case Committed(version=version, reason=reason):
                log.info(
                    "summary.committed",
                    compaction_id=job.compaction_ids[-1],
                    version=version,
                    reason=reason,
                    seconds=seconds,
                )
            case RolledBack(reason=reason):
                log.warning(
                    "compaction.rolled_back",
                    compaction_id=job.compaction_ids[-1],
                    reason=reason,
                    seconds=seconds,
                )
            case Retry(reason=reason):
                log.warning(
                    "attempt.failed",
                    compaction_id=job.compaction_ids[-1],
                    reason=reason,
                    attempt=job.attempt,
                    seconds=seconds,
                )
            case _:
                log.info("summary.discarded", compaction_id=job.compaction_ids[-1], seconds=seconds)

    async def _traced(self, job: Job) -> Outcome:
        """One attempt, in the trace of the event that set it off."""
        *others, parent = job.traces or (None,)
        compaction_id = str(job.compaction_ids[-1])
        with span(
            "compact",
            kind="consumer",
            parent=parent,
            others=others,
            compaction_id=compaction_id,
            attempt=job.attempt,
        ) as compacting:
            outcome = await compact(
                job,
                store=self._store,
                summarizer=self._summarizer,
                writing=self._writing,
                count=self._count,
                now_ms=self._now_ms,
            )
            compacting.set_attributes(
                outcome=type(outcome).__name__, reason=getattr(outcome, "reason", None)
            )
            return outcome


class IdleEvictor(PollingLoop):
    """Has sessions evicted from that nobody speaks in any more."""

    poll_seconds = 5.0
    at_once = 20

    def __init__(
        self,
        *,
        store: IdleStore,
        installation: Installation,
        now_ms: Callable[[], int],
        on_evicted: Callable[[], object],
    ) -> None:
        super().__init__()
        self._store = store
        self._installation = installation
        self._now_ms = now_ms
        self._on_evicted = on_evicted

    async def work(self) -> float:
        """Look at the sessions that have fallen idle."""
        while await self._store.evict_idle(
            limit=self.at_once, installation=self._installation, now_ms=self._now_ms()
        ):
            self._on_evicted()
        at_ms = await self._store.next_idle_ms()
        if at_ms is None:
            return self.poll_seconds
        return min(self.poll_seconds, max(0.05, (at_ms - self._now_ms()) / 1000))


class CampaignRunner(PollingLoop):
    """Opens the next sessions of regenerations that go through many."""

    def __init__(
        self,
        *,
        store: CampaignStore,
        installation: Installation,
        now_ms: Callable[[], int],
        on_opened: Callable[[], object],
    ) -> None:
        super().__init__()
        self._store = store
        self._installation = installation
        self._now_ms = now_ms
        self._on_opened = on_opened

    async def work(self) -> float:
        """Open as many as there is room for."""
        if await self._store.advance(installation=self._installation, now_ms=self._now_ms()):
            self._on_opened()
        return self.poll_seconds


class ErasureRunner(PollingLoop):
    """Has the stream forget what was erased, and erases sessions whose time is over."""

    poll_seconds = 30.0
    at_once = 100
    look_at_once = 500
    look_seconds = 600.0

    def __init__(
        self,
        *,
        store: ErasureStore,
        client: Client,
        installation: Installation,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self._store = store
        self._client = client
        self._installation = installation
        self._now_ms = now_ms
        self._looked_at = -math.inf
        # A worker that died may have left something in the log, and told nobody.
        self._is_untidy = True

    def erased(self) -> None:
        """Something was erased just now."""
        self._is_untidy = True
        self.wake()

    async def work(self) -> float:
        """Erase what is due, then see that no copy is left."""
        if time.monotonic() - self._looked_at >= self.look_seconds:
            await self._expire()
            self._looked_at = time.monotonic()
        while sequences := await self._store.to_purge(self.at_once):
            await asyncio.gather(*(self._forgotten(seq) for seq in sequences))
            await self._store.purged(sequences)
            self._is_untidy = True
        if self._is_untidy:
            with contextlib.suppress(nats.errors.Error):
                await self._client.publish(INGESTED, ERASED)
            self._is_untidy = not await self._store.tidy()
        return RETRY_SECONDS if self._is_untidy else self.poll_seconds

    async def _expire(self) -> None:
        after: int | None = 0
        while after is not None:
            after = await self._store.erase_expired(
                after=after,
                limit=self.look_at_once,
                installation=self._installation,
                now_ms=self._now_ms(),
            )

    async def _forgotten(self, seq: int) -> None:
        """Delete a message of the stream and overwrite it; one that is gone already is as good."""
        failure = await self._failure_of("DELETE", seq)
        # Of a block of the stream that is gone altogether it only says that deleting failed.
        if failure is None or failure.get("err_code") in GONE_ALREADY:
            return
        found = await self._failure_of("GET", seq)
        if found is None or found.get("err_code") not in GONE_ALREADY:
            raise Unavailable(
                f"the stream keeps a message that was erased: {failure.get('description')}"
            )

    async def _failure_of(self, verb: str, seq: int) -> Mapping[str, Any] | None:
        """What the stream has against doing this with a message."""
        subject = f"$JS.API.STREAM.MSG.{verb}.{EVENTS_STREAM}"
        try:
            reply = await self._client.request(
                subject, json.dumps({"seq": seq}).encode(), timeout=10
            )
        except (nats.errors.Error, TimeoutError) as error:
            raise Unavailable(f"the stream does not answer: {type(error).__name__}") from error
        with asking():
            failure: Mapping[str, Any] | None = json.loads(reply.data).get("error")
            return failure


class Indexer(PollingLoop):
    """Has messages indexed for search, a few at a time, while no full batch of events is in hand."""

    longest_pause_seconds = 10.0

    def __init__(self, *, store: SearchIndex, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._store = store
        self._is_busy = is_busy
        self._since = time.monotonic()

    async def work(self) -> float:
        """Index what waits. What is not indexed yet is found all the same, so events go first; but no backlog stops it for good.

        What comes meanwhile is left for the next look: a transaction for each turn would cost more than what is in it.
        """
        while not self._is_busy() or time.monotonic() - self._since > self.longest_pause_seconds:
            self._since = time.monotonic()
            if not await self._store.index_some():
                break
        return self.poll_seconds


class Relay(PollingLoop):
    """Sends the outbox to the stream of notices, at least once and in order."""

    at_once = 100

    def __init__(
        self, *, store: OutboxStore, publisher: Publisher, is_busy: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._store = store
        self._publisher = publisher
        self._events = BusyDeferral(is_busy)

    async def work(self) -> float:
        """Send what waits; a notice is forgotten when the stream has it."""
        if self._events.go_first:
            return YIELDS_AGAIN_SECONDS
        is_full = True
        while is_full and (notices := await self._store.unsent(self.at_once)):
            is_full = len(notices) == self.at_once
            try:
                told = await asyncio.gather(*(self._publish(notice) for notice in notices))
            except (nats.errors.Error, TimeoutError) as error:
                raise Unavailable(f"notices wait: {type(error).__name__}") from error
            if rejection := next((one for one in told if isinstance(one, Rejection)), None):
                raise Unavailable(f"notices wait: {rejection.description or rejection.code}")
            await self._store.sent(notices)
        return self.poll_seconds

    async def _publish(self, notice: Notice) -> Acknowledgement | Rejection:
        headers = {"Nats-Expected-Stream": NOTICES_STREAM, "Nats-Msg-Id": _name_of(notice)}
        return await self._publisher.publish(
            notice.subject, notice.payload.encode(), headers=headers, seconds=NOTICE_SECONDS
        )


def _name_of(notice: Notice) -> str:
    """What the broker knows a notice by when it comes again; by its number alone, those of a restored database would be taken for old ones."""
    told = blake2b(notice.payload.encode(), digest_size=8).hexdigest()
    return f"n{notice.outbox_id}.{told}"


class GapFinder(PollingLoop):
    """Finds sequences that the stream does not hold any more, so that nobody waits for them."""

    poll_seconds = 2.0
    ask_at_most = 200

    def __init__(self, *, store: IngestStore, client: Client) -> None:
        super().__init__()
        self._store = store
        self._client = client

    async def work(self) -> float:
        """Ask the stream about the sequences that are missing."""
        gaps = await self._store.gaps(up_to=await ack_floor(self._client))
        if not gaps:
            return self.poll_seconds
        jetstream = self._client.jetstream()
        with asking():
            state = (await jetstream.stream_info(EVENTS_STREAM)).state
            gone = [
                (first, min(last, state.first_seq - 1))
                for first, last in gaps
                if first < state.first_seq
            ]
            if state.num_deleted:
                gone += await self._deleted(
                    [
                        (max(first, state.first_seq), last)
                        for first, last in gaps
                        if last >= state.first_seq
                    ]
                )
        if gone:
            await self._store.mark_ingested(gone)
        return self.poll_seconds

    async def _deleted(self, gaps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """What of these was taken out of the middle of the stream; a list of all that ever was would grow with every erasure."""
        found: list[tuple[int, int]] = []
        asked = 0
        for first, last in gaps:
            at = first
            while at <= last and asked < self.ask_at_most:
                asked += 1
                held = await self._held_from(at)
                if held is None or held > at:
                    found.append((at, last if held is None else min(last, held - 1)))
                at = last + 1 if held is None else held + 1
        return found

    async def _held_from(self, seq: int) -> int | None:
        """The first sequence from here on that the stream holds; None when there is none."""
        asked = json.dumps({"seq": seq, "next_by_subj": ">"}).encode()
        told = json.loads(
            (
                await self._client.request(
                    f"$JS.API.STREAM.MSG.GET.{EVENTS_STREAM}", asked, timeout=10
                )
            ).data
        )
        if failure := told.get("error"):
            if failure.get("err_code") in GONE_ALREADY:
                return None
            raise Unavailable(
                f"the stream does not say what it holds: {failure.get('description')}"
            )
        return int(told["message"]["seq"])


class Pruner(PollingLoop):
    """Has the stream forget events that have long been stored."""

    poll_seconds = 600.0

    def __init__(self, *, store: IngestStore, client: Client, hours: int) -> None:
        super().__init__()
        self._store = store
        self._client = client
        self._hours = hours

    async def work(self) -> float:
        """Purge what is old and stored."""
        if self._hours:
            await prune_stream(
                self._client, ingested_to=await self._store.ingested_to(), hours=self._hours
            )
        return self.poll_seconds


Weigh = Callable[[Sequence[Delivery]], DecodedBatch]


class CatchUp(PollingLoop):
    """Stores again what the consumer counts as acknowledged and the database lacks: it was restored from a backup, or is a new one.

    It is read from the stream in order, and one worker after the other takes a batch of it: a history is rebuilt as it came.
    """

    poll_seconds = 2.0

    def __init__(
        self, *, store: IngestStore, client: Client, intake: IngestLoop, weigh: Weigh
    ) -> None:
        super().__init__()
        self._store = store
        self._client = client
        self._intake = intake
        self._weigh = weigh

    async def work(self) -> float:
        """Go through what is missing, once."""
        at, events = 1, 0
        while (batch := await self._batch(at)) is not None:
            at, stored = batch
            events += stored
        if events:
            log.warning("events.caught_up", events=events, up_to_seq=at - 1)
        self._intake.may_begin.set()
        return self.poll_seconds

    async def _batch(self, at: int) -> tuple[int, int] | None:
        """Store the next events that are missing from here on: where to go on, and how many they were; None at the end."""
        async with self._store.backfill_lock():
            # In this order: what was acknowledged when we asked was committed before we look.
            acknowledged = await ack_floor(self._client)
            gaps = await self._store.gaps(up_to=acknowledged)
            missing = ((max(first, at), min(last, acknowledged)) for first, last in gaps)
            span = next(((first, last) for first, last in missing if first <= last), None)
            if span is None:
                return None
            found = await read_events(self._client, first_seq=span[0], last_seq=span[1], most=BATCH)
            if not found:
                # The Sweeper asks whether the stream holds them no more.
                return span[1] + 1, 0
            try:
                weighed = await asyncio.to_thread(
                    self._weigh, [Delivery(*event) for event in found]
                )
                await self._intake.tell(await self._intake.store(weighed))
            except Unavailable:
                raise
            except Exception:
                # As with any batch: the others go on, and this one is tried again.
                log.exception("batch.crashed")
            return found[-1].stream_seq + 1, len(found)


class WriteProbe(PollingLoop):
    """Sees that the database can be written, and remembers when it could."""

    poll_seconds = 5.0

    def __init__(self, *, probe: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._probe = probe
        self._written_at = time.monotonic()

    @property
    def age_seconds(self) -> float:
        """How long ago it could be written."""
        return time.monotonic() - self._written_at

    async def work(self) -> float:
        """Look."""
        await self._probe()
        self._written_at = time.monotonic()
        return self.poll_seconds


class RestartableChild(Protocol):
    """A process that writes summaries."""

    @property
    def pid(self) -> int | None:
        """The process, while it lives."""
        ...

    async def start(self) -> None:
        """Start the process unless it lives."""
        ...


class ChildMonitor(PollingLoop):
    """Starts the summariser's process again when it died, and tells which one it is now; its first start is others' work."""

    def __init__(self, *, summarizer: RestartableChild, on_change: Callable[[], object]) -> None:
        super().__init__()
        self._summarizer = summarizer
        self._on_change = on_change
        self._told = summarizer.pid

    async def work(self) -> float:
        """See that it lives."""
        if self._told is not None:
            try:
                await self._summarizer.start()
            except SummarizerError as error:
                raise Unavailable(str(error)) from error
        if (pid := self._summarizer.pid) is not None and pid != self._told:
            self._told = pid
            self._on_change()
        return self.poll_seconds
