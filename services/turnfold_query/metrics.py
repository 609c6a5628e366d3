"""What the query service counts."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The figures of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._seconds = Histogram(
            "turnfold_request_seconds",
            "Time to answer a request, waiting for freshness included.",
            ["request"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._seconds_of: dict[str, Histogram] = {}
        self._dead_letters = Gauge(
            "turnfold_dead_letters", "Events in the database that could never be stored.", ["reason"], registry=self.registry
        )
        self._refused = Counter("turnfold_requests_refused", "Requests that were refused.", ["request", "code"], registry=self.registry)

    def answered(self, name: str, seconds: float) -> None:
        """Count an answer, or what came instead of one, and how long it took."""
        if name not in self._seconds_of:
            self._seconds_of[name] = self._seconds.labels(name)
        self._seconds_of[name].observe(seconds)

    def refused(self, name: str, code: str) -> None:
        """Count a refusal."""
        self._refused.labels(name, code).inc()

    def buried(self, counts: Mapping[str, int]) -> None:
        """Tell how many dead letters there are, by reason."""
        for reason, number in counts.items():
            self._dead_letters.labels(reason).set(number)

    def text(self) -> bytes:
        """Everything in the Prometheus format."""
        return generate_latest(self.registry)
