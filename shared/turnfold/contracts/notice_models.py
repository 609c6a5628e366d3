"""Models of the notices. The worker publishes them at least once, after the commit."""

from typing import Literal

from pydantic import Field

from turnfold.contracts.answers.base import AuditHead, OfSession
from turnfold.contracts.fields import (
    CompactionField,
    Count,
    SummaryKind,
    example,
)

TriggerName = Literal[
    "messages",
    "tokens",
    "budget",
    "usage",
    "rounds",
    "idle",
    "request",
    "regenerate",
    "stand_in",
]


class NoticeFields(OfSession):
    """The fields of every notice."""

    audit: AuditHead


class ContextCompressed(NoticeFields):
    """Messages have left the window."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        compaction_id="17",
        trigger="messages",
        original_count=51,
        compressed_count=10,
        estimated_tokens=4_034,
        budget_tokens=0,
        audit={"rows": 9, "hash": "5e7b" * 16},
    )

    compaction_id: CompactionField
    trigger: TriggerName = Field(description="The condition that made the compaction due.")
    original_count: Count = Field(description="Live messages before.")
    compressed_count: Count = Field(description="Live messages after.")
    estimated_tokens: Count = Field(description="Tokens of live messages and summary after.")
    budget_tokens: Count = Field(description="The limit of the trigger; 0 if it counts no tokens.")


class SummaryUpdated(NoticeFields):
    """A version was written, promoted or restored."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        version=3,
        kind="llm",
        tokens_before=9_120,
        tokens_after=4_446,
        audit={"rows": 12, "hash": "5e7b" * 16},
    )

    version: int | None = Field(description="Null if a restoration left none in force.")
    kind: SummaryKind | None = Field(description="Null if `version` is null.")
    tokens_before: Count | None = Field(
        description="Tokens of live messages and summary before the eviction."
    )
    tokens_after: Count | None = Field(description="The same after the change.")
    in_force: Literal[False] | None = Field(
        None, description="False if the version was regenerated and is not in force yet."
    )


class CompactionFailed(NoticeFields):
    """An attempt to write a version has failed."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        compaction_id="17",
        reason="timeout",
        attempts=1,
        next_attempt_at=1_795_168_806_000,
        audit={"rows": 11, "hash": "5e7b" * 16},
    )

    compaction_id: CompactionField
    reason: str | None
    attempts: Count = Field(description="Attempts so far.")
    next_attempt_at: Count | None = Field(
        description="Milliseconds since 1970; null if there is no other attempt."
    )


NOTICE_MODELS: dict[str, type[NoticeFields]] = {
    "context.compressed": ContextCompressed,
    "summary.updated": SummaryUpdated,
    "compaction.failed": CompactionFailed,
}
"""The model of each notice."""
