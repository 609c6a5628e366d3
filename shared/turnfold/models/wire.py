"""The messages of the summarizer to the worker, as JSON objects.

Jobs travel pickled, replies do not: the worker does not trust a process that runs litellm.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from turnfold.core.summary.sources import Draft
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


def draft_as_json(draft: Draft) -> dict[str, Any]:
    """Return the JSON object of a draft, with its fields as they are: `asdict` would copy them."""
    return {field.name: getattr(draft, field.name) for field in fields(draft)}


def draft_from_json(value: Mapping[str, Any]) -> Draft:
    """Return the draft of a JSON object."""
    read: dict[str, Any] = {**value, "ledger": tuple(value["ledger"])}
    return Draft(**read)


def failure_as_json(error: SummarizerError) -> dict[str, Any]:
    """Return the JSON object of a failure."""
    return {
        "reason": str(error.reason),
        # `SummarizerError` puts the reason in front of the detail again.
        "detail": str(error).partition(": ")[2],
        "is_transient": error.is_transient,
        "retry_after_seconds": error.retry_after_seconds,
    }
