"""Answers about the installation: publishing, dead letters, health and descriptions."""

from typing import Any, Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer
from turnfold.contracts.fields import Count, Time, example


class PublishAnswer(Answer):
    """An event that the stream has stored."""

    model_config = example(seq=4_711)

    seq: int = Field(
        ge=1, description="The stream sequence: the freshness token, `after` of `context.get`."
    )


class DeadLetterEntry(Answer):
    """An event that could not be stored, without its bytes."""

    dead_letter_id: int = Field(ge=1)
    at: Time
    subject: str = Field(description="The subject on which it was published.")
    stream_seq: int = Field(ge=1)
    reason: str = Field(description="Why it was not stored, such as `not_json`.")
    detail: str
    size_bytes: Count
    replayed_at: Time | None = Field(description="When it was published again; null if never.")


class DeadLetterListAnswer(Answer):
    """A page of dead letters, oldest first."""

    model_config = example(
        dead_letters=[
            {
                "dead_letter_id": 1,
                "at": "2026-11-20T10:00:00.000Z",
                "subject": "turn.completed.support.user-42",
                "stream_seq": 4_711,
                "reason": "not_json",
                "detail": "JSONDecodeError",
                "size_bytes": 211,
                "replayed_at": None,
            }
        ]
    )

    dead_letters: list[DeadLetterEntry]


class DeadLetterAnswer(DeadLetterEntry):
    """A dead letter with the bytes that are kept; exactly one of the two payloads is present."""

    model_config = example(
        dead_letter_id=1,
        at="2026-11-20T10:00:00.000Z",
        subject="turn.completed.support.user-42",
        stream_seq=4_711,
        reason="not_json",
        detail="JSONDecodeError",
        size_bytes=1,
        replayed_at=None,
        is_whole=True,
        payload="{",
    )

    is_whole: bool = Field(description="Whether all published bytes are kept.")
    payload: str | None = Field(None, description="The bytes, if they are UTF-8.")
    payload_base64: str | None = Field(None, description="The bytes in base64, if they are not.")


class ReplayOutcome(Answer):
    """The outcome of a replay for one dead letter."""

    dead_letter_id: int = Field(ge=1)
    subject: str | None = Field(None, description="Absent if the outcome is `unknown`.")
    outcome: Literal["stored", "dead", "published", "replayed_before", "gone", "unknown"] = Field(
        description="`published`: not ingested yet. `gone`: the stream no longer holds it."
        " `unknown`: there is no such dead letter."
    )
    seq: int | None = Field(None, description="The new stream sequence, if it was published.")
    reason: str | None = Field(None, description="Only with `dead`: why it was not stored again.")
    became: int | None = Field(None, description="Only with `dead`: the id of the new dead letter.")


class ReplayAnswer(Answer):
    """A page of a replay. Unless it is done, request the next page with `after` and `until`."""

    model_config = example(
        dead_letters=[
            {
                "dead_letter_id": 1,
                "subject": "turn.completed.support.user-42",
                "outcome": "stored",
                "seq": 4_812,
            }
        ],
        after=1,
        until=1,
        is_done=True,
    )

    dead_letters: list[ReplayOutcome]
    after: Count
    until: Count
    is_done: bool


class HealthAnswer(Answer):
    """The process is alive."""

    model_config = example(status="ok")

    status: Literal["ok"]


class ReadinessAnswer(Answer):
    """Whether the process can answer requests."""

    model_config = example(status="ready", missing=[])

    status: Literal["ready", "not ready"]
    missing: list[str] = Field(description="What is missing, as sentences.")


class AsyncApiAnswer(Answer):
    """An AsyncAPI document."""

    model_config = example(
        asyncapi="3.0.0",
        info={"title": "Turnfold", "version": "0.1.0"},
        channels={},
        operations={},
        components={},
    )

    asyncapi: str
    info: dict[str, Any]
    channels: dict[str, Any]
    operations: dict[str, Any]
    components: dict[str, Any]
