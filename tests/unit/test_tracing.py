"""Recorded spans."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from turnfold.observability import tracing


def test_a_span_has_the_attributes_that_are_known_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing._Recorder, "tracer", provider.get_tracer("test"))

    with tracing.span("commit", attempt=2) as committing:
        committing.set_attributes(version=7, reason=None)

    (recorded,) = exporter.get_finished_spans()
    assert dict(recorded.attributes or {}) == {"turnfold.attempt": 2, "turnfold.version": 7}
