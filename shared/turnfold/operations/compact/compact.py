"""Compact a session: write a summary of evicted messages and commit it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from random import uniform

from turnfold.core.summary.gate import Reason
from turnfold.core.summary.prompt import truncated
from turnfold.core.summary.sources import Draft
from turnfold.core.text.tokens import Count, TokenOffsets
from turnfold.errors import BudgetSpent, LostLease, SummarizerError, Unavailable
from turnfold.observability.tracing import span
from turnfold.operations.compact.attempt import (
    SummaryConfig,
    model_of,
    summary_job,
    without_model,
    write_version,
)
from turnfold.ports.compact import (
    FailureStatus,
    Job,
    JobInput,
    JobKind,
    JobStatus,
    JobStore,
    Summarizer,
    Version,
)

PROVIDER_REASONS = frozenset(
    {Reason.TIMEOUT, Reason.PROVIDER_ERROR, Reason.RATE_LIMITED, Reason.CONTEXT_OVERFLOW}
)
"""Reasons that concern the provider. All others concern the answer of the model."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A new version is in force. `reason` is set if it is a stand-in.

    `tokens_saved` is the tokens of the evicted messages, minus the growth of the summary.
    """

    version: int
    reason: str | None
    made: Version | None = field(default=None, compare=False, repr=False)
    tokens_saved: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed; another one follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The compaction ended and changed nothing. Without `reason` there was nothing to do."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class Discarded:
    """Another worker holds the job, or another version is in force; the result was discarded."""


Outcome = Committed | Retry | RolledBack | Discarded


async def compact(
    job: Job,
    *,
    store: JobStore,
    summarizer: Summarizer,
    writing: SummaryConfig,
    count: Count,
    now_ms: Callable[[], int],
) -> Outcome:
    """Write and commit the summary of a claimed job.

    No transaction is open while the model writes. If the task is cancelled, the job becomes due at
    once.
    """
    model = model_of(job, writing)
    try:
        job_input = await store.load(
            job, now_ms=now_ms(), by_model=model is not None and job.cooling is None
        )
        if nothing := _nothing_to_do(job, job_input, model):
            await store.fail(
                job, ending=JobStatus.STALE, reason=None, detail=nothing, now_ms=now_ms()
            )
            return RolledBack(None)
        async with renewed_lease(job, store, writing.lease_seconds, now_ms):
            return await _write(job, job_input, model, store, summarizer, writing, count, now_ms)
    except LostLease:
        # The rows that this worker still holds would otherwise wait for the end of their lease.
        await store.discard(job, now_ms=now_ms())
        return Discarded()
    except asyncio.CancelledError:
        # A worker that is told to stop: the next one need not wait for its lease.
        with contextlib.suppress(Unavailable):
            await store.give_back(job, now_ms=now_ms())
        raise


def _nothing_to_do(job: Job, job_input: JobInput, model: str | None) -> str | None:
    """Return why a job that evicts nothing should end without a version; None if it should not."""
    if job.writes is JobKind.STAND_IN and model is None:
        return "no model writes here any more"
    if not job_input.evicted:
        return "nothing would leave" if job.planned else "nothing is left to be written"
    return None


async def _write(
    job: Job, job_input: JobInput, model: str | None, store: JobStore, summarizer: Summarizer,
    writing: SummaryConfig, count: Count, now_ms: Callable[[], int],
) -> Outcome:  # fmt: skip
    asked, began_ms = summary_job(job, job_input, model, writing), now_ms()
    # While the model rests it is not asked, and what was evicted does not wait for it.
    reason = job.cooling
    try:
        with span("summarise", messages=len(asked.sources)) as summarising:
            draft = await write_version(
                asked if reason is None else without_model(asked),
                job,
                store=store,
                summarizer=summarizer,
                now_ms=now_ms,
            )
            summarising.set_attributes(
                kind=draft.kind,
                prompt_tokens=draft.prompt_tokens,
                completion_tokens=draft.completion_tokens,
            )
    except SummarizerError as error:
        reason = error.reason
        outcome = await _end_attempt(job, error, asked.model, store, writing, now_ms())
        if outcome is not None:
            return outcome
        # The attempts are used up, and messages that left the window must not stay without a
        # summary.
        draft = await summarizer.summarize(without_model(asked))
    made = replace(
        _counted(draft, asked.style, job_input.depth, count), seconds=(now_ms() - began_ms) / 1000
    )
    if draft.kind == "llm":
        calls, results = truncated(asked.sources)
        # For the audit: a reader can tell what the model has not seen.
        made = replace(made, calls_truncated=calls, results_truncated=results)
    # Only what a model should have written is a stand-in.
    reason = reason if model is not None else None
    with span("commit") as committing:
        version = await store.commit(
            job, made, leaving=job_input.leaving, reason=reason, now_ms=now_ms()
        )
        committing.set_attributes(version=version)
    return Committed(version, reason, made, _saved(job, job_input, made))


async def _end_attempt(
    job: Job,
    error: SummarizerError,
    model: str | None,
    store: JobStore,
    writing: SummaryConfig,
    now_ms: int,
) -> Retry | RolledBack | None:
    """Record a failed attempt; None if an extractive summary should be written instead."""
    can_stand_in = not job.planned and job.writes is JobKind.NEXT
    retry_at_ms: int | None = None
    if error.is_transient and job.attempt < writing.attempts:
        retry_at_ms = now_ms + int(1000 * _pause(job.attempt, error, writing))
    elif isinstance(error, BudgetSpent) and not can_stand_in:
        retry_at_ms = error.until_ms
    reason, detail = error.reason, str(error)
    if retry_at_ms is not None:
        await store.retry_later(
            job, reason=reason, detail=detail, retry_at_ms=retry_at_ms, now_ms=now_ms, model=model
        )
        return Retry(reason)
    if can_stand_in:
        return None
    ending: FailureStatus = JobStatus.FAILED if reason in PROVIDER_REASONS else JobStatus.REJECTED
    await store.fail(job, ending=ending, reason=reason, detail=detail, now_ms=now_ms, model=model)
    return RolledBack(reason)


def _saved(job: Job, job_input: JobInput, made: Version) -> int:
    """Return how many tokens windows lose with this version. A rewritten version saves nothing."""
    if job.writes is not JobKind.NEXT:
        return 0
    leaving = (
        sum(message.tokens for message in job_input.leaving.evicted) if job_input.leaving else 0
    )
    return max(0, job.tokens_evicted + leaving + job.summary_tokens - made.tokens)


def _counted(draft: Draft, style: str, depth: int, count: Count) -> Version:
    grid = TokenOffsets.of(draft.text, count)
    entry_tokens = [count(entry) + 1 for entry in draft.ledger]
    # A small window shows the first entries only.
    sections = draft.sections | {"entry_tokens": entry_tokens}
    return Version(
        draft=replace(draft, sections=sections),
        style=style,
        prompt_version=draft.prompt_version,
        tokens=grid.total + sum(entry_tokens),
        text_tokens=grid.total,
        cuts=grid.encode(),
        depth=depth,
    )


def _pause(attempt: int, error: SummarizerError, writing: SummaryConfig) -> float:
    """Return the seconds before the next attempt: doubling, with jitter.

    A provider may ask for a longer pause.
    """
    longest = min(writing.backoff_seconds * 2 ** (attempt - 1), writing.backoff_max_seconds)
    asked_for = min(error.retry_after_seconds or 0.0, writing.retry_after_max_seconds)
    # With jitter: jobs that failed together must not return together.
    return asked_for + uniform(longest / 2, longest)  # noqa: S311  # jitter keeps no secret


RENEWALS = 3
"""Renewals of a lease before it would expire: one late renewal must not lose it."""


@contextlib.asynccontextmanager
async def renewed_lease(
    job: Job, store: JobStore, lease_seconds: float, now_ms: Callable[[], int]
) -> AsyncGenerator[None]:
    """Renew the lease while the body runs."""
    lease_ms = int(1000 * lease_seconds)

    async def keep() -> None:
        while True:
            await asyncio.sleep(lease_seconds / RENEWALS)
            # The lease outlasts a short failure of the database.
            with contextlib.suppress(Unavailable):
                await store.renew(job, lease_ms=lease_ms, now_ms=now_ms())

    keeper = asyncio.create_task(keep(), name="lease")
    try:
        yield
    finally:
        keeper.cancel()
        # A lease lost meanwhile shows at the commit, which is fenced.
        with contextlib.suppress(asyncio.CancelledError, LostLease):
            await keeper
