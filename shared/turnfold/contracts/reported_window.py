"""The content of `usage.reported`: what a call revealed about a model's window."""

from typing import NamedTuple


class ReportedWindow(NamedTuple):
    """The content of `usage.reported`: a model's window, and whether a call exceeded it.

    `limit_tokens` is the size that the provider named; None if it named none. `message_id` is the
    message that answered the call.
    """

    limit_tokens: int | None = None
    is_overflow: bool = False
    message_id: str | None = None
