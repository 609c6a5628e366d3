"""Structured logs on standard error: one line per unit of work, without user text."""

import contextlib
import logging
import re
import sys
import traceback
from collections.abc import MutableMapping
from types import FrameType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from turnfold.errors import StartError

QUIET_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "httpcore")
"""Libraries that log prompts and answers."""
FRAMES = 12


def configure_logs(
    *, role: str, level: str = "info", format: str = "auto", stream: TextIO | None = None
) -> None:
    """Write the logs of this process and its libraries to standard error. Call this once.

    Every line names the `role`. `format` is `json`, `console`, or `auto`, which is `console` on a
    terminal. Exceptions are logged by type and place, because their text may quote a message. A
    line that cannot be written is dropped.
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

    # Libraries log with the standard module. Their lines get the same form.
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, _cut_quotes, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # Never below `warning`: libraries write what they send at lower levels, and that is user text.
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Unfailing:
    """A stream that drops lines it cannot write, for example to a full disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, and ignore errors."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, and ignore errors."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def log_exception(
    _: WrappedLogger, __: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace `exc_info` by the types of the exception and its causes, and their places."""
    error = _exception(event.pop("exc_info", None))
    if error is not None:
        event["error"] = _described(error)
        event["at"] = _stack_places(traceback.extract_tb(error.__traceback__))
    return event


def _cut_quotes(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Cut off what asyncio quotes: arguments of callbacks, results and exceptions of tasks."""
    if event["logger"] == "asyncio":
        event["event"] = re.split(r"[(\n]", event["event"], maxsplit=1)[0]
    return event


def _exception(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple) and isinstance(exc_info[1], BaseException):
        return exc_info[1]
    return sys.exc_info()[1] if exc_info else None


def _described(error: BaseException) -> str:
    """Return the chain of types. The text is included only if it cannot quote a user."""
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
    """Return the stack of a frame as files, lines and functions."""
    return _stack_places(traceback.extract_stack(frame)) if frame is not None else []


def _stack_places(frames: traceback.StackSummary) -> list[str]:
    return [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
        for frame in frames[-FRAMES:]
    ]
