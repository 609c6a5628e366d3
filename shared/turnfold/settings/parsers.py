"""Parsers of setting values, one per setting.

Each takes the raw value of the command line, the environment or the file, and raises `ValueError`
if it is invalid.
"""

import difflib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from turnfold.access.identity import NATS_SCHEMES
from turnfold.contracts.subjects import id_fault
from turnfold.core.policy.allowance import is_model_pattern
from turnfold.core.policy.presets import PRESETS, Mode
from turnfold.settings.urls import HOST_RULE, has_host, is_database_address, is_http_url

Checked = TypeVar("Checked")

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("auto", "json", "console")
DATABASE_SCHEMES = ("sqlite+aiosqlite", "postgresql+asyncpg")


def _model_patterns(raw: Any) -> tuple[str, ...]:
    names = raw if isinstance(raw, list) else _non_empty_text(raw).split(",")
    patterns = tuple(_non_empty_text(name) for name in names)
    for pattern in patterns:
        if not is_model_pattern(pattern):
            raise ValueError(
                f"{pattern!r} is neither a model's name, such as openai/gpt-4.1-mini,"
                " nor the beginning of names, such as openai/*"
            )
    return patterns


def _non_empty_text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("must be non-empty text")
    return raw.strip()


def _path(raw: Any) -> Path:
    path = raw if isinstance(raw, Path) else Path(_non_empty_text(raw))
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path} names a user who does not exist on this machine") from error


def _content_of(check: Callable[[str], Checked]) -> Callable[[Any], Checked]:
    """Return a parser for a setting that names a file, which yields the checked content."""

    def read(raw: Any) -> Checked:
        path = _path(raw)
        try:
            content = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8") from error
        try:
            return check(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    return read


def _task(text: str) -> str:
    # Imported only if one is set: with these two modules, commands start a tenth slower.
    from turnfold.core.summary.prompt import checked_task  # noqa: PLC0415

    return checked_task(text)


def _patterns(text: str) -> tuple[str, ...]:
    from turnfold.core.summary.redaction import checked_patterns  # noqa: PLC0415

    return checked_patterns(text)


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[Any], int]:
    """Return a parser for a whole number within these limits."""

    def read(raw: Any) -> int:
        try:
            # TOML has booleans and fractions, which `int` would convert in silence.
            number = int(raw) if not isinstance(raw, bool | float) else None
        except (TypeError, ValueError):
            number = None
        if number is None or number < minimum or (maximum is not None and number > maximum):
            raise ValueError(
                f"must be a whole number of at least {minimum}"
                + (f" and at most {maximum}" if maximum is not None else "")
            )
        return number

    return read


def _fraction(maximum: float, requirement: str) -> Callable[[Any], float]:
    """Return a parser for a number above 0, and at most the maximum."""

    def read(raw: Any) -> float:
        try:
            number = float(raw) if not isinstance(raw, bool) else 0.0
        # TOML has whole numbers without a limit.
        except (TypeError, ValueError, OverflowError):
            number = 0.0
        if not 0 < number <= maximum:
            raise ValueError(f"must be a number {requirement}")
        return number

    return read


_seconds = _fraction(sys.float_info.max, "of seconds above 0")
_share = _fraction(1.0, "above 0 and at most 1")


def one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    """Return a parser for one of these words, in any case."""

    def read(raw: Any) -> str:
        word = _non_empty_text(raw).lower()
        if word not in words:
            nearest = difflib.get_close_matches(word, words, n=1)
            advice = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"must be one of {', '.join(words)}{advice}")
        return word

    return read


def _switch(raw: Any) -> bool:
    word = str(raw).strip().lower()
    if word not in ("1", "true", "yes", "0", "false", "no"):
        raise ValueError("must be 1 or 0")
    return word in ("1", "true", "yes")


def _url(
    schemes: tuple[str, ...], has_address: Callable[[str], bool], *, may_be_several: bool = False
) -> Callable[[Any], str]:
    def read(raw: Any) -> str:
        text = _non_empty_text(raw)
        for url in map(str.strip, text.split(",") if may_be_several else [text]):
            if url.partition("://")[0].lower() not in schemes:
                raise ValueError(
                    f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}"
                )
            # Without the text, which may hold a part of a password.
            if not has_address(url):
                raise ValueError(f"must {HOST_RULE}")
        return text

    return read


def _http_url(raw: Any) -> str:
    url = _non_empty_text(raw)
    if not is_http_url(url):
        raise ValueError(
            "must begin with http:// or https:// and name a host; a port, if any, must be valid"
        )
    return url


def _provider_url(raw: Any) -> str:
    url = _http_url(raw)
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must have neither credentials nor parameters; callers send their own key")
    return url


def _host(raw: Any) -> str:
    host = _non_empty_text(raw)
    if "/" in host:
        raise ValueError("must be a host's name or address, without scheme, port and path")
    return host


def _agent_id(raw: Any) -> str:
    agent_id = _non_empty_text(raw)
    if fault := id_fault(agent_id):
        raise ValueError(fault)
    return agent_id


PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "config": _path,
    "nats_url": _url(NATS_SCHEMES, has_host, may_be_several=True),
    "nats_creds": _path,
    "nats_user": _non_empty_text,
    "nats_password": _non_empty_text,
    "nats_nkey": _non_empty_text,
    "nats_ca": _path,
    "nats_certificate": _path,
    "nats_certificate_key": _path,
    "nats_tls_first": _switch,
    "nats_anonymous": _switch,
    "nats_replicas": whole_number(1, 5),
    "nats_server": _path,
    "database_url": _url(DATABASE_SCHEMES, is_database_address),
    "data_dir": _path,
    "http_host": _host,
    "http_port": whole_number(0, 65_535),
    "http_tokens": _path,
    "http_token": _non_empty_text,
    "http_checked_elsewhere": _switch,
    "http_certificate": _path,
    "http_certificate_key": _path,
    "proxy_upstream": _provider_url,
    "proxy_host": _host,
    "proxy_port": whole_number(0, 65_535),
    "proxy_agent": _agent_id,
    "proxy_wait_seconds": _seconds,
    "proxy_tools": _switch,
    "mode": one_of(tuple(Mode)),
    "preset": one_of(tuple(sorted(PRESETS))),
    "context_window": whole_number(0),
    "summary_model": _non_empty_text,
    "summary_models": _model_patterns,
    "summary_api_base": _http_url,
    "summary_api_key": _non_empty_text,
    "summary_timeout_seconds": _seconds,
    "summary_job_timeout_seconds": _seconds,
    "summary_lease_seconds": _seconds,
    "summary_window": whole_number(1_000),
    "summary_prompt": _content_of(_task),
    "redact_patterns": _content_of(_patterns),
    "summary_concurrency": whole_number(1),
    "max_event_bytes": whole_number(1),
    "max_event_messages": whole_number(1, 1_000),
    "max_event_depth": whole_number(1),
    "max_sessions_per_agent": whole_number(1),
    "max_requests": whole_number(1),
    "max_waiting": whole_number(1),
    "max_searches": whole_number(1),
    "agent_share": _share,
    "request_seconds": _seconds,
    "max_body_memory": whole_number(1024 * 1024),
    "max_connections": whole_number(16),
    "stream_max_bytes": whole_number(1),
    # Up to a time after the year 1, which the date of the oldest event to keep needs.
    "stream_retention_hours": whole_number(0, 10_000_000),
    "log_level": one_of(LOG_LEVELS),
    "log_format": one_of(LOG_FORMATS),
    "traces": _switch,
    "worker_http_host": _host,
    "worker_http_port": whole_number(0, 65_535),
    "watchdog_seconds": _seconds,
    "announce": _switch,
}
SETTING_NAMES = tuple(PARSERS)
