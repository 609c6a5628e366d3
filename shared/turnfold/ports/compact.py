"""Ports for writing summaries: jobs, their input and results, and the summarizer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

from turnfold.core.eviction.batch import Eviction
from turnfold.core.eviction.triggers import FiredTrigger
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.sources import ChunkSummary, Draft, PreviousSummary, SummaryJob
from turnfold.messages import AgentId, CompactionId, Message, SessionKey


class JobKind(StrEnum):
    """The version that a job writes.

    `NEXT` follows the version in force. `STAND_IN` replaces extractive versions in force by one
    that a model writes. `REGENERATED` is stored beside the version in force.
    """

    NEXT = "next"
    STAND_IN = "stand_in"
    REGENERATED = "regenerated"


@dataclass(frozen=True, slots=True)
class RegenerateOptions:
    """Options of a regeneration that differ from the policy.

    It starts from the original messages unless `from_version` names a version to build on.
    """

    model: str | None = None
    style: str | None = None
    prompt: str | None = None
    from_version: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """The claimed compactions of one session, under one lease.

    `planned` is the trigger of an eviction that takes place when the version is committed; until
    then no message has left. `folds` tells whether the version also covers evictions that lost
    theirs. `extends` is the version that a regeneration builds on: the last part that it has
    written, or the one that was asked for. `cooling` is the reason why the session's model is not
    asked now. `tokens_evicted` counts the evicted messages, `summary_tokens` the version in force.
    `factor` is the session's calibration factor. `traces` are the traceparents of the events that
    caused the evictions, newest last.
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
    folds: bool = False
    wanted: RegenerateOptions = RegenerateOptions()
    extends: int | None = None
    cooling: str | None = None
    tokens_evicted: int = 0
    summary_tokens: int = 0
    factor: float = 1.0
    traces: tuple[str, ...] = ()

    @property
    def can_stand_in(self) -> bool:
        """Tell whether an extractive version is committed where the model gives none."""
        return not self.planned and self.writes is JobKind.NEXT


class EvictedMessage(NamedTuple):
    """A message to summarize: its numbers and its JSON text."""

    message: Message
    body: str


@dataclass(frozen=True, slots=True)
class JobInput:
    """The input of a job.

    `following` are the JSON texts of the newest messages that stay live, oldest first;
    `answers` those that the assistant wrote without a call after the newest evicted request.
    `leaving` is the eviction of a planned compaction, whose messages are still live. `depth` is the
    number of versions between the new one and the original messages: 1 if all of them are in
    `evicted`.
    """

    evicted: tuple[EvictedMessage, ...]
    previous: PreviousSummary | None
    leaving: Eviction | None = None
    depth: int = 1
    following: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A summary ready to be committed, with its token counts.

    `calls_truncated` and `results_truncated` count those that were shortened for the model.
    `seconds` is the time that writing took.
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


class JobStatus(StrEnum):
    """The status of a compaction. The values are stored; `running` is a job under a lease."""

    PENDING = "pending"
    RUNNING = "running"
    COMMITTED = "committed"
    REJECTED = "rejected"
    FAILED = "failed"
    STALE = "stale"
    RESTORED = "restored"


FailureStatus = Literal[JobStatus.REJECTED, JobStatus.FAILED, JobStatus.STALE]
"""How a compaction ends without a version."""


class JobProgress(NamedTuple):
    """Results of earlier attempts at a job.

    `parts` maps the digest of a prompt to its answer. `last_reason` says why the last attempt gave
    no version.
    """

    parts: Mapping[str, str]
    last_reason: str | None


class ModelCallStore(Protocol):
    """Store the answers of model calls on the way to a version, and tokens per agent and UTC day.

    A day is counted in days since 1970.
    """

    async def begun(self, job: Job) -> JobProgress: ...

    async def keep(self, job: Job, part: ChunkSummary, *, now_ms: int) -> None: ...

    async def spent(self, agent_id: AgentId, day: int) -> int: ...

    async def spend(self, agent_id: AgentId, day: int, tokens: int) -> int: ...


class JobStore(ModelCallStore, Protocol):
    """Load, renew and end jobs. Each method is one transaction."""

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
        is_attempt: bool = True,
    ) -> None: ...

    async def discard(self, job: Job, *, now_ms: int) -> None: ...

    async def give_back(self, job: Job, *, now_ms: int) -> None: ...


class Summarizer(Protocol):
    """Write summaries."""

    async def summarize(
        self, job: SummaryJob, *, keep: Callable[[ChunkSummary], Awaitable[None]] = ...
    ) -> Draft:
        """Write one version; `keep` receives the answer of each part of a long input.

        Raises:
            SummarizerError: there is no usable answer; the error carries the reason.
        """
        ...
