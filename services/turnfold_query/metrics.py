"""The Prometheus metrics of a query server."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import Counter, Gauge, Histogram

from turnfold.observability.metrics import ProcessMetrics
from turnfold.operations.query.environment import ContextReply

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class QueryMetrics(ProcessMetrics):
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        super().__init__()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=self.registry)
        self.is_ready = gauge("turnfold_ready", "1 if `/readyz` answers 200, else 0.")
        self._dead_letters = gauge(
            "turnfold_dead_letters", "Dead letters by `reason` (global).", ["reason"]
        )
        self._refused = counter(
            "turnfold_requests_refused",
            "Bus requests answered with an error, by `request` and `code`.",
            ["request", "code"],
        )
        self.foreign = counter(
            "turnfold_foreign_replies",
            "Replies from a subscriber instead of the stream to events published over HTTP.",
        )
        self.lane_deaths = counter(
            "turnfold_lane_deaths",
            "Crashes and hangs of the process for searches and large windows, which is restarted.",
        )
        self._requests = histogram(
            "turnfold_request_seconds",
            "Time to answer a `request`, including the wait for freshness.",
            ["request"],
        )
        self._built = histogram(
            "turnfold_window_build_seconds", "Time to build a window, without that wait."
        )
        answers = counter(
            "turnfold_answers",
            "Windows by `freshness`: `fresh`, `stale` (requested event not stored in time), "
            "`not_modified`.",
            ["freshness"],
        )
        self._answers = {name: answers.labels(name) for name in ("fresh", "stale", "not_modified")}
        trims = counter(
            "turnfold_window_trims",
            "Messages by `step`: `shortened`, left out (`folded`), or in a digest (`digested`).",
            ["step"],
        )
        self._trims = {name: trims.labels(name) for name in ("shortened", "folded", "digested")}
        self.windows = 0
        """The number of windows that were answered."""

    def answered(self, name: str, seconds: float) -> None:
        """Count an answer or an error, and its duration."""
        self._requests.labels(name).observe(seconds)

    def shown(self, answer: ContextReply) -> None:
        """Count a window: its freshness, the time to build it, and the messages it trims."""
        self.windows += 1
        if not answer.is_modified or answer.account is None:
            self._answers["not_modified"].inc()
            return
        self._answers["fresh" if answer.is_fresh else "stale"].inc()
        if answer.seconds is not None:
            self._built.observe(answer.seconds)
        account, trims = answer.account, self._trims
        trims["shortened"].inc(account.trimmed)
        trims["folded"].inc(account.folded)
        trims["digested"].inc(account.pending_digested)

    def refused(self, name: str, code: str) -> None:
        """Count a refusal."""
        self._refused.labels(name, code).inc()

    def count_dead_letters(self, counts: Mapping[str, int]) -> None:
        """Set the number of dead letters, by reason."""
        # Erasures delete dead letters, so a reason may be gone.
        self._dead_letters.clear()
        for reason, number in counts.items():
            self._dead_letters.labels(reason).set(number)
