"""Logs: one structured line per unit of work, to standard error, without anything a user wrote."""

import contextlib
import logging
import sys
import traceback
from collections.abc import MutableMapping
from types import FrameType, TracebackType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from turnfold.errors import StartError

QUIET_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "httpcore")
"""Libraries that write prompts and answers into their logs."""
FRAMES = 12


def configure_logs(
    *, role: str, level: str = "info", format: str = "auto", stream: TextIO | None = None
) -> None:
    """Send the logs of this process, ours and the libraries', to standard error; call it once.

    Every line names the `role`. `format` is `json`, `console`, or `auto`: console on a terminal. Exceptions are told
    by type and place, never by their text, which may quote a message. A line that cannot be written is lost, and stops no work.
    """
    out = stream or sys.stderr
    is_console = format == "console" or (format == "auto" and out.isatty())
    threshold = getattr(logging, level.upper())

    def add_role(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("role", role)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_role,
        log_exception,
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if is_console
        else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(out))),
        cache_logger_on_first_use=True,
    )

    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Unfailing:
    """A stream for lines that may get lost: where a log goes to a full disk, the work it tells of goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Have it written, if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def log_exception(
    _: WrappedLogger, __: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace `exc_info` by the types of the exception and its causes, and the places it came through."""
    found = _exception(event.pop("exc_info", None))
    if found is not None:
        event["error"] = _described(found)
        event["at"] = _places(found.__traceback__)
    return event


def _exception(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple) and isinstance(exc_info[1], BaseException):
        return exc_info[1]
    return sys.exc_info()[1] if exc_info else None


def _described(error: BaseException) -> str:
    """The chain of types; the text only where it cannot quote a user."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(parts) < FRAMES:
        kind = type(current)
        is_plain = isinstance(current, StartError | OSError) or kind.__module__.startswith("nats.")
        parts.append(f"{kind.__name__}: {current}" if is_plain and str(current) else kind.__name__)
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return " <- ".join(parts)


def stack_lines(frame: FrameType | None) -> list[str]:
    """Where a thread is now, and how it came there: files, lines and functions."""
    return _told(traceback.extract_stack(frame)) if frame is not None else []


def _places(trace: TracebackType | None) -> list[str]:
    return _told(traceback.extract_tb(trace))


def _told(frames: traceback.StackSummary) -> list[str]:
    return [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
        for frame in frames[-FRAMES:]
    ]
