"""What parent and child say to each other: JSON frames, each behind its length in four bytes."""

import json
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Mapping
from typing import Any, Final

from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob
from turnfold.errors import SummarizerError

MAX_FRAME_BYTES: Final = 1 << 30
_LENGTH_BYTES: Final = 4
LOADED: Final = 0
"""The number of no job: the child says with it that litellm is loaded."""


def frame(value: Mapping[str, Any]) -> bytes:
    """One frame. ASCII only, so that lone surrogates pass as they are."""
    body = json.dumps(value, separators=(",", ":")).encode("ascii")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_frame(reader: StreamReader) -> dict[str, Any] | None:
    """The next frame, or None when the other side has gone.

    Raises:
        ValueError: what came is no frame.
    """
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes")
        value = json.loads(await reader.readexactly(length))
    except (IncompleteReadError, ConnectionError):
        return None
    except RecursionError:
        raise ValueError("a frame that is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("a frame is an object")  # noqa: TRY004 - what came is wrong, not what was passed
    return value


def job_as_json(job: SummaryJob) -> dict[str, Any]:
    """A job as it travels."""
    previous = job.previous
    return {
        "sources": [list(source) for source in job.sources],
        "previous": None
        if previous is None
        else {"text": previous.text, "sections": previous.sections, "ledger": previous.ledger},
        "newest_request": job.newest_request,
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
    """The job that travelled."""
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
        redactions=tuple(value["redactions"]),
        **{
            name: given
            for name, given in value.items()
            if name not in ("sources", "previous", "redactions")
        },
    )


def draft_as_json(draft: Draft) -> dict[str, Any]:
    """A draft as it travels."""
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
    """The draft that travelled."""
    given: dict[str, Any] = dict(value)
    ledger: tuple[str, ...] = tuple(given.pop("ledger"))
    return Draft(ledger=ledger, **given)


def failure_as_json(error: SummarizerError) -> dict[str, Any]:
    """A failure as it travels."""
    return {
        "reason": str(error.reason),
        "detail": str(error).partition(": ")[2],
        "is_transient": error.is_transient,
        "retry_after_seconds": error.retry_after_seconds,
    }


def failure_from_json(value: Mapping[str, Any]) -> SummarizerError:
    """The failure that travelled."""
    return SummarizerError(**value)
