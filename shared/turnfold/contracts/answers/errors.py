"""The error that every request may be answered with."""

from typing import Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer
from turnfold.contracts.fields import Count, example

ErrorCode = Literal[
    "bad_request",
    "not_allowed",
    "unknown_session",
    "cannot_fit",
    "too_large",
    "conflict",
    "unavailable",
]


class ErrorFields(Answer):
    """The code of an error, its text, and what would succeed."""

    code: ErrorCode = Field(description="The kind of error; programs decide by it.")
    message: str = Field(description="What happened, and what to do next.")
    needed_tokens: Count | None = Field(
        None, description="`cannot_fit`: the smallest `max_tokens` that succeeds."
    )
    needed_messages: Count | None = Field(
        None, description="`cannot_fit`: the smallest `max_messages` that succeeds."
    )
    retry_after_ms: Count | None = Field(
        None, description="`unavailable`: milliseconds to wait before the next attempt."
    )


class ErrorAnswer(Answer):
    """The answer to a request that failed."""

    model_config = example(
        error={
            "code": "cannot_fit",
            "message": "the smallest window has 5120 tokens",
            "needed_tokens": 5_120,
        }
    )

    error: ErrorFields
