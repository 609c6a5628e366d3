"""The messages between the worker and the summarizer, as JSON objects."""

import json
from collections.abc import Mapping
from typing import Any, Final

from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob
from turnfold.errors import SummarizerError

LOADED: Final = 0
"""The id of the message by which the child reports that litellm is loaded. No job has it."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the body of the frame of a message. ASCII represents lone surrogates unchanged."""
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def decode(body: bytes) -> dict[str, Any]:
    """Return the message of a frame.

    Raises:
        ValueError: the body is not a JSON object.
    """
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("frame is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("frame must be a JSON object")  # noqa: TRY004 - the value is wrong
    return message


def job_as_json(job: SummaryJob) -> dict[str, Any]:
    """Return the JSON object of a job."""
    previous = job.previous
    return {
        "sources": [list(source) for source in job.sources],
        "previous": None
        if previous is None
        else {"text": previous.text, "sections": previous.sections, "ledger": previous.ledger},
        "newest_request": job.newest_request,
        "following": job.following,
        "style": job.style,
        "max_tokens": job.max_tokens,
        "max_words": job.max_words,
        "ledger_max_tokens": job.ledger_max_tokens,
        "model": job.model,
        "api_base": job.api_base,
        "api_key": job.api_key,
        "timeout_seconds": job.timeout_seconds,
        "job_timeout_seconds": job.job_timeout_seconds,
        "window_tokens": job.window_tokens,
        "chunk_share": job.chunk_share,
        "task": job.task,
        "last_reason": job.last_reason,
        "parts": dict(job.parts),
        "redactions": job.redactions,
    }


def job_from_json(value: Mapping[str, Any]) -> SummaryJob:
    """Return the job of a JSON object."""
    previous = value["previous"]
    return SummaryJob(
        sources=tuple(
            Source(
                message_id,
                role,
                text,
                tuple((name, arguments) for name, arguments in calls),
                tool_name,
                is_error,
                is_late,
            )
            for message_id, role, text, calls, tool_name, is_error, is_late in value["sources"]
        ),
        previous=None
        if previous is None
        else PreviousSummary(previous["text"], previous["sections"], tuple(previous["ledger"])),
        following=tuple(value["following"]),
        redactions=tuple(value["redactions"]),
        **{
            name: field
            for name, field in value.items()
            if name not in ("sources", "previous", "following", "redactions")
        },
    )


def draft_as_json(draft: Draft) -> dict[str, Any]:
    """Return the JSON object of a draft."""
    return {
        "text": draft.text,
        "sections": draft.sections,
        "ledger": draft.ledger,
        "kind": draft.kind,
        "model": draft.model,
        "prompt_tokens": draft.prompt_tokens,
        "completion_tokens": draft.completion_tokens,
        "cost": draft.cost,
        "prompt_version": draft.prompt_version,
    }


def draft_from_json(value: Mapping[str, Any]) -> Draft:
    """Return the draft of a JSON object."""
    fields: dict[str, Any] = dict(value)
    ledger: tuple[str, ...] = tuple(fields.pop("ledger"))
    return Draft(ledger=ledger, **fields)


def failure_as_json(error: SummarizerError) -> dict[str, Any]:
    """Return the JSON object of a failure."""
    return {
        "reason": str(error.reason),
        # `SummarizerError` puts the reason in front of the detail again.
        "detail": str(error).partition(": ")[2],
        "is_transient": error.is_transient,
        "retry_after_seconds": error.retry_after_seconds,
    }


def failure_from_json(value: Mapping[str, Any]) -> SummarizerError:
    """Return the failure of a JSON object."""
    return SummarizerError(**value)
