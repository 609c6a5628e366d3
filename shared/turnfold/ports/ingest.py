"""Ports for storing events: decoded events, the settings that evictions need, and the stores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import randbits
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from turnfold.contracts.reported_window import ReportedWindow
from turnfold.contracts.retractions import Retraction
from turnfold.core.eviction.usage import UsageReport
from turnfold.core.policy.allowance import DEFAULT_ALLOWANCE, Allowance
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Policy
from turnfold.core.text.tokens import Count
from turnfold.errors import EventFault
from turnfold.messages import EventId, SessionKey, ToolCall


class DecodedMessage(NamedTuple):
    """One message of an event, with its token counts, ready to be stored.

    `is_meta` marks a user message that a program wrote. `tool_call_id` and `content_digest` belong
    to tool results. `body` is the JSON text that windows show. `original` is the content as
    published, if it was other JSON, or the packed `element` whose chat view this is. See
    `turnfold.core.text.tokens.MessageTokens` for the counts, and `turnfold.core.history.gist` for
    the gist.
    """

    role: str
    tokens: int
    content_tokens: int
    reasoning_tokens: int
    characters: int
    lines: int
    priority: int
    is_meta: bool
    is_irregular: bool
    calls: tuple[ToolCall, ...]
    cuts: str
    tool_call_id: str | None
    content_digest: bytes | None
    original: str | None
    body: str
    gist: str
    element: int = 0
    is_error: bool = False


class DecodedEvent(NamedTuple):
    """A valid event: its stream position, its time, and its messages with token counts.

    `at_ms` is the time of the stream, in milliseconds since 1970. `trace` is the traceparent of the
    publisher; spans of later work continue it. `reported` belongs to `usage.reported` alone, and
    `retraction` to `turn.retracted`, like `signed_actor`: who asked for it, as a worker signed.
    """

    stream_seq: int
    at_ms: int
    subject: str
    key: SessionKey
    event_id: EventId
    digest: bytes
    model: str | None
    is_truncated: bool
    is_error: bool
    envelope: str | None
    messages: tuple[DecodedMessage, ...]
    report: UsageReport | None = None
    trace: str | None = None
    reported: ReportedWindow | None = None
    retraction: Retraction | None = None
    signed_actor: str | None = None

    @property
    def is_overflow(self) -> bool:
        """Whether it reports a call that was too long for its model."""
        return self.reported is not None and self.reported.is_overflow

    @property
    def answer(self) -> int | None:
        """The index of the last assistant message, to which `report` belongs; None without one.

        Usage that is reported by itself belongs to everything before it, unless the call failed,
        or to the answer that it names.
        """
        if self.reported is not None:
            return None if self.is_overflow else 0
        return max(
            (index for index, message in enumerate(self.messages) if message.role == "assistant"),
            default=None,
        )


PAYLOAD_KEPT_BYTES = 64 * 1024
"""The most bytes of a bad event that its dead letter keeps."""


CLAIMS: Final = "; the event names "
"""In the detail of a dead letter: the session follows that the event names, as JSON.

Only if its subject names another one, or none. An erasure of that session finds the letter by it:
of a long event the letter may keep no byte that names it.
"""


NO_PAYLOADS: Mapping[int, bytes] = MappingProxyType({})
NO_REPLAYS: Mapping[int, int] = MappingProxyType({})


class DeadLetter(NamedTuple):
    """An event that can never be stored.

    `payload` is the part of its bytes that is kept. `key` is the session that it names, if that can
    be read.
    """

    stream_seq: int
    at_ms: int
    subject: str
    reason: str
    detail: str
    size_bytes: int
    payload: bytes
    key: SessionKey | None = None

    @classmethod
    def of(
        cls,
        stream_seq: int,
        at_ms: int,
        subject: str,
        fault: EventFault,
        detail: str,
        payload: bytes,
        key: SessionKey | None,
    ) -> "DeadLetter":
        """Return the dead letter of an event, with the beginning of its bytes."""
        # A dead letter must always be storable: no database takes lone surrogates, and PostgreSQL
        # takes no NUL.
        subject = subject.encode("utf-8", "replace").decode().replace("\0", "")
        kept = payload[:PAYLOAD_KEPT_BYTES]
        return cls(stream_seq, at_ms, subject, str(fault), detail, len(payload), kept, key)


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
    # Both databases store ids as signed numbers of 64 bits.
    new_id: Callable[[], int] = lambda: randbits(62)


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Counts of one stored batch."""

    events: int = 0
    messages: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    evictions: int = 0
    retractions: int = 0


class IngestStore(Protocol):
    """Store events in one transaction."""

    async def ingest(
        self,
        arrivals: Sequence[DecodedEvent],
        dead: Sequence[DeadLetter],
        *,
        installation: Installation,
        payloads: Mapping[int, bytes] = NO_PAYLOADS,
        replays: Mapping[int, int] = NO_REPLAYS,
    ) -> IngestResult:
        """Store a batch: events, pairs of calls and results, evictions, dead letters and ranges.

        `payloads` maps sequences to the published bytes. An event that must be refused keeps a part
        of them in its dead letter. `replays` maps the sequences of replayed dead letters to those
        of the letters, which decide whether the event was erased.

        Raises:
            Unavailable: nothing was stored; the same batch may be tried again.
            UnstorableBatch: the database refuses something in it; try its events one by one.
            StartError: nothing was stored; the stream is another one, or an older copy.
        """
        ...
