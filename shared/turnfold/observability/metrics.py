"""The Prometheus metrics of a process, in a registry of their own."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector


class ProcessMetrics:
    """The metrics that every service has: those of its process and its platform."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus format."""
        return generate_latest(self.registry)
