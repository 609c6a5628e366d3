"""Compact a session: write a summary of evicted messages and commit it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from random import uniform

import structlog

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

log = structlog.get_logger()

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
    """The compaction ended without a change. Without `reason` there was nothing to do."""

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
    config: SummaryConfig,
    count: Count,
    now_ms: Callable[[], int],
) -> Outcome:
    """Write and commit the summary of a claimed job.

    No transaction is open while the model writes. If the task is cancelled, the job becomes due at
    once.
    """
    try:
        return await _attempt(job, store, summarizer, config, count, now_ms)
    except LostLease:
        # The rows that this worker still holds would otherwise wait for the end of their lease.
        await store.discard(job, now_ms=now_ms())
        return Discarded()
    except asyncio.CancelledError:
        # This worker stops: the next one need not wait for its lease.
        with contextlib.suppress(Unavailable):
            await store.give_back(job, now_ms=now_ms())
        raise


async def _attempt(
    job: Job, store: JobStore, summarizer: Summarizer, config: SummaryConfig, count: Count,
    now_ms: Callable[[], int],
) -> Outcome:  # fmt: skip
    model = model_of(job, config)
    try:
        if job.attempt > config.attempts and not job.can_stand_in:
            # Its workers died with it, or lost the database: nothing recorded these attempts.
            crash = SummarizerError(Reason.CRASHED, "attempts ended without a result")
            outcome = await _end_attempt(job, crash, model, store, config, now_ms())
            return outcome or RolledBack(Reason.CRASHED)
        is_called = model is not None and _resting(job, config) is None
        job_input = await store.load(job, now_ms=now_ms(), by_model=is_called)
        if nothing := _nothing_to_do(job, job_input, model):
            await store.fail(
                job, ending=JobStatus.STALE, reason=None, detail=nothing, now_ms=now_ms()
            )
            return RolledBack(None)
        async with renewed_lease(job, store, config.lease_seconds, now_ms):
            return await _write(job, job_input, model, store, summarizer, config, count, now_ms)
    # `compact` discards after a lost lease. Without a database, nothing can be recorded.
    except (LostLease, Unavailable):
        raise
    except Exception as error:
        log.exception("compaction.crashed", compaction_id=job.compaction_ids[-1])
        crash = SummarizerError(Reason.CRASHED, type(error).__name__)
        outcome = await _end_attempt(job, crash, model, store, config, now_ms())
        # Even the extractive summary may crash, and its messages must not lose their job.
        return outcome or await _retry(job, crash, model, store, config, now_ms())


def _resting(job: Job, config: SummaryConfig) -> str | None:
    """Return why the model is not called now, or None.

    An attempt may crash after the model was called. Without this limit, a job that always crashes
    would pay for a call at each attempt.
    """
    if job.cooling is None and job.can_stand_in and job.attempt > config.attempts:
        return Reason.CRASHED
    return job.cooling


def _nothing_to_do(job: Job, job_input: JobInput, model: str | None) -> str | None:
    """Return why a job that evicts nothing should end without a version; None if it should not."""
    if job.writes is JobKind.STAND_IN and model is None:
        return "no model writes here any more"
    if not job_input.evicted:
        return "nothing would leave" if job.planned else "nothing is left to be written"
    return None


async def _write(
    job: Job, job_input: JobInput, model: str | None, store: JobStore, summarizer: Summarizer,
    config: SummaryConfig, count: Count, now_ms: Callable[[], int],
) -> Outcome:  # fmt: skip
    asked, began = summary_job(job, job_input, model, config), time.monotonic()
    if asked.is_empty:
        model, asked = None, without_model(asked)
    # During its cooldown the model is not called, and evicted messages do not wait for it.
    reason = _resting(job, config)
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
        outcome = await _end_attempt(job, error, asked.model, store, config, now_ms())
        if outcome is not None:
            return outcome
        # The attempts are used up, and messages that left the window must not stay without a
        # summary.
        draft = await summarizer.summarize(without_model(asked))
    made = replace(
        _counted(draft, asked.style, job_input.depth, count),
        seconds=round(time.monotonic() - began, 3),
    )
    if draft.kind == "llm":
        calls, results = truncated(asked.sources)
        # For the audit: it shows what the model has not seen.
        made = replace(made, calls_truncated=calls, results_truncated=results)
    # A version is a stand-in only if a model should have written it.
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
    config: SummaryConfig,
    now_ms: int,
) -> Retry | RolledBack | None:
    """Record a failed attempt; None if an extractive summary should be written instead."""
    if error.is_transient and job.attempt < config.attempts:
        return await _retry(job, error, model, store, config, now_ms)
    if job.can_stand_in:
        return None
    if isinstance(error, BudgetSpent):
        return await _retry(job, error, model, store, config, now_ms)
    reason = error.reason
    ending: FailureStatus = JobStatus.FAILED if reason in PROVIDER_REASONS else JobStatus.REJECTED
    await store.fail(
        job, ending=ending, reason=reason, detail=str(error), now_ms=now_ms, model=model
    )
    return RolledBack(reason)


async def _retry(
    job: Job,
    error: SummarizerError,
    model: str | None,
    store: JobStore,
    config: SummaryConfig,
    now_ms: int,
) -> Retry:
    """Record a failed attempt, and when the next one is due."""
    if isinstance(error, BudgetSpent):
        retry_at_ms = error.until_ms
    else:
        retry_at_ms = now_ms + int(1000 * _pause(job.attempt, error, config))
    await store.retry_later(
        job, reason=error.reason, detail=str(error), retry_at_ms=retry_at_ms, now_ms=now_ms,
        model=model, is_attempt=not isinstance(error, BudgetSpent),
    )  # fmt: skip
    return Retry(error.reason)


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


CRASHED_BACKOFF_MAX_SECONDS = 3600.0
MOST_DOUBLINGS = 20
"""The most doublings of a pause: the attempts of a job that crashes have no limit."""


def _pause(attempt: int, error: SummarizerError, config: SummaryConfig) -> float:
    """Return the seconds before the next attempt: doubling, with jitter.

    A provider may ask for a longer pause.
    """
    # More attempts than allowed have crashed: an operator must fix the cause.
    is_crashing = attempt > config.attempts
    cap = CRASHED_BACKOFF_MAX_SECONDS if is_crashing else config.backoff_max_seconds
    longest = min(config.backoff_seconds * 2 ** min(attempt - 1, MOST_DOUBLINGS), cap)
    asked_for = min(error.retry_after_seconds or 0.0, config.retry_after_max_seconds)
    # With jitter: jobs that failed together must not be retried together.
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
        # The commit is fenced, and so notices a lost lease.
        with contextlib.suppress(asyncio.CancelledError, LostLease):
            await keeper
