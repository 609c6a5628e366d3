"""Storing events: decoded events, the settings that evictions need, and the stores that ingest uses."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from secrets import randbits
from types import MappingProxyType
from typing import NamedTuple, Protocol

from turnfold.core.eviction.usage import UsageReport
from turnfold.core.policy.allowance import DEFAULT_ALLOWANCE, Allowance
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Policy
from turnfold.core.text.tokens import Count
from turnfold.messages import EventId, SessionKey, ToolCall


def _random_id() -> int:
    return randbits(62)


class DecodedMessage(NamedTuple):
    """One message of an event, ready to be stored: what it is, what it costs (see `turnfold.core.text.tokens.Measured`), and its texts.

    `tool_call_id` and `content_digest` are those of a result. `body` is the JSON text as windows show it, `original` the
    content as published where that is another JSON.
    """

    role: str
    tokens: int
    content_tokens: int
    reasoning_tokens: int
    characters: int
    lines: int
    priority: int
    is_irregular: bool
    calls: tuple[ToolCall, ...]
    cuts: str
    tool_call_id: str | None
    content_digest: bytes | None
    original: str | None
    body: str


class DecodedEvent(NamedTuple):
    """An event that may be stored: where and when (ms since 1970) the stream took it, what it says, and its messages weighed.

    `trace` is to be gone on with by who works on what it sets off.
    """

    stream_seq: int
    at_ms: int
    subject: str
    key: SessionKey
    event_id: EventId
    digest: bytes
    model: str | None
    is_meta: bool
    is_truncated: bool
    is_error: bool
    envelope: str | None
    messages: tuple[DecodedMessage, ...]
    report: UsageReport | None = None
    trace: str | None = None

    @property
    def answer(self) -> int | None:
        """The index of the answer that the report speaks of: the last message of an assistant."""
        return max(
            (index for index, message in enumerate(self.messages) if message.role == "assistant"),
            default=None,
        )


PAYLOAD_KEPT_BYTES = 64 * 1024
"""How much of a bad event its dead letter keeps."""


NO_PAYLOADS: Mapping[int, bytes] = MappingProxyType({})


class DeadLetter(NamedTuple):
    """An event that never can be; `payload` is what of it is kept, `key` the session it speaks of, where that can be told."""

    stream_seq: int
    at_ms: int
    subject: str
    reason: str
    detail: str
    size_bytes: int
    payload: bytes
    key: SessionKey | None = None


PolicyResolver = Callable[[PolicyOverrides, PolicyOverrides], Policy]
"""Resolves the policy of a session from the overrides of its agent and its own."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The settings of an installation that transactions need to evict messages.

    `model_window` returns the context window of a model, in tokens, under a policy. `count` counts
    the tokens of a digest. `max_sessions` is per agent.
    """

    policy: PolicyResolver
    model_window: Callable[[str | None, Policy], int]
    count: Count
    max_sessions: int
    allowance: Allowance = DEFAULT_ALLOWANCE
    new_id: Callable[[], int] = _random_id


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What one batch came to."""

    events: int = 0
    messages: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    evictions: int = 0


class IngestStore(Protocol):
    """Where events are stored."""

    async def ingest(
        self,
        arrivals: Sequence[DecodedEvent],
        dead: Sequence[DeadLetter],
        *,
        installation: Installation,
        payloads: Mapping[int, bytes] = NO_PAYLOADS,
    ) -> IngestResult:
        """Store a batch in one transaction: events, pairing, evictions, dead letters, and that these sequences came.

        `payloads` are the bytes that were published, by sequence: what of an arrival is kept that has to be refused.

        Raises:
            Unavailable: nothing was stored; the same batch may be tried again.
            UnstorableBatch: the database refuses something in it; try its events one by one.
        """
        ...

    async def mark_ingested(self, ranges_: Sequence[tuple[int, int]]) -> None:
        """Count sequences that the stream no longer holds as ingested."""
        ...

    async def gaps(self, *, up_to: int = 0) -> Sequence[tuple[int, int]]:
        """The sequences that are not ingested, up to the highest one that is, or up to this one where that is higher."""
        ...

    def backfill_lock(self) -> AbstractAsyncContextManager[None]:
        """Take turns with other workers that store what is missing; one that holds the turn for very long is not waited for."""
        ...

    async def ingested_to(self) -> int:
        """The sequence up to which none is missing; 0 where the first one is."""
        ...


class IdleStore(Protocol):
    """Where sessions are found that nobody speaks in."""

    async def evict_idle(self, *, limit: int, installation: Installation, now_ms: int) -> int:
        """Look at sessions that have fallen idle, and evict from those that are worth it; how many were looked at."""
        ...

    async def next_idle_ms(self) -> int | None:
        """When the next session falls idle; None when none will."""
        ...


class SearchIndex(Protocol):
    """What has to be done so that messages are found fast."""

    async def index_some(self) -> bool:
        """Index some of the messages that wait for it, in one short transaction; whether more waited when it began."""
        ...
