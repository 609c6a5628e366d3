"""Writing summaries: jobs, their input and their results, and who writes them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from turnfold.core.eviction.eviction import (
    Eviction,
    FiredTrigger,
)
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.fair_share import JobSlots
from turnfold.core.summary.sources import ChunkSummary, Draft, PreviousSummary, SummaryJob
from turnfold.messages import AgentId, CompactionId, Message, SessionKey


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
