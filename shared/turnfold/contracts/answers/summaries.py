"""Answers about the versions of a summary: lists, single versions, sources, and changes."""

from typing import Any, Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer, ReadAnswer
from turnfold.contracts.answers.history import HistoryEntry
from turnfold.contracts.fields import (
    AgentField,
    CompactionField,
    Count,
    MessageField,
    SummaryKind,
    SummaryStyle,
    Time,
    example,
)


class CoveredSpan(Answer):
    """The messages that a version covers."""

    first: MessageField
    last: MessageField
    messages: Count


class VersionFacts(Answer):
    """The facts of a version, without its content."""

    version: int = Field(ge=1, description="The number of the version; never reused.")
    kind: SummaryKind = Field(description="`llm`: written by a model. `extractive`: by code.")
    style: SummaryStyle
    model: str | None = Field(description="The model that wrote it; null if none did.")
    tokens: Count = Field(description="Tokens of the text and the ledger.")
    covers: CoveredSpan
    created_at: Time


class SummaryFields(VersionFacts):
    """A version with its content."""

    text: str = Field(description="The summary as text.")
    sections: dict[str, Any] = Field(description="The parts of a structured summary, by name.")
    ledger: list[str] = Field(description="Exact values: ids, paths, amounts, constraints.")


class ListedVersion(VersionFacts):
    """A version without its content, and how it relates to the others."""

    in_force: bool = Field(description="Whether windows show this version.")
    base_version: int | None = Field(description="The version that it extends; null if none.")
    compaction_id: CompactionField


class VersionListAnswer(ReadAnswer):
    """All versions of a session, oldest first."""

    model_config = example(
        summaries=[
            {
                "version": 3,
                "kind": "llm",
                "style": "structured",
                "model": "openai/gpt-4.1-mini",
                "tokens": 412,
                "covers": {"first": "e1#0", "last": "e58#1", "messages": 118},
                "created_at": "2026-11-20T10:00:00.000Z",
                "in_force": True,
                "base_version": 2,
                "compaction_id": "17",
            }
        ]
    )

    summaries: list[ListedVersion]


class VersionAnswer(ListedVersion, SummaryFields, ReadAnswer):
    """One version of the summary."""

    model_config = example(
        version=3,
        kind="llm",
        style="structured",
        model="openai/gpt-4.1-mini",
        text="The customer asks for order 7341.",
        sections={"requests": ["Where is order 7341?"]},
        ledger=["order 7341"],
        tokens=24,
        covers={"first": "e1#0", "last": "e58#1", "messages": 118},
        created_at="2026-11-20T10:00:00.000Z",
        in_force=True,
        base_version=2,
        compaction_id="17",
    )


class SourcesAnswer(ReadAnswer):
    """The messages behind a ledger entry or a line of a version."""

    model_config = example(
        version=3,
        entry=0,
        text="order 7341",
        how="recorded",
        missing=0,
        messages=[
            {
                "message_id": "e1#0",
                "position": 1_024,
                "state": "covered",
                "message": {"role": "user", "content": "Where is order 7341?"},
            }
        ],
    )

    version: int = Field(ge=1)
    entry: Count | None = Field(None, description="The requested entry, if one was requested.")
    line: Count | None = Field(None, description="The requested line, if one was requested.")
    text: str = Field(description="The text of the entry or the line.")
    how: Literal["recorded", "matched"] = Field(
        description="`recorded`: the version names the messages. `matched`: a search found them."
    )
    missing: Count = Field(
        description="Recorded messages that are not returned: retracted, or too large together."
    )
    messages: list[HistoryEntry]


class RegenerationAnswer(Answer):
    """The job that writes a new version."""

    model_config = example(compaction_id="18")

    compaction_id: CompactionField


class CompactionAnswer(Answer):
    """The compaction that was opened."""

    model_config = example(compaction_id="19")

    compaction_id: CompactionField | None = Field(
        description="The id of the compaction; null if nothing can leave the window."
    )


class RestoreAnswer(Answer):
    """A compaction that was undone."""

    model_config = example(compaction_id="19", status="restored", version=2, messages_pending=0)

    compaction_id: CompactionField
    status: Literal["restored"]
    version: int | None = Field(description="The version now in force; null if none is.")
    messages_pending: Count = Field(description="Evicted messages that it does not cover.")


class CampaignAnswer(Answer):
    """The progress of a campaign that regenerates the summaries of many sessions."""

    model_config = example(
        campaign_id="4f1d9c2ab7",
        agent_id="support",
        sessions=120,
        opened=14,
        written=11,
        failed=1,
        open=2,
        requested_at="2026-11-20T10:00:00.000Z",
        finished_at=None,
    )

    campaign_id: str
    agent_id: AgentField | None = Field(description="The agent; null for all agents.")
    sessions: Count = Field(description="Sessions of the campaign.")
    opened: Count = Field(description="Sessions whose job was opened.")
    written: Count = Field(description="Opened sessions with a new version.")
    failed: Count = Field(description="Opened sessions without a new version.")
    open: Count = Field(description="Opened sessions whose job is not finished.")
    requested_at: Time
    finished_at: Time | None = Field(description="Null while the campaign runs.")
