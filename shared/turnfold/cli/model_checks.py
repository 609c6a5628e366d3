"""Checks of the summary model for `turnfold doctor`."""

import asyncio
from urllib.parse import urlsplit

from turnfold.cli.diagnoses import Finding
from turnfold.core.policy.allowance import SESSION_MODEL, is_named
from turnfold.models.litellm_installed import can_call_models
from turnfold.process.directory import is_alive
from turnfold.settings import Settings, redacted
from turnfold.settings.reading import read_ready

MODEL_SECONDS = 5.0


async def check_model(settings: Settings, *, asks_model: bool = False) -> Finding:
    """Check the model's configuration, then its process; if `asks_model`, request a summary."""
    model = settings.default_model
    if model is None:
        # Workers have settings of their own.
        found = "this environment names none; workers without one write extractive summaries"
        return Finding("model", "ok", found)
    if not can_call_models():
        return Finding(
            "model",
            "failed",
            f"{model}: litellm is not installed",
            "install turnfold[models], or unset TURNFOLD_SUMMARY_MODEL",
        )
    if settings.lacks_session_models:
        advice = (
            "set TURNFOLD_SUMMARY_MODELS to the models that sessions may name, such as openai/*"
        )
        return Finding(
            "model",
            "warning",
            "session, but no model is allowed: summaries are extractive",
            advice,
        )
    test = "; test it with --model"
    if model == SESSION_MODEL:
        model, test = "each session's model", ""
    elif asks_model:
        return await _request_summary(settings, model)
    pid = _model_pid(settings)
    if pid is not None and not is_alive(pid):
        return Finding(
            "model", "failed", f"its process {pid} has ended", "read the log of the worker"
        )
    if settings.summary_api_base is None:
        return Finding("model", "ok", f"{model}{test}")
    where = redacted(settings.summary_api_base)
    try:
        target = urlsplit(settings.summary_api_base)
        async with asyncio.timeout(MODEL_SECONDS):
            _, writer = await asyncio.open_connection(
                target.hostname, target.port or (443 if target.scheme == "https" else 80)
            )
        writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        advice = (
            "correct TURNFOLD_SUMMARY_API_BASE, or start the server there;"
            " until then summaries are extractive"
        )
        return Finding(
            "model",
            "failed",
            f"{model}: nothing listens at {where} ({type(error).__name__})",
            advice,
        )
    return Finding("model", "ok", f"{model}: a server listens at {where}{test}")


async def _request_summary(settings: Settings, model: str) -> Finding:
    """Request a short summary as a worker does: in a child process, which loads litellm."""
    from turnfold.core.summary.gate import Reason
    from turnfold.core.summary.sources import Source, SummaryJob
    from turnfold.errors import SummarizerError
    from turnfold.models import ChildSummarizer

    has_key = is_named(model, settings.key_models)
    job = SummaryJob(
        sources=(
            Source("doctor#0", "user", "Is the summarizer available?"),
            Source("doctor#1", "assistant", "It is being tested now."),
        ),
        model=model,
        # They belong to one provider, and the policy may name a model of another.
        api_base=settings.summary_api_base if has_key else None,
        api_key=settings.summary_api_key if has_key else None,
        timeout_seconds=settings.summary_timeout_seconds,
        job_timeout_seconds=settings.summary_job_timeout_seconds,
    )
    summarizer = ChildSummarizer()
    try:
        draft = await summarizer.summarize(job)
    except SummarizerError as error:
        if error.reason in (Reason.TIMEOUT, Reason.PROVIDER_ERROR, Reason.RATE_LIMITED):
            advice = (
                "correct TURNFOLD_SUMMARY_MODEL, _API_BASE or _API_KEY,"
                " or wait for the provider; until then summaries are extractive"
            )
            return Finding("model", "failed", f"{model} returns no summary: {error}", advice)
        return Finding(
            "model", "ok", f"{model} answers, but without a usable summary ({error.reason})"
        )
    finally:
        await summarizer.close()
    return Finding("model", "ok", f"{draft.model or model} returns a summary")


def _model_pid(settings: Settings) -> int | None:
    """Return the id of the process that calls the model, if the data directory names it."""
    ready = None if settings.data_dir is None else read_ready(settings.data_dir)
    pids = (ready or {}).get("pids")
    pid = pids.get("model") if isinstance(pids, dict) else None
    return pid if isinstance(pid, int) else None
