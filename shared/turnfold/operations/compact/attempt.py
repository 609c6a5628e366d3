"""One attempt at a version: choose the model, prepare its input, and count its tokens."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from turnfold.core.policy.allowance import DEFAULT_ALLOWANCE, SESSION_MODEL, Allowance, is_named
from turnfold.core.policy.retention import DAY_MS
from turnfold.core.recall.quotes import quotable_text
from turnfold.core.summary.gate import Reason
from turnfold.core.summary.source_messages import open_request, sources_of
from turnfold.core.summary.sources import ChunkSummary, Draft, SummaryJob
from turnfold.errors import BudgetSpent, SummarizerError
from turnfold.ports.compact import Job, JobInput, ModelCallStore, Summarizer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SummaryConfig:
    """How this installation writes summaries. Times are seconds.

    Without a model, summaries are extractive. `window` returns the context window of a model in
    tokens. `task` replaces the built-in instructions. `redactions` are the operator's patterns.
    `allowance` limits the models that agents and sessions may name. `api_base` and `api_key` are
    used only for the models that match `key_models`.
    """

    model: str | None = None
    api_base: str | None = None
    api_key: str | None = None
    key_models: tuple[str, ...] = ()
    allowance: Allowance = DEFAULT_ALLOWANCE
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


def model_of(job: Job, config: SummaryConfig) -> str | None:
    """Choose the model: the requested one, else the policy's, else the installation's.

    None means that the summary is extractive. This is the last check before a call. A model that is
    not allowed is skipped, because its name may come from an event, or may have been stored before
    it was forbidden.
    """
    if not job.policy.uses_model:
        return None
    for named in (job.wanted.model, job.policy.summary_model, config.model):
        model = job.model if named == SESSION_MODEL else named
        if model is None:
            continue
        # The installation's own model needs no permission. The name in an event does.
        if (named == config.model and named != SESSION_MODEL) or config.allowance.allows_model(
            model
        ):
            return model
        log.warning(
            "model.not_allowed", agent_id=job.key.agent_id, compaction_id=job.compaction_ids[-1]
        )
    return None


def summary_job(
    job: Job, job_input: JobInput, model: str | None, config: SummaryConfig
) -> SummaryJob:
    """Build the input of the summarizer."""
    policy, wanted = job.policy, job.wanted
    # An agent may name a model at another provider, which must not receive the operator's key.
    has_key = model is not None and (model == config.model or is_named(model, config.key_models))
    following = [json.loads(body) for body in job_input.following]
    evicted = [(entry.message, entry.body, entry.message.is_error) for entry in job_input.evicted]
    return SummaryJob(
        sources=sources_of(evicted),
        previous=job_input.previous,
        newest_request=open_request(
            job_input.previous, evicted, map(json.loads, job_input.answers)
        ),
        following=tuple([quotable_text(body) for body in following]),
        style=wanted.style or str(policy.style),
        max_tokens=policy.summary_max_tokens,
        max_words=policy.summary_max_words,
        ledger_max_tokens=policy.ledger_max_tokens,
        model=model,
        timeout_seconds=config.call_timeout_seconds,
        job_timeout_seconds=config.job_timeout_seconds,
        window_tokens=config.window(model) if model else 0,
        chunk_share=policy.chunk_share,
        task=wanted.prompt or config.task,
        redactions=config.redactions,
        api_base=config.api_base if has_key else None,
        api_key=config.api_key if has_key else None,
    )


def without_model(asked: SummaryJob) -> SummaryJob:
    """Return the same job for the extractive summarizer, which needs no model."""
    return replace(asked, model=None, api_base=None, api_key=None, parts={})


async def write_version(
    asked: SummaryJob,
    job: Job,
    *,
    store: ModelCallStore,
    summarizer: Summarizer,
    now_ms: Callable[[], int],
) -> Draft:
    """Write a version and record its tokens; partial answers are stored for the next attempt.

    Raises:
        SummarizerError: there is no usable answer.
        BudgetSpent: the agent has used its tokens of the day; no model was called.
        LostLease: another worker holds the job.
    """
    if asked.model is None:
        return await summarizer.summarize(asked)
    limit, agent_id, today = job.policy.summary_tokens_per_day, job.key.agent_id, now_ms() // DAY_MS
    # Checked before a call and not during it: the last call of a day may exceed the limit.
    if limit and await store.spent(agent_id, today) >= limit:
        raise BudgetSpent(Reason.RATE_LIMITED, until_ms=(today + 1) * DAY_MS)

    async def pay(tokens: int) -> None:
        if not tokens:
            return
        day = now_ms() // DAY_MS
        total = await store.spend(agent_id, day, tokens)
        if limit and total - tokens < limit <= total:
            # Only the call that exceeds the limit reports it.
            log.warning("token_quota.exceeded", agent_id=agent_id, tokens=total, limit_tokens=limit)

    async def keep(part: ChunkSummary) -> None:
        try:
            await store.keep(job, part, now_ms=now_ms())
        finally:
            # The call was billed, whether its answer could be stored or not.
            await pay(part.tokens)

    begun = await store.begun(job)
    try:
        draft = await summarizer.summarize(
            replace(asked, parts=begun.parts, last_reason=begun.last_reason), keep=keep
        )
    except SummarizerError as error:
        await pay(error.unreported_tokens)
        raise
    await pay(draft.unreported_tokens)
    return draft
