"""The meaning of a failed call, by its status: litellm's error classes are too coarse."""

import re
from typing import Final

from turnfold.core.recovery.overflow import overflow_in
from turnfold.core.summary.gate import Reason
from turnfold.errors import SummarizerError

_SPENT: Final = re.compile(
    r"insufficient_quota|quota|billing|credit balance|payment required|spending limit",
    re.IGNORECASE,
)

_SCHEMA: Final = re.compile(
    r"response_format|json_schema|response schema|structured output|output_config|output_format",
    re.IGNORECASE,
)


def failure_of(error: BaseException) -> SummarizerError:
    """Translate the error of a call.

    The text contains only class and status, because a provider's message may quote the user.
    """
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    reason, is_transient = _meaning(error, status, str(error))
    description = f"{type(error).__name__}, status {status}" if status else type(error).__name__
    return SummarizerError(
        reason, description, is_transient=is_transient, retry_after_seconds=_retry_after(error)
    )


def refuses_schema(error: BaseException) -> bool:
    """Return whether a provider rejected the schema, so that a call without it may succeed."""
    status = getattr(error, "status_code", None)
    return (
        status in {400, 404, 422}
        and overflow_in(error) is None
        and _SCHEMA.search(str(error)) is not None
    )


def _retry_after(error: BaseException) -> float | None:
    """Return the seconds of a `Retry-After` header, or None. Dates are ignored."""
    # The place of the headers depends on the provider.
    places = (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    )
    header = next(
        (headers["retry-after"] for headers in places if headers and "retry-after" in headers), ""
    )
    try:
        seconds = float(header)
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds < float("inf") else None


def _meaning(error: BaseException, status: int | None, text: str) -> tuple[Reason, bool]:
    if status in {402, 429}:
        return Reason.RATE_LIMITED, status == 429 and not _SPENT.search(text)
    if overflow_in(error) is not None:
        return Reason.CONTEXT_OVERFLOW, False
    if isinstance(error, TimeoutError) or type(error).__name__ == "Timeout" or status in (408, 504):
        return Reason.TIMEOUT, True
    if status is not None and 400 <= status < 500 and status not in (409, 425):
        return Reason.PROVIDER_ERROR, False
    return Reason.PROVIDER_ERROR, True
