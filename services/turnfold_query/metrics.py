"""The Prometheus metrics of a query server."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client import Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from turnfold.observability.metrics import ProcessMetrics
from turnfold.operations.query.environment import ContextReply

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_EDGES = (*map(str, SECONDS), "+Inf")


class QueryMetrics(ProcessMetrics, Collector):
    """The metrics of one process, in their own registry.

    Figures of every request are plain numbers, which take a third of the time of counters with
    locks: the same loop counts and reads them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registry.register(self)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self._is_ready = gauge("turnfold_ready", "1 if `/readyz` answers 200, else 0.")
        self._dead_letters = gauge(
            "turnfold_dead_letters", "Dead letters by `reason` (global).", ["reason"]
        )
        self._refused = counter(
            "turnfold_requests_refused",
            "Bus requests answered with an error, by `request` and `code`.",
            ["request", "code"],
        )
        self._foreign = counter(
            "turnfold_foreign_replies",
            "Replies from a subscriber instead of the stream to events published over HTTP.",
        )
        self._lane_deaths = counter(
            "turnfold_lane_deaths",
            "Crashes and hangs of the process for searches and large windows, which is restarted.",
        )
        self._requests: dict[str, _Times] = {}
        self._built = _Times()
        self._answers = {"fresh": 0, "stale": 0, "not_modified": 0}
        self._trims = {"shortened": 0, "folded": 0, "digested": 0}

    def answered(self, name: str, seconds: float) -> None:
        """Count an answer or an error, and its duration."""
        times = self._requests.get(name)
        if times is None:
            times = self._requests[name] = _Times()
        times.add(seconds)

    def shown(self, answer: ContextReply) -> None:
        """Count a window: its freshness, the time to build it, and the messages it trims."""
        if not answer.is_modified or answer.account is None:
            self._answers["not_modified"] += 1
            return
        self._answers["fresh" if answer.is_fresh else "stale"] += 1
        if answer.seconds is not None:
            self._built.add(answer.seconds)
        account, trims = answer.account, self._trims
        trims["shortened"] += account.trimmed
        trims["folded"] += account.folded
        trims["digested"] += account.pending_digested

    @property
    def windows(self) -> int:
        """The number of windows that were answered."""
        return sum(self._answers.values())

    def refused(self, name: str, code: str) -> None:
        """Count a refusal."""
        self._refused.labels(name, code).inc()

    def disturbed(self) -> None:
        """Count a reply to a publication that did not come from the stream."""
        self._foreign.inc()

    def lane_died(self) -> None:
        """Count a crash or a hang of the process for searches and large windows."""
        self._lane_deaths.inc()

    def ready(self, *, is_ready: bool) -> None:
        """Set whether this process can answer."""
        self._is_ready.set(is_ready)

    def count_dead_letters(self, counts: Mapping[str, int]) -> None:
        """Set the number of dead letters, by reason."""
        # Erasures delete dead letters, so a reason may be gone.
        self._dead_letters.clear()
        for reason, number in counts.items():
            self._dead_letters.labels(reason).set(number)

    def collect(self) -> Iterable[Metric]:
        """Return the plain numbers as metrics."""
        requests = HistogramMetricFamily(
            "turnfold_request_seconds",
            "Time to answer a `request`, including the wait for freshness.",
            labels=["request"],
        )
        for name, times in self._requests.items():
            requests.add_metric([name], times.buckets(), times.sum)
        built = HistogramMetricFamily(
            "turnfold_window_build_seconds", "Time to build a window, without that wait."
        )
        built.add_metric([], self._built.buckets(), self._built.sum)
        answers = CounterMetricFamily(
            "turnfold_answers",
            "Windows by `freshness`: `fresh`, `stale` (requested event not stored in time), "
            "`not_modified`.",
            labels=["freshness"],
        )
        trims = CounterMetricFamily(
            "turnfold_window_trims",
            "Messages by `step`: `shortened`, left out (`folded`), or in a digest (`digested`).",
            labels=["step"],
        )
        for family, counts in ((answers, self._answers), (trims, self._trims)):
            for label, number in counts.items():
                family.add_metric([label], number)
        return requests, built, answers, trims


class _Times:
    """The durations of one kind of work, as a histogram."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * len(_EDGES)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.sum += seconds
        # A bucket of Prometheus includes its upper edge.
        self._counts[bisect_left(SECONDS, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return the number of durations up to each edge."""
        seen, buckets = 0, []
        for edge, count in zip(_EDGES, self._counts, strict=True):
            seen += count
            buckets.append((edge, float(seen)))
        return buckets
