"""What the operations need from outside, as Protocols, and the values that cross."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from secrets import randbits
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from turnfold.core.eviction.eviction import (
    Eviction,
    FiredTrigger,
)
from turnfold.core.eviction.usage import UsageReport
from turnfold.core.history.as_of import AsOf
from turnfold.core.history.audit_chain import LOCAL
from turnfold.core.policy.allowance import DEFAULT_ALLOWANCE, Allowance
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.fair_share import JobSlots
from turnfold.core.summary.sources import ChunkSummary, Draft, PreviousSummary, SummaryJob
from turnfold.core.text.search import Lookup
from turnfold.core.text.tokens import Count
from turnfold.messages import AgentId, CompactionId, EventId, Message, SessionKey, State, ToolCall

if TYPE_CHECKING:
    from turnfold.contracts.requests import PolicyRequest

# --- ingest


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


# --- compact


class JobKind(StrEnum):
    """What a job comes to."""

    NEXT = "next"
    STAND_IN = "stand_in"
    REGENERATED = "regenerated"


@dataclass(frozen=True, slots=True)
class RegenerateOptions:
    """What a regeneration asks for besides what the policy says; from the originals on unless a version is named."""

    model: str | None = None
    style: str | None = None
    prompt: str | None = None
    from_version: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A claimed compaction: every pending row of one session, under a lease.

    With `planned`, what made it due, nothing has left yet: what the policy would let go leaves when the version is committed.
    `NEXT` writes on the version in force, `STAND_IN` what an extractive version in force says, by a model; `REGENERATED`
    what the version speaks for that was in force at the claim. While a session's model rests, `cooling` says why.
    `tokens_evicted` is what the messages count that left for it, `summary_tokens` the version in force. `traces` are those of
    the events that set it off, the newest last.
    """

    key: SessionKey
    sid: int
    compaction_ids: tuple[CompactionId, ...]
    fence: int
    attempt: int
    base_version: int | None
    policy: Policy
    model: str | None
    planned: FiredTrigger | None = None
    writes: JobKind = JobKind.NEXT
    wanted: RegenerateOptions = RegenerateOptions()
    cooling: str | None = None
    tokens_evicted: int = 0
    summary_tokens: int = 0
    traces: tuple[str, ...] = ()


class EvictedMessage(NamedTuple):
    """A message that a job summarises: what it is, whether it tells of an error, and its JSON text."""

    message: Message
    is_error: bool
    body: str


@dataclass(frozen=True, slots=True)
class JobInput:
    """What a job summarises; `newest_request` is the JSON text of the newest live user message.

    `leaving` is the eviction that a planned compaction comes to, if it comes to any; its messages are still live. `depth`
    is how many versions the new one will be away from the originals: 1 when all it speaks for is among `evicted`.
    """

    evicted: tuple[EvictedMessage, ...]
    previous: PreviousSummary | None
    newest_request: str | None
    leaving: Eviction | None = None
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Version:
    """A summary ready to be committed, counted.

    Of the messages it was written from, so many calls and results were shown cut to a model; writing took so many seconds.
    """

    draft: Draft
    style: str
    prompt_version: str | None
    tokens: int
    text_tokens: int
    cuts: str
    depth: int = 1
    calls_truncated: int = 0
    results_truncated: int = 0
    seconds: float | None = None


class FailureStatus(StrEnum):
    """How a compaction ends that evicted nothing and comes to nothing."""

    REJECTED = "rejected"
    FAILED = "failed"
    STALE = "stale"


class JobProgress(NamedTuple):
    """What came of a job before: answers by a digest of what was asked, and why the last attempt gave no version."""

    parts: Mapping[str, str]
    last_reason: str | None


class ModelCallStore(Protocol):
    """What calls of models left behind: answers on the way to a version, and tokens by agent and UTC day (since 1970)."""

    async def begun(self, job: Job) -> JobProgress: ...

    async def keep(self, job: Job, part: ChunkSummary, *, now_ms: int) -> None: ...

    async def spent(self, agent_id: AgentId, day: int) -> int: ...

    async def spend(self, agent_id: AgentId, day: int, tokens: int) -> int: ...


class JobStore(ModelCallStore, Protocol):
    """The compaction rows as durable jobs."""

    async def claim(
        self,
        places: JobSlots,
        *,
        lease_ms: int,
        now_ms: int,
        policy: Callable[[PolicyOverrides, PolicyOverrides], Policy],
    ) -> Sequence[Job]:
        """Take due jobs under a lease, as many as there are places for."""
        ...

    async def load(self, job: Job, *, now_ms: int, by_model: bool = True) -> JobInput: ...

    async def renew(self, job: Job, *, lease_ms: int, now_ms: int) -> None: ...

    async def commit(
        self,
        job: Job,
        version: Version,
        *,
        leaving: Eviction | None = None,
        reason: str | None,
        now_ms: int,
    ) -> int: ...

    async def fail(
        self,
        job: Job,
        *,
        ending: FailureStatus,
        reason: str | None,
        detail: str,
        now_ms: int,
        model: str | None = None,
    ) -> None: ...

    async def retry_later(
        self,
        job: Job,
        *,
        reason: str,
        detail: str,
        retry_at_ms: int,
        now_ms: int,
        model: str | None = None,
    ) -> None: ...

    async def discard(self, job: Job, *, now_ms: int) -> None: ...

    async def next_due_ms(self) -> int | None: ...


class IdleStore(Protocol):
    """Where sessions are found that nobody speaks in."""

    async def evict_idle(self, *, limit: int, installation: Installation, now_ms: int) -> int:
        """Look at sessions that have fallen idle, and evict from those that are worth it; how many were looked at."""
        ...

    async def next_idle_ms(self) -> int | None:
        """When the next session falls idle; None when none will."""
        ...


class Summarizer(Protocol):
    """Who writes summaries."""

    async def summarize(
        self, job: SummaryJob, *, keep: Callable[[ChunkSummary], Awaitable[None]] = ...
    ) -> Draft:
        """Write one version; `keep` is told of each part of it.

        Raises:
            SummarizerError: none that may be used; the error says why.
        """
        ...


# --- query


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session as its row has it. Times are milliseconds since 1970."""

    sid: int
    wishes: PolicyOverrides
    agent_wishes: PolicyOverrides
    model: str | None
    revision: int
    messages_total: int
    tokens_total: int
    live_messages: int
    live_tokens: int
    factor: float
    version: int | None
    versions: int
    compactions: int
    audit_rows: int
    audit_hash: str
    last_event_at_ms: int | None


@dataclass(frozen=True, slots=True)
class StoredSummary:
    """A version as it is stored; `sections` and `ledger` are JSON texts."""

    version: int
    base_version: int | None
    kind: str
    style: str
    model: str | None
    text: str
    sections: str
    ledger: str
    tokens: int
    text_tokens: int
    cuts: str
    covers_first: str
    covers_last: str
    messages_covered: int
    compaction_id: CompactionId
    created_at_ms: int


class PendingEviction(NamedTuple):
    """A compaction that no summary speaks for yet."""

    compaction_id: CompactionId
    messages: int
    tokens: int
    digest: str
    digest_tokens: int
    requested_at_ms: int


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """Everything a window is decided from, out of one snapshot. `ingested_to` is the sequence up to which nothing is missing."""

    ingested_to: int
    session: SessionSnapshot | None
    summary: StoredSummary | None = None
    pending: tuple[PendingEviction, ...] = ()
    messages: tuple[Message, ...] = ()


Chosen = TypeVar("Chosen")


class WindowStore(Protocol):
    """Where windows are read."""

    async def window(
        self,
        key: SessionKey,
        *,
        glance: Callable[[WindowSnapshot], Chosen | None],
        choose: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session in one snapshot: what was chosen from its facts, and the JSON texts of the positions chosen.

        `glance` sees the session alone, before its messages are read; what it returns, unless None, is the answer.
        """
        ...

    async def window_as_of(
        self,
        key: SessionKey,
        moment: AsOf,
        *,
        glance: Callable[[WindowSnapshot], Chosen | None],
        choose: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session as it was; `glance` sees it as it is, `choose` as it was, with the counts of then.

        Raises:
            BadRequest: there was no such moment in it.
        """
        ...


class OriginalMessage(NamedTuple):
    """A stored message: its JSON text as windows show it, and the content as published where that was another JSON."""

    message_id: str
    position: int
    state: State
    body: str
    original_content: str | None


class SessionCounts(NamedTuple):
    """What a session holds; `messages_covered` is the rest of the total."""

    agent_id: str
    session_id: str
    model: str | None
    preset: str | None
    mode: str | None
    messages_total: int
    messages_live: int
    messages_pending: int
    tokens_total: int
    tokens_live: int
    factor: float
    summary_version: int | None
    summary_versions: int
    compactions: int
    audit_rows: int
    audit_hash: str
    last_event_at_ms: int | None
    reported_tokens: int = 0
    usage_evictions: int = 0
    failures: int = 0
    cooldown_until_ms: int = 0
    cooldown_reason: str | None = None
    sid: int = 0

    @property
    def sort_key(self) -> tuple[int, int]:
        """Where it stands among all sessions, the one with the newest event first: when that came, and its number."""
        return (-1 if self.last_event_at_ms is None else self.last_event_at_ms, self.sid)

    @property
    def messages_covered(self) -> int:
        """Messages that the summary in force speaks for."""
        return self.messages_total - self.messages_live - self.messages_pending


class AuditRow(NamedTuple):
    """One sealed row; `ordinal` counts the rows of its session from 1."""

    ordinal: int
    at_ms: int
    agent_id: str
    session_id: str
    compaction_id: int | None
    phase: str
    reason: str | None
    tokens_before: int | None
    tokens_after: int | None
    details: str
    prev_hash: str
    hash: str
    actor: str | None


class DeadLetterRow(NamedTuple):
    """An event that could not be stored, without its bytes."""

    dead_letter_id: int
    at_ms: int
    subject: str
    stream_seq: int
    reason: str
    detail: str
    size_bytes: int
    replayed_at_ms: int | None


class HistoryStore(Protocol):
    """Where everything a session was is read. Each method may raise UnknownSession or Unavailable."""

    async def page(
        self, key: SessionKey, *, after_position: int, limit: int, newest_first: bool = False
    ) -> Sequence[OriginalMessage]: ...

    async def by_ids(
        self, key: SessionKey, message_ids: Sequence[str]
    ) -> Sequence[OriginalMessage]: ...

    async def counts(self, key: SessionKey) -> SessionCounts: ...

    async def wishes(
        self, key: SessionKey | AgentId
    ) -> tuple[PolicyOverrides, PolicyOverrides]: ...

    async def sessions(
        self, *, agent_ids: Collection[str] | None, limit: int, after: tuple[int, int] | None = None
    ) -> Sequence[SessionCounts]: ...

    async def versions(
        self, key: SessionKey, version: int | None = None
    ) -> tuple[int | None, Sequence[StoredSummary]]: ...

    async def audit(self, key: SessionKey, *, after: int, limit: int) -> Sequence[AuditRow]: ...

    async def dead_letters(self, *, after: int, limit: int) -> Sequence[DeadLetterRow]: ...

    async def dead_letter_counts(self) -> Mapping[str, int]: ...


# --- dead letters


class StoredDeadLetter(NamedTuple):
    """A dead letter with what is kept of its bytes."""

    row: DeadLetterRow
    payload: bytes

    @property
    def is_whole(self) -> bool:
        """Whether that is all that was published."""
        return len(self.payload) == self.row.size_bytes


class DeadLetterStore(Protocol):
    """Where dead letters are read in full, and replays are noted."""

    async def letters(self, ids: Sequence[int]) -> Sequence[StoredDeadLetter]:
        """The letters of these ids, oldest first; ids that name none are left out."""
        ...

    async def unreplayed(
        self, *, reason: str | None, after: int, until: int, limit: int
    ) -> Sequence[StoredDeadLetter]:
        """Letters behind an id and up to another one that were not replayed yet, oldest first."""
        ...

    async def newest_id(self) -> int:
        """The greatest id so far; 0 where there is no letter."""
        ...

    async def replayed(self, dead_letter_id: int, *, now_ms: int) -> None:
        """Note that a letter was published again."""
        ...

    async def replay_outcomes(self, sequences: Sequence[int]) -> Mapping[int, DeadLetterRow | None]:
        """Of these sequences those that are ingested, each with the dead letter that it became; None where it was stored."""
        ...


class EventStream(Protocol):
    """The stream of events, as far as a replay needs it. Each method may raise Unavailable."""

    async def publish(self, subject: str, payload: bytes, *, message_id: str) -> int:
        """Publish an event; its sequence. The same `message_id` again within minutes is the same publication."""
        ...

    async def payload_of(self, seq: int) -> bytes | None:
        """What was published at a sequence; None where the stream holds it no more."""
        ...


# --- search


@dataclass(frozen=True, slots=True)
class Scope:
    """Which messages of a session are searched; None is no condition. `version`: those that this version speaks for."""

    state: State | None = None
    role: str | None = None
    after_position: int | None = None
    before_position: int | None = None
    version: int | None = None


class Candidates(NamedTuple):
    """Messages worth reading; with `is_partial` there were so many under the terms that not all of them were looked at."""

    originals: Sequence[OriginalMessage]
    is_partial: bool = False


class SearchStore(Protocol):
    """Where messages are found by what they say. Each method may raise UnknownSession or Unavailable."""

    async def unindexed(
        self, key: SessionKey, *, scope: Scope, after_position: int
    ) -> Sequence[OriginalMessage]:
        """A page of the messages that the index may not have yet, in order; at the end none.

        Who reads these first and the index afterwards misses nothing, whatever is indexed meanwhile.
        """
        ...

    async def candidates(
        self, key: SessionKey, lookups: Sequence[Lookup], *, scope: Scope
    ) -> Candidates:
        """Messages that the index has under all terms of a lookup, bounded: of very many the newest and the oldest."""
        ...


class SearchIndex(Protocol):
    """What has to be done so that messages are found fast."""

    async def index_some(self) -> bool:
        """Index some of the messages that wait for it, in one short transaction; whether more waited when it began."""
        ...


# --- requests that change something


class EraseResult(NamedTuple):
    """What an erasure took away."""

    sessions: int = 0
    messages: int = 0


class SessionCommands(Protocol):
    """Where requests that write are done."""

    async def set_policy(
        self,
        key: SessionKey | AgentId,
        request: "PolicyRequest",
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> Mapping[str, Any]:
        """Set what a session or an agent wants; the wishes as they stand now."""
        ...

    async def compact_now(
        self, key: SessionKey, *, installation: Installation, now_ms: int, actor: str = LOCAL
    ) -> CompactionId | None:
        """Evict what the policy would let go; None when there is nothing."""
        ...

    async def erase(
        self, key: SessionKey | AgentId, *, last_seq: int, now_ms: int, actor: str = LOCAL
    ) -> EraseResult:
        """Erase a session or all of an agent: nothing at or below this sequence, and no event that was stored, comes back."""
        ...


class ErasureStore(Protocol):
    """What is left to do after an erasure, and whose time is over."""

    async def erase_expired(
        self, *, after: int, limit: int, installation: Installation, now_ms: int
    ) -> int | None:
        """Look at some sessions behind this one by number, and erase those that their policy retains no longer.

        The last one looked at; None when there was none.
        """
        ...

    async def to_purge(self, limit: int) -> Sequence[int]:
        """The lowest sequences that the stream has still to forget."""
        ...

    async def purged(self, sequences: Sequence[int]) -> None:
        """The stream holds these no more."""
        ...

    async def tidy(self) -> bool:
        """Leave nothing of what was erased in files beside the database; False when somebody who reads keeps it from that now."""
        ...


class ActiveVersion(NamedTuple):
    """Which version speaks for a session after a change, and how many of its messages wait for one that speaks for them."""

    version: int | None
    messages_pending: int


class VersionStore(Protocol):
    """Where versions change places. Each method may raise UnknownSession, or BadRequest for what the session never had."""

    async def promote(
        self,
        key: SessionKey,
        version: int,
        *,
        over: int | None,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion:
        """Put a version in force; with `over`, only in the place of that one.

        Raises:
            Conflict: another version is in force than `over`, or what it speaks for was restored since.
        """
        ...

    async def restore(
        self,
        key: SessionKey,
        compaction_id: CompactionId,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion:
        """Undo an eviction: its messages are live again.

        Raises:
            Conflict: it evicted nothing, or a later one was committed.
        """
        ...

    async def regenerate(
        self,
        key: SessionKey,
        wanted: RegenerateOptions,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CompactionId:
        """Have a version written anew beside the one in force; the compaction that stands for the work.

        Raises:
            Conflict: there is no version yet.
        """
        ...


# --- many sessions at once


class CampaignProgress(NamedTuple):
    """How far a campaign is: sessions it began with, opened so far, and of those written, failed and open. Times are ms since 1970."""

    campaign_id: str
    agent_id: str | None
    sessions: int
    opened: int
    written: int
    failed: int
    open: int
    requested_at_ms: int
    finished_at_ms: int | None


class CampaignStore(Protocol):
    """Regenerations of many sessions."""

    async def begin(
        self,
        agent_id: AgentId | None,
        wanted: RegenerateOptions,
        *,
        at_once: int,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CampaignProgress:
        """Begin one for an agent or for all; the one that is under way where the same was asked before."""
        ...

    async def advance(self, *, installation: Installation, now_ms: int) -> int:
        """Open the next sessions of each campaign as far as it may have open at once; how many that were."""
        ...

    async def progress(self, campaign_id: str) -> CampaignProgress | None:
        """How far one is; None where there is none of that id."""
        ...


# --- the outbox


class Notice(NamedTuple):
    """Something that happened and has to be told."""

    outbox_id: int
    subject: str
    payload: str


class OutboxStore(Protocol):
    """Notices that wait to be sent."""

    async def unsent(self, limit: int) -> Sequence[Notice]: ...

    async def sent(self, notices: Sequence[Notice]) -> None: ...
