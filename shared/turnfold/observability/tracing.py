"""Traces from a published event to the version that covers it. While off, nothing is loaded."""

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Event, Thread
from types import TracebackType
from typing import Any, Literal

from turnfold.errors import StartError

VARIABLE = "TURNFOLD_TRACES"
HEADER = "traceparent"
"""The header of W3C Trace Context, on the bus and over HTTP."""

LAST_SECONDS = 2.0
"""The most time that the end of a process waits for a collector to take the last spans."""

Kind = Literal["internal", "server", "client", "producer", "consumer"]


class Span(AbstractContextManager["Span"]):
    """A span that is not recorded; the base class of recorded spans.

    `headers` pass the trace on with a message, and `trace` is the same as one text. Both are empty
    if nothing is recorded.
    """

    headers: Mapping[str, str] = {}

    @property
    def trace(self) -> str | None:
        """The trace as text, for another process that continues it."""
        return self.headers.get(HEADER)

    def set_attributes(self, **attributes: Any) -> None:
        """Add attributes. They must not contain user text. None is omitted."""

    def rename(self, name: str) -> None:
        """Rename the span."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the span."""


class _Recorder:
    """The factory of the spans of this process."""

    tracer: Any = None


_UNRECORDED = Span()


def is_requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment requests traces."""
    return environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes")


def is_enabled() -> bool:
    """Return whether this process records spans."""
    return _Recorder.tracer is not None


def begin(service: str) -> None:
    """Record spans from now on, as the standard `OTEL_*` variables configure.

    If the program has set up OpenTelemetry itself, its provider receives the spans.

    Raises:
        StartError: the packages are not installed.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415  # loaded only if requested
        from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise StartError(
            f"{VARIABLE} needs the package {error.name}; install 'turnfold[tracing]', or unset it"
        ) from error
    if is_enabled():
        return
    provider = trace.get_tracer_provider()
    # The placeholder of a program that set up nothing.
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", service)})
        )
        provider.add_span_processor(BatchSpanProcessor(trace_exporter.OTLPSpanExporter()))
        _call_briefly_at_exit(provider.shutdown)
    _Recorder.tracer = provider.get_tracer("turnfold")


def _call_briefly_at_exit(act: Callable[[], object]) -> None:
    """Call `act` when the process ends, before OpenTelemetry does, which waits for up to 30 s."""
    is_ending = Event()

    def wait_and_act() -> None:
        is_ending.wait()
        act()

    # Now, because no thread can be started at the end.
    acting = Thread(target=wait_and_act, name="last-spans", daemon=True)
    acting.start()

    def end() -> None:
        is_ending.set()
        acting.join(LAST_SECONDS)

    atexit.register(end)


def extract_traceparent(headers: Mapping[str, str] | None) -> str | None:
    """Return the trace of a message from its headers, or None."""
    return headers.get(HEADER) if headers else None


def span(
    name: str,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    others: Sequence[str] = (),
    **attributes: Any,
) -> Span:
    """Return a span as a context manager. While tracing is off, this costs one call.

    The span belongs to the trace `parent`, or else to the enclosing span, or else it starts a
    trace. `others` are linked traces.
    """
    if _Recorder.tracer is None:
        return _UNRECORDED
    return _Recorded(_Recorder.tracer, name, kind, parent, others, attributes)


class _Recorded(Span):
    """A recorded span."""

    def __init__(
        self,
        tracer: Any,
        name: str,
        kind: Kind,
        parent: str | None,
        others: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> None:
        from opentelemetry.trace import (  # noqa: PLC0415
            Link,
            SpanKind,
            get_current_span,
            set_span_in_context,
        )

        context = None if parent is None else _context_of(parent)
        links = [Link(get_current_span(_context_of(other)).get_span_context()) for other in others]
        self._span = tracer.start_span(
            name, context=context, kind=SpanKind[kind.upper()], links=links
        )
        self._context = set_span_in_context(self._span)
        self._token: Any = None
        carrier: dict[str, str] = {}
        _propagator().inject(carrier, self._context)
        self.headers = carrier
        self.set_attributes(**attributes)

    def set_attributes(self, **attributes: Any) -> None:
        self._span.set_attributes(
            {f"turnfold.{name}": value for name, value in attributes.items() if value is not None}
        )

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def __enter__(self) -> Span:
        from opentelemetry.context import attach  # noqa: PLC0415

        self._token = attach(self._context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from opentelemetry.context import detach  # noqa: PLC0415
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        detach(self._token)
        if kind is not None:
            # Only the type: the text of an exception may quote a message.
            self._span.set_status(Status(StatusCode.ERROR, kind.__name__))
        self._span.end()


def _context_of(parent: str) -> Any:
    from opentelemetry.context import Context  # noqa: PLC0415

    return _propagator().extract({HEADER: parent}, Context())


def _propagator() -> Any:
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

    return tracecontext.TraceContextTextMapPropagator()
