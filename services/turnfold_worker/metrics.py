"""The Prometheus metrics of a worker."""

from functools import partial

from prometheus_client import Counter, Gauge, Histogram

from turnfold.observability.metrics import ProcessMetrics
from turnfold.operations.compact.compact import Committed, Outcome, Retry, RolledBack
from turnfold.ports.ingest import IngestResult
from turnfold.store.database.statistics import QueueDepths

BATCH_EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
BATCH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SUMMARY_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class WorkerMetrics(ProcessMetrics):
    """The metrics of one process, in their own registry.

    They are updated per batch and per job, not per event.
    """

    def __init__(self) -> None:
        super().__init__()
        self._count_intake()
        self._count_summaries()
        self._measure_queues()

    def _count_intake(self) -> None:
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._events = counter("turnfold_events_stored", "Events stored.")
        self._messages = counter("turnfold_messages_stored", "Messages stored.")
        self._duplicates = counter("turnfold_duplicates", "Duplicates of stored events.")
        self._dead_letters = counter("turnfold_events_buried", "Events turned into dead letters.")
        self._evictions = counter("turnfold_evictions", "Compactions opened during ingest.")
        self.returned = counter(
            "turnfold_batches_returned", "Batches that could not be stored, for redelivery."
        )
        self._failures = counter(
            "turnfold_part_failures",
            "Errors that a loop (`part`) retries; the log says `work.failed` or `row.failed`.",
            ["part"],
        )
        self.foreign = counter(
            "turnfold_foreign_replies", "Replies to events from a subscriber instead of the stream."
        )
        self._batch_events = histogram(
            "turnfold_batch_events", "Events in a batch.", buckets=BATCH_EVENTS
        )
        self._batch_seconds = histogram(
            "turnfold_batch_seconds",
            "Time from receiving a batch to its acknowledgement.",
            buckets=BATCH_SECONDS,
        )

    def _count_summaries(self) -> None:
        counter = partial(Counter, registry=self.registry)
        self._attempts = counter(
            "turnfold_attempts",
            "Attempts by `outcome` and `reason`: `committed` (with a reason: a stand-in), "
            "`given_back`, `rolled_back`, `discarded`, `delayed` (no database), `crashed`.",
            ["outcome", "reason"],
        )
        self._summary_seconds = Histogram(
            "turnfold_summary_seconds",
            "Time to write a version, by `kind`: `llm` or `extractive`.",
            ["kind"],
            buckets=SUMMARY_SECONDS,
            registry=self.registry,
        )
        self._saved = counter(
            "turnfold_tokens_saved", "Tokens of replaced messages, less the growth of the versions."
        )
        self._model_tokens = counter(
            "turnfold_model_tokens",
            "Tokens of committed versions by `model`, `direction` (`prompt`, `completion`); "
            "failed attempts count in the daily tokens of an agent.",
            ["model", "direction"],
        )
        self._cost = counter(
            "turnfold_model_cost_dollars",
            "Price of these tokens in US dollars by `model`, if litellm lists it.",
            ["model"],
        )

    def _measure_queues(self) -> None:
        gauge = partial(Gauge, registry=self.registry)
        self.is_ready = gauge("turnfold_ready", "1 if `/readyz` answers 200, else 0.")
        self._lag_events = gauge("turnfold_lag_events", "Events not yet stored (global).")
        self._lag_seconds = gauge(
            "turnfold_lag_seconds", "Age of the oldest event not yet stored (global)."
        )
        self._jobs = gauge(
            "turnfold_jobs",
            "Open compactions by `status`: `pending` or `running` (global).",
            ["status"],
        )
        self._late = gauge(
            "turnfold_jobs_late_seconds", "Wait of the oldest due compaction (global)."
        )
        self._pending = gauge(
            "turnfold_pending_messages", "Evicted messages not yet summarized (global)."
        )
        self._notices = gauge("turnfold_outbox_notices", "Unsent notices (global).")
        self._unindexed = gauge(
            "turnfold_unindexed_sessions", "Sessions not fully in the search index (global)."
        )

    def stored(self, result: IngestResult, *, events: int, seconds: float) -> None:
        """Count a stored batch of `events` events, which took `seconds`."""
        self._batch_events.observe(events)
        self._batch_seconds.observe(seconds)
        self._events.inc(result.events)
        self._messages.inc(result.messages)
        self._duplicates.inc(result.duplicates)
        self._dead_letters.inc(result.dead_letters)
        self._evictions.inc(result.evictions)

    def failed(self, part: str) -> None:
        """Count an error after which a part of the worker has continued."""
        self._failures.labels(part).inc()

    def attempted(self, outcome: Outcome | str) -> None:
        """Count an attempt at a summary, by its outcome or by a word if there is none."""
        match outcome:
            case str():
                self._attempts.labels(outcome, "").inc()
            case Committed(reason=reason):
                self._attempts.labels("committed", reason or "").inc()
                self._committed(outcome)
            case Retry(reason=reason):
                self._attempts.labels("given_back", reason).inc()
            case RolledBack(reason=reason):
                self._attempts.labels("rolled_back", reason or "").inc()
            case _:
                self._attempts.labels("discarded", "").inc()

    def _committed(self, outcome: Committed) -> None:
        self._saved.inc(outcome.tokens_saved)
        if outcome.made is None:
            return
        draft = outcome.made.draft
        self._summary_seconds.labels(draft.kind).observe(outcome.made.seconds or 0.0)
        if draft.model is None:
            return
        self._model_tokens.labels(draft.model, "prompt").inc(draft.prompt_tokens or 0)
        self._model_tokens.labels(draft.model, "completion").inc(draft.completion_tokens or 0)
        self._cost.labels(draft.model).inc(draft.cost or 0.0)

    def lags(self, *, events: int, seconds: float) -> None:
        """Set the lag of the workers."""
        self._lag_events.set(events)
        self._lag_seconds.set(seconds)

    def waits(self, depths: QueueDepths) -> None:
        """Set the lengths of the queues in the database."""
        self._jobs.labels("pending").set(depths.pending)
        self._jobs.labels("running").set(depths.running)
        self._late.set(depths.late_seconds)
        self._pending.set(depths.messages)
        self._notices.set(depths.notices)
        self._unindexed.set(depths.unindexed_sessions)
