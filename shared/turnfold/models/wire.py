"""The messages between the worker and the summarizer, as JSON objects."""

import json
from collections.abc import Mapping
from dataclasses import fields
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
    previous = None if job.previous is None else _fields_of(job.previous)
    return _fields_of(job) | {"previous": previous, "parts": dict(job.parts)}


def _fields_of(value: SummaryJob | PreviousSummary | Draft) -> dict[str, Any]:
    """Return the fields of a value by name, as they are: `asdict` would copy all of them."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def job_from_json(value: Mapping[str, Any]) -> SummaryJob:
    """Return the job of a JSON object."""
    sources = tuple(
        Source(message_id, role, text, tuple((name, said) for name, said in calls), *others)
        for message_id, role, text, calls, *others in value["sources"]
    )
    previous = value["previous"]
    if previous is not None:
        previous = PreviousSummary(**previous | {"ledger": tuple(previous["ledger"])})
    sequences = {name: tuple(value[name]) for name in ("following", "redactions")}
    read: dict[str, Any] = {**value, "sources": sources, "previous": previous, **sequences}
    return SummaryJob(**read)


def draft_as_json(draft: Draft) -> dict[str, Any]:
    """Return the JSON object of a draft."""
    return _fields_of(draft)


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
