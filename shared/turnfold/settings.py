"""What an operator may set: read once, at the edge, from a mapping and a file; a misspelt name stops the start."""

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from urllib.parse import urlsplit

from turnfold.access.identity import Identity
from turnfold.contracts.events import LIMITS, EventLimits
from turnfold.core.policy.allowance import (
    CEILINGS,
    SESSION_MODEL,
    UNLIMITED_AT_ZERO,
    Allowance,
    is_model_pattern,
    provider_of,
)
from turnfold.core.policy.presets import (
    DEFAULT_PRESET,
    FIELD_TYPES,
    MOST,
    Mode,
    Policy,
    adjusted,
    preset_named,
)
from turnfold.core.summary.prompt import checked_task
from turnfold.core.summary.redaction import checked_patterns
from turnfold.errors import StartError

Checked = TypeVar("Checked")

PREFIX = "TURNFOLD_"
POLICY_PREFIX = "TURNFOLD_POLICY__"
LIMIT_PREFIX = "TURNFOLD_LIMIT__"
READY_FILE = "turnfold.json"
"""The ready line of `turnfold up`, in its data directory."""

SHORT_NAMES: Mapping[str, tuple[str, ...]] = {
    "MAX_CONTEXT_TOKENS": ("trigger_tokens",),
    "MAX_CHARS_PER_MESSAGE": ("user_max_chars", "assistant_max_chars", "tool_result_max_chars"),
}
"""Names without the prefix, for the preset `token-budget` alone, and the policy numbers they stand for."""
SHORT_NAMES_PRESET = "token-budget"

DEFAULT_HTTP_HOST = "127.0.0.1"
DEFAULT_HTTP_PORT = 8080
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("auto", "json", "console")
DATABASE_SCHEMES = ("sqlite+aiosqlite", "postgresql+asyncpg")
NATS_SCHEMES = ("nats", "tls", "ws", "wss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator decided. Nothing secret stands in its `repr`; sizes are bytes, times seconds.

    `policy` is what holds where no agent and no session has a policy of its own. `overrides` are the numbers that were
    set one by one: they stay above whatever preset a session chooses (`policy_of`). `limits` are ceilings that no agent and no
    session lifts. `named` are the fields that somebody set; the others hold their defaults.
    """

    nats_url: str = field(default="nats://127.0.0.1:4222", repr=False)
    nats_creds: Path | None = None
    nats_user: str | None = None
    nats_password: str | None = field(default=None, repr=False)
    nats_nkey: str | None = field(default=None, repr=False)
    nats_ca: Path | None = None
    nats_certificate: Path | None = None
    nats_certificate_key: Path | None = None
    nats_tls_first: bool = False
    nats_replicas: int = 1
    nats_server: Path | None = None

    database_url: str = field(default="sqlite+aiosqlite:///./turnfold.db", repr=False)
    data_dir: Path | None = None

    http_host: str = DEFAULT_HTTP_HOST
    http_port: int = DEFAULT_HTTP_PORT
    http_url: str = f"http://{DEFAULT_HTTP_HOST}:{DEFAULT_HTTP_PORT}"
    http_tokens: Path | None = None
    http_token: str | None = field(default=None, repr=False)
    http_checked_elsewhere: bool = False
    http_certificate: Path | None = None
    http_certificate_key: Path | None = None

    preset: str = DEFAULT_PRESET
    policy: Policy = Policy()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    short_overrides: Mapping[str, Any] = field(default_factory=dict)

    limits: Mapping[str, int] = field(default_factory=dict)

    summary_model: str | None = None
    summary_models: tuple[str, ...] = ()
    summary_api_base: str | None = field(default=None, repr=False)
    summary_api_key: str | None = field(default=None, repr=False)
    summary_timeout_seconds: float = 120.0
    summary_job_timeout_seconds: float = 600.0
    summary_lease_seconds: float = 60.0
    summary_window: int | None = None
    summary_prompt: str | None = field(default=None, repr=False)
    redact_patterns: tuple[str, ...] = field(default=(), repr=False)
    summary_concurrency: int = 4

    max_event_bytes: int = LIMITS.bytes
    max_event_messages: int = LIMITS.messages
    max_event_depth: int = LIMITS.depth
    max_sessions_per_agent: int = 1_000_000
    max_requests: int = 512
    max_waiting: int = 2_048
    max_searches: int = 64
    agent_share: float = 0.125
    request_seconds: float = 10.0
    max_body_memory: int = 64 * 1024 * 1024
    max_connections: int = 1_024
    stream_max_bytes: int | None = None
    stream_retention_hours: int = 72

    log_level: str = "info"
    log_format: str = "auto"
    traces: bool = False
    worker_http_host: str = DEFAULT_HTTP_HOST
    worker_http_port: int | None = None
    watchdog_seconds: float = 60.0
    announce: bool = False

    explicit_names: frozenset[str] = frozenset()
    origins: Mapping[str, str] = field(default_factory=dict)
    """Whether the environment or the file sets a policy number, or a limit (`limit.<number>`)."""

    @property
    def identity(self) -> Identity:
        """Who this process is on the bus."""
        return Identity(
            creds=_spelt(self.nats_creds),
            nkey=self.nats_nkey,
            user=self.nats_user,
            password=self.nats_password,
            ca=_spelt(self.nats_ca),
            certificate=_spelt(self.nats_certificate),
            certificate_key=_spelt(self.nats_certificate_key),
            tls_first="1" if self.nats_tls_first else None,
        )

    @property
    def mode(self) -> Mode:
        """Who decides when messages leave."""
        return self.policy.mode

    @property
    def event_limits(self) -> EventLimits:
        """What an event may hold."""
        return EventLimits(self.max_event_bytes, self.max_event_messages, self.max_event_depth)

    @property
    def own_model(self) -> str | None:
        """The installation's own summary model; None if it has none, or takes the model of each session."""
        return next(filter(_is_concrete, (self.summary_model, self.policy.summary_model)), None)

    @property
    def lacks_session_models(self) -> bool:
        """Whether summaries are to be written by each session's model, and no model is allowed for that."""
        return self.summary_model == SESSION_MODEL and not self.allowance.models

    @property
    def allowance(self) -> Allowance:
        """The limits for agents and sessions. A default ceiling is never below the operator's own number."""
        own = {
            name: getattr(self.policy, name)
            for name, default in CEILINGS.items()
            if default is not None
        }
        raised = {name: value for name, value in own.items() if value > (CEILINGS[name] or 0)}
        models = (
            *self.summary_models,
            *filter(_is_concrete, (self.summary_model, self.policy.summary_model)),
        )
        return Allowance(models, tuple({**raised, **self.limits}.items()))

    @property
    def key_models(self) -> tuple[str, ...]:
        """The models that are called with the operator's own key and address: those of one provider.

        It is the provider of the installation's own model. Where each session's model is taken, it is the provider that
        TURNFOLD_SUMMARY_MODELS names, if it names one alone.
        """
        if self.own_model is not None:
            provider = provider_of(self.own_model)
            return (self.own_model,) if provider is None else (self.own_model, f"{provider}/*")
        providers = {provider_of(pattern) for pattern in self.summary_models}
        provider = providers.pop() if len(providers) == 1 else None
        return () if provider is None else (f"{provider}/*",)

    def policy_of(self, preset: str) -> Policy:
        """The policy of a preset under these settings: what was set one by one stands above the preset.

        Raises:
            ValueError: no preset is called so.
        """
        short = self.short_overrides if preset == SHORT_NAMES_PRESET else {}
        return adjusted(preset_named(preset), {**short, **self.overrides})


@dataclass(frozen=True, slots=True)
class _Layer:
    """Settings from one place, unread: `spelt` says how a name is written there."""

    values: Mapping[str, Any]
    policy: Mapping[str, Any]
    limits: Mapping[str, Any]
    display_name: Callable[[str], str]
    origin: str = "environment"


def read_settings(environ: Mapping[str, str], given: Mapping[str, Any] | None = None) -> Settings:
    """The settings of this process: `given` (the command line) above `environ` above the file TURNFOLD_CONFIG names.

    Where no bus URL is set, the URLs come from the ready line in the data directory, if a system runs there.

    Raises:
        StartError: a name nobody knows (with its nearest match), or a value that means nothing.
    """
    command_line = _Layer(
        {name: value for name, value in (given or {}).items() if value is not None},
        {},
        {},
        lambda name: f"--{name}",
    )
    environment = _environment(environ)
    config = command_line.values.get("config") or environment.values.get("config")
    layers = [_file(Path(config))] if config else []
    layers += [environment, command_line]

    values: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    limits: dict[str, int] = {}
    for layer in layers:
        for name, raw in layer.values.items():
            if name != "config":
                values[name] = _read(name, raw, layer)
        numbers |= {
            name: layer.values[name] for name in ("mode", "context_window") if name in layer.values
        }
        numbers |= layer.policy
        limits |= {name: _read_limit(name, raw) for name, raw in layer.limits.items()}
    values.pop("mode", None)
    values.pop("context_window", None)
    values["explicit_names"] = frozenset(values)
    values["limits"] = limits
    values["origins"] = _origins(layers)

    if not {"http_host", "http_port", "http_certificate"}.isdisjoint(values):
        host, port = (
            values.get("http_host", DEFAULT_HTTP_HOST),
            values.get("http_port", DEFAULT_HTTP_PORT),
        )
        values["http_url"] = http_url(host, port, is_encrypted="http_certificate" in values)
    if "nats_url" not in values and values.get("data_dir"):
        values = _running(values["data_dir"]) | values
    settings = _with_policy(values, numbers, short_overrides(environ))
    _check_key(settings)
    return settings


def _origins(layers: Sequence[_Layer]) -> dict[str, str]:
    """Where policy numbers and limits are set; a later layer stands above one before it."""
    origins: dict[str, str] = {}
    for layer in layers:
        numbers = [
            *(name for name in ("mode", "context_window") if name in layer.values),
            *layer.policy,
        ]
        origins |= dict.fromkeys(
            [*numbers, *(f"limit.{name}" for name in layer.limits)], layer.origin
        )
    return origins


def http_url(host: str, port: int, *, is_encrypted: bool = False) -> str:
    """Where a server that listens on `host` is reached from this machine."""
    scheme = "https" if is_encrypted else "http"
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"


def redacted(url: str) -> str:
    """The URL (or several, parted by commas) without user and password: fit for logs."""
    shown = []
    for one in url.split(","):
        scheme, mark, rest = one.strip().rpartition("://")
        authority, slash, path = rest.partition("/")
        shown.append(f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}")
    return ",".join(shown)


def short_overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    """The policy numbers that MAX_CONTEXT_TOKENS and MAX_CHARS_PER_MESSAGE stand for."""
    return {
        number: environ[name]
        for name, numbers in SHORT_NAMES.items()
        if environ.get(name)
        for number in numbers
    }


def _with_policy(
    values: dict[str, Any], numbers: Mapping[str, Any], short: Mapping[str, Any]
) -> Settings:
    preset = values.get("preset", DEFAULT_PRESET)
    chosen = Settings(**values, overrides=numbers, short_overrides=short)
    try:
        policy = chosen.policy_of(preset)
    except ValueError as error:
        raise StartError(
            f"the policy is not valid: {error}; correct TURNFOLD_PRESET, TURNFOLD_MODE or {POLICY_PREFIX}*"
        ) from error
    typed = {name: getattr(policy, name) for name in numbers}
    return Settings(**values, overrides=typed, short_overrides=short, policy=policy)


def _environment(environ: Mapping[str, str]) -> _Layer:
    named = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    known = [_as_variable(name) for name in _NAMES]
    known += [f"{POLICY_PREFIX}{name.upper()}" for name in FIELD_TYPES] + [
        f"{LIMIT_PREFIX}{name.upper()}" for name in CEILINGS
    ]
    for name in sorted(named):
        if name not in known:
            raise StartError(_unknown("setting", name, known))
    filled = {name: value for name, value in named.items() if value.strip()}
    policy = {
        name.removeprefix(POLICY_PREFIX).lower(): value
        for name, value in filled.items()
        if name.startswith(POLICY_PREFIX)
    }
    limits = {
        name.removeprefix(LIMIT_PREFIX).lower(): value
        for name, value in filled.items()
        if name.startswith(LIMIT_PREFIX)
    }
    plain = {
        name: value
        for name, value in filled.items()
        if not name.startswith((POLICY_PREFIX, LIMIT_PREFIX))
    }
    return _Layer(
        {name.removeprefix(PREFIX).lower(): value for name, value in plain.items()},
        policy,
        limits,
        _as_variable,
    )


def _file(path: Path) -> _Layer:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartError(
            f"TURNFOLD_CONFIG names {path}, which cannot be read ({error.strerror}); correct the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not TOML: {error}") from error
    policy = found.pop("policy", {})
    if not isinstance(policy, dict):
        raise StartError(f"policy in {path} is a table: write [policy] and its numbers below")
    limits = found.pop("limit", {})
    if not isinstance(limits, dict):
        raise StartError(f"limit in {path} is a table: write [limit] and its numbers below")
    known = [name for name in _NAMES if name != "config"]
    kinds = (
        (found, known, "setting"),
        (policy, list(FIELD_TYPES), "policy number"),
        (limits, list(CEILINGS), "limit"),
    )
    for names, choices, kind in kinds:
        for name in names:
            if name not in choices:
                raise StartError(f"{_unknown(kind, name, choices)} (in {path})")
    return _Layer(found, policy, limits, lambda name: f"{name} in {path}", "file")


def _running(data_dir: Path) -> dict[str, str]:
    """The URLs of the system that runs on this data directory, if one does."""
    try:
        ready = json.loads((data_dir / READY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    names = ("nats_url", "database_url", "http_url")
    return (
        {name: ready[name] for name in names if isinstance(ready.get(name), str)}
        if isinstance(ready, dict)
        else {}
    )


def _unknown(kind: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(
        name.upper(), known, n=1, cutoff=0.4
    ) or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    advice = f"did you mean {nearest[0]}?" if nearest else "the manual lists all of them"
    return f"there is no {kind} {name}: {advice}"


def _as_variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _read(name: str, raw: Any, layer: _Layer) -> Any:
    try:
        return _READERS[name](raw)
    except (TypeError, ValueError) as error:
        raise StartError(f"{layer.display_name(name)} is not valid: {error}") from error


def _read_limit(name: str, raw: Any) -> int:
    try:
        return _whole(1 if name in UNLIMITED_AT_ZERO else 0, MOST)(raw)
    except ValueError as error:
        raise StartError(
            f"{LIMIT_PREFIX}{name.upper()} is not valid: {error}; leave it out for no ceiling of your own"
        ) from error


def _check_key(settings: Settings) -> None:
    """Refuse a key or an address that belongs to no one provider, because it would go to all of them."""
    has_key = settings.summary_api_key is not None or settings.summary_api_base is not None
    if has_key and settings.summary_models and not settings.key_models:
        raise StartError(
            "TURNFOLD_SUMMARY_API_KEY and _API_BASE belong to one provider: TURNFOLD_SUMMARY_MODELS names several or none; name a model "
            "of the provider in TURNFOLD_SUMMARY_MODEL, and give other providers' keys in their own variables, such as ANTHROPIC_API_KEY"
        )


def _is_concrete(name: str | None) -> TypeGuard[str]:
    return name is not None and name != SESSION_MODEL


def _model_patterns(raw: Any) -> tuple[str, ...]:
    names = raw if isinstance(raw, list) else _text(raw).split(",")
    patterns = tuple(_text(name) for name in names)
    for pattern in patterns:
        if not is_model_pattern(pattern):
            raise ValueError(
                f"{pattern!r} is no name of a model, such as openai/gpt-4.1-mini, and no beginning of names, such as openai/*"
            )
    return patterns


def _spelt(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("it has to be a text")
    return raw.strip()


def _path(raw: Any) -> Path:
    return raw.expanduser() if isinstance(raw, Path) else Path(_text(raw)).expanduser()


def _file_read_by(check: Callable[[str], Checked]) -> Callable[[Any], Checked]:
    """A setting that names a file of which only what it holds matters."""

    def read(raw: Any) -> Checked:
        path = _path(raw)
        try:
            held = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8") from error
        try:
            return check(held)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    return read


def _whole(least: int, most: int | None = None) -> Callable[[Any], int]:
    def read(raw: Any) -> int:
        try:
            number = int(raw) if not isinstance(raw, bool | float) else None
        except ValueError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            raise ValueError(
                f"it has to be a whole number of at least {least}"
                + (f" and at most {most}" if most is not None else "")
            )
        return number

    return read


def _seconds(raw: Any) -> float:
    try:
        seconds = float(raw) if not isinstance(raw, bool) else 0.0
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("it has to be a number of seconds above 0")
    return seconds


def _share(raw: Any) -> float:
    try:
        share = float(raw) if not isinstance(raw, bool) else 0.0
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError("it has to be a number above 0, and at most 1")
    return share


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def read(raw: Any) -> str:
        word = _text(raw).lower()
        if word not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return word

    return read


def _switch(raw: Any) -> bool:
    word = str(raw).strip().lower()
    if word not in ("1", "true", "yes", "0", "false", "no"):
        raise ValueError("it is 1 or 0")
    return word in ("1", "true", "yes")


def _url(schemes: tuple[str, ...]) -> Callable[[Any], str]:
    def read(raw: Any) -> str:
        for one in _text(raw).split(","):
            if urlsplit(one.strip()).scheme not in schemes:
                raise ValueError(
                    f"it begins with {' or '.join(f'{scheme}://' for scheme in schemes)}"
                )
        return _text(raw)

    return read


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "nats_url": _url(NATS_SCHEMES),
    "nats_creds": _path,
    "nats_user": _text,
    "nats_password": _text,
    "nats_nkey": _text,
    "nats_ca": _path,
    "nats_certificate": _path,
    "nats_certificate_key": _path,
    "nats_tls_first": _switch,
    "nats_replicas": _whole(1, 5),
    "nats_server": _path,
    "database_url": _url(DATABASE_SCHEMES),
    "data_dir": _path,
    "http_host": _text,
    "http_port": _whole(0, 65_535),
    "http_tokens": _path,
    "http_token": _text,
    "http_checked_elsewhere": _switch,
    "http_certificate": _path,
    "http_certificate_key": _path,
    "mode": _one_of(tuple(Mode)),
    "preset": _text,
    "context_window": _whole(0),
    "summary_model": _text,
    "summary_models": _model_patterns,
    "summary_api_base": _text,
    "summary_api_key": _text,
    "summary_timeout_seconds": _seconds,
    "summary_job_timeout_seconds": _seconds,
    "summary_lease_seconds": _seconds,
    "summary_window": _whole(1_000),
    "summary_prompt": _file_read_by(checked_task),
    "redact_patterns": _file_read_by(checked_patterns),
    "summary_concurrency": _whole(1),
    "max_event_bytes": _whole(1),
    "max_event_messages": _whole(1, 1_000),
    "max_event_depth": _whole(1),
    "max_sessions_per_agent": _whole(1),
    "max_requests": _whole(1),
    "max_waiting": _whole(1),
    "max_searches": _whole(1),
    "agent_share": _share,
    "request_seconds": _seconds,
    "max_body_memory": _whole(1024 * 1024),
    "max_connections": _whole(16),
    "stream_max_bytes": _whole(1),
    "stream_retention_hours": _whole(0),
    "log_level": _one_of(LOG_LEVELS),
    "log_format": _one_of(LOG_FORMATS),
    "traces": _switch,
    "worker_http_host": _text,
    "worker_http_port": _whole(0, 65_535),
    "watchdog_seconds": _seconds,
    "announce": _switch,
}
_NAMES = (*_READERS, "config")
