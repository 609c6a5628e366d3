"""HTTP responses that refuse a request."""

import json
from collections.abc import Mapping

from starlette.responses import Response

from turnfold.errors import RequestError, Unavailable


def refusal(
    error: RequestError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response for an error, by default with the status and headers of its kind."""
    if headers is None and isinstance(error, Unavailable):
        headers = retry_after(error.retry_after_ms)
    body = json.dumps(error.as_json())
    return Response(body, status or error.status, headers, media_type="application/json")


def retry_after(milliseconds: int | None) -> dict[str, str]:
    """Return the header that says when to retry, in whole seconds."""
    return {} if milliseconds is None else {"Retry-After": str(-(-milliseconds // 1000))}
