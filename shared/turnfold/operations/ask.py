"""One attempt at a version: what a summariser is given, and the tokens of the day within which a model may be asked."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from turnfold.core.gate import Reason
from turnfold.core.reading import sources_of, text_of_body
from turnfold.core.sources import Draft, Part, SummaryJob
from turnfold.errors import BudgetSpent, SummarizerError
from turnfold.ports import Calls, Job, JobInput, Summarizer

log = structlog.get_logger()

SESSION_MODEL = "session"
"""The word in the settings that means: the model of the session's latest event."""
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Writing:
    """How summaries are written here. Times are seconds; without a model the extractive summariser writes.

    `window` tells how many tokens a model reads, `task` stands in place of our own text of what to do, and `redactions` are
    the operator's own patterns.
    """

    model: str | None = None
    api_base: str | None = None
    api_key: str | None = None
    call_timeout_seconds: float = 120.0
    job_timeout_seconds: float = 600.0
    lease_seconds: float = 60.0
    attempts: int = 3
    backoff_seconds: float = 1.0
    backoff_max_seconds: float = 30.0
    retry_after_max_seconds: float = 60.0
    window: Callable[[str], int] = lambda _: 128_000
    task: str | None = None
    redactions: tuple[str, ...] = ()


def model_of(job: Job, writing: Writing) -> str | None:
    """Who writes this version: what was asked for above the policy's model, and that above the installation's; None: extractive."""
    if not job.policy.uses_model:
        return None
    named = job.wanted.model or job.policy.summary_model or writing.model
    return job.model if named == SESSION_MODEL else named


def summary_job(job: Job, given: JobInput, model: str | None, writing: Writing) -> SummaryJob:
    """What a summariser is given."""
    policy, wanted = job.policy, job.wanted
    is_ours = model is not None and _is_ours(model, writing)
    return SummaryJob(
        sources=sources_of((one.message, one.body, one.is_error) for one in given.evicted),
        previous=given.previous,
        newest_request=text_of_body(given.newest_request),
        style=wanted.style or str(policy.style),
        max_tokens=policy.summary_max_tokens,
        max_words=policy.summary_max_words,
        ledger_max_tokens=policy.ledger_max_tokens,
        model=model,
        timeout_seconds=writing.call_timeout_seconds,
        job_timeout_seconds=writing.job_timeout_seconds,
        window_tokens=writing.window(model) if model else 0,
        chunk_share=policy.chunk_share,
        task=wanted.prompt or writing.task,
        redactions=writing.redactions,
        api_base=writing.api_base if is_ours else None,
        api_key=writing.api_key if is_ours else None,
    )


def without_model(asked: SummaryJob) -> SummaryJob:
    """The same job for the extractive summariser, which cannot fail for want of a model."""
    return replace(asked, model=None, api_base=None, api_key=None, parts={})


async def ask(asked: SummaryJob, job: Job, *, store: Calls, summarizer: Summarizer, now_ms: Callable[[], int]) -> Draft:
    """Have a version written, and count what that took; answers on the way are kept, so that another attempt continues.

    Raises:
        SummarizerError: there is none.
        BudgetSpent: the agent's tokens of the day are spent, and nobody was asked.
        LostLease: the job is somebody else's by now.
    """
    if asked.model is None:
        return await summarizer.summarize(asked)
    limit, agent_id, today = job.policy.summary_tokens_per_day, job.key.agent_id, now_ms() // DAY_MS
    if limit and await store.spent(agent_id, today) >= limit:
        raise BudgetSpent(Reason.RATE_LIMITED, until_ms=(today + 1) * DAY_MS)

    async def pay(tokens: int) -> None:
        if not tokens:
            return
        day = now_ms() // DAY_MS
        total = await store.spend(agent_id, day, tokens)
        if limit and total - tokens < limit <= total:
            # Only the call that goes over the limit says so, whoever is told of it afterwards.
            log.warning("budget.spent", agent_id=agent_id, tokens=total, limit_tokens=limit)

    async def keep(part: Part) -> None:
        await store.keep(job, part, now_ms=now_ms())
        await pay(part.tokens)

    begun = await store.begun(job)
    try:
        draft = await summarizer.summarize(replace(asked, parts=begun.parts, last_reason=begun.last_reason), keep=keep)
    except SummarizerError as error:
        await pay(error.unpaid_tokens)
        raise
    await pay(draft.unpaid_tokens)
    return draft


def _is_ours(model: str, writing: Writing) -> bool:
    """Whether a model is reached by the installation's endpoint and key: any where an endpoint is set, else those of the same provider."""
    return bool(writing.api_base) or writing.model in (None, SESSION_MODEL) or _provider(model) == _provider(writing.model or "")


def _provider(model: str) -> str:
    return model.partition("/")[0] if "/" in model else ""
