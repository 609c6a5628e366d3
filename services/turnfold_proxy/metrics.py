"""The Prometheus metrics of a proxy."""

from functools import partial

from prometheus_client import Counter, Histogram

from turnfold.observability.metrics import ProcessMetrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class ProxyMetrics(ProcessMetrics):
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        super().__init__()
        counter = partial(Counter, registry=self.registry)
        self._requests = counter(
            "turnfold_proxy_requests",
            "Model calls, by what was `sent`: `whole`, `trimmed`, `bypassed`.",
            ["sent"],
        )
        self._bypassed = counter(
            "turnfold_proxy_bypassed",
            "Calls that were sent unchanged because Turnfold could not take part, by `reason`.",
            ["reason"],
        )
        self._answers = counter(
            "turnfold_proxy_answers",
            "Answers, by how they `ended`: `recorded`, `cut` (recorded in part) or `unrecorded`.",
            ["ended"],
        )
        self._lookups = counter(
            "turnfold_proxy_lookups", "Calls of tools that the proxy answered itself."
        )
        self._seconds = Histogram(
            "turnfold_proxy_prepare_seconds",
            "Time that a call waited for its recording and its window.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def prepared(self, sent: str, seconds: float) -> None:
        """Count a model call, and how long it waited."""
        self._requests.labels(sent).inc()
        self._seconds.observe(seconds)

    def bypassed(self, reason: str) -> None:
        """Count a model call that went out as it came."""
        self._bypassed.labels(reason).inc()

    def answered(self, ended: str) -> None:
        """Count an answer: `recorded`, `cut` (recorded as far as it came) or `unrecorded`."""
        self._answers.labels(ended).inc()

    def looked_up(self, calls: int) -> None:
        """Count calls of tools that the proxy answered."""
        self._lookups.inc(calls)
