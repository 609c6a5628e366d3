"""Answers about an installation or a whole session: totals, jobs, erasures and timelines."""

from typing import Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer, OfSession, ReadAnswer, SessionTotals
from turnfold.contracts.fields import (
    AgentField,
    CompactionField,
    Count,
    MessageState,
    SummaryKind,
    Time,
    example,
)


class AccessAnswer(ReadAnswer):
    """What the caller may reach."""

    model_config = example(caller="dashboards", is_operator=False, agents=["support"], system=None)

    caller: str | None = Field(
        description="The name of the caller's token; null if callers need none."
    )
    is_operator: bool = Field(description="Whether all agents and the whole system are allowed.")
    agents: list[AgentField] | None = Field(description="The allowed agents; null for all.")
    system: str | None = Field(
        description="The address of the system's bus without a password; null unless an operator"
        " asks."
    )


class StatsAnswer(SessionTotals, ReadAnswer):
    """Sums over the sessions that the caller may read."""

    model_config = example(
        agents=2,
        sessions=120,
        messages=21_400,
        tokens=2_140_000,
        live_messages=5_100,
        live_tokens=510_000,
        summaries=320,
        summary_tokens=48_000,
        sessions_cooling_down=0,
        compactions_open=1,
        compactions_failed=0,
        dead_letters=2,
        tokens_saved=1_582_000,
        windows=48_210,
    )

    agents: Count
    summary_tokens: Count = Field(description="Tokens of the versions in force.")
    compactions_open: Count = Field(description="Compactions that wait for their summary.")
    compactions_failed: Count = Field(
        description="Compactions that ended without a summary, or go on after a failed attempt."
    )
    dead_letters: Count = Field(description="Dead letters that were not replayed.")
    tokens_saved: Count = Field(
        description="Tokens of all messages, system messages among them, beyond `live_tokens` and"
        " `summary_tokens`."
    )
    windows: Count | None = Field(
        description="Windows that this server has answered since it started; null beside the totals"
        " of some agents."
    )


class CompactionEntry(OfSession):
    """A compaction: an eviction, its job, and what became of it."""

    compaction_id: CompactionField
    ordinal: int = Field(ge=1, description="Counts the compactions of the session from 1.")
    trigger: str = Field(description="Its trigger, such as `messages` or `request`.")
    status: Literal["pending", "running", "committed", "rejected", "failed", "stale", "restored"]
    is_covered: bool = Field(description="Whether the summary in force covers its messages.")
    is_regeneration: bool = Field(description="Whether it writes a version of what is covered.")
    first_position: Count | None = Field(description="Null while nothing has left the window.")
    last_position: Count | None
    messages: Count = Field(description="Messages that it evicted.")
    tokens: Count = Field(description="Their tokens.")
    tokens_before: Count = Field(description="Tokens of the window before.")
    tokens_after: Count | None
    attempts: Count
    reason: str | None = Field(description="Why the newest attempt failed, or why it ended.")
    version: int | None = Field(description="The version that it wrote.")
    actor: str | None = Field(description="The actor that requested it; null if none did.")
    requested_at: Time
    evicted_at: Time | None
    finished_at: Time | None
    next_attempt_at: Time
    restored_at: Time | None


_COMPACTION = {
    "compaction_id": "17",
    "agent_id": "support",
    "session_id": "user-42",
    "ordinal": 3,
    "trigger": "messages",
    "status": "committed",
    "is_covered": True,
    "is_regeneration": False,
    "first_position": 1_024,
    "last_position": 60_416,
    "messages": 118,
    "tokens": 12_280,
    "tokens_before": 17_060,
    "tokens_after": 4_780,
    "attempts": 1,
    "reason": None,
    "version": 3,
    "actor": None,
    "requested_at": "2026-11-20T10:00:00.000Z",
    "evicted_at": "2026-11-20T10:00:00.000Z",
    "finished_at": "2026-11-20T10:00:01.000Z",
    "next_attempt_at": "2026-11-20T10:00:00.150Z",
    "restored_at": None,
}


class CompactionListAnswer(ReadAnswer):
    """A page of compactions, newest first."""

    model_config = example(compactions=[_COMPACTION], next_before=None)

    compactions: list[CompactionEntry]
    next_before: int | None = Field(
        description="The `before` of the next page; null on the last page, and in lists over"
        " several sessions."
    )


class TimelinePart(Answer):
    """Neighboring messages of one state."""

    state: MessageState
    messages: int = Field(ge=1)
    first_position: Count
    last_position: Count


class TimelineVersion(Answer):
    """A version of the summary on a timeline."""

    version: int = Field(ge=1)
    kind: SummaryKind
    tokens: Count
    messages_covered: Count
    last_position: Count = Field(description="The position of the last message that it covers.")
    created_at: Time


class TimelineAnswer(ReadAnswer):
    """The messages of a session by state, without texts, and what happened to them."""

    model_config = example(
        messages=160,
        in_force=3,
        parts=[
            {"state": "covered", "messages": 118, "first_position": 1_024, "last_position": 60_416},
            {"state": "live", "messages": 42, "first_position": 61_440, "last_position": 83_968},
        ],
        compactions=[_COMPACTION],
        versions=[
            {
                "version": 3,
                "kind": "llm",
                "tokens": 412,
                "messages_covered": 118,
                "last_position": 60_416,
                "created_at": "2026-11-20T10:00:01.000Z",
            }
        ],
    )

    messages: Count = Field(description="Messages of all parts.")
    in_force: int | None = Field(description="The version in force.")
    parts: list[TimelinePart] = Field(description="In the order of the session.")
    compactions: list[CompactionEntry] = Field(description="The newest 500, oldest first.")
    versions: list[TimelineVersion] = Field(description="The newest 500, oldest first.")


class AuditCheckAnswer(ReadAnswer):
    """The result of recomputing the audit chain of a session."""

    model_config = example(rows=12, is_intact=True, fault=None)

    rows: Count
    is_intact: bool
    fault: str | None = Field(description="The first fault; null if the chain is intact.")


class ErasureEntry(Answer):
    """An erasure. The audit rows of the session are kept."""

    agent_id: AgentField
    session_id: str | None = Field(description="The session; null if all of the agent was erased.")
    at: Time
    audit_rows: Count


class ErasureListAnswer(ReadAnswer):
    """A page of erasures, newest first."""

    model_config = example(
        erasures=[
            {
                "agent_id": "support",
                "session_id": "user-7",
                "at": "2026-11-20T10:00:00.000Z",
                "audit_rows": 9,
            }
        ],
        next_after=None,
    )

    erasures: list[ErasureEntry]
    next_after: str | None = Field(
        description="The `after` of the next page; null on the last page."
    )


class MomentWindow(Answer):
    """The sizes of the window at one moment."""

    as_of: str | None = Field(description="The moment as it was requested; null for now.")
    tokens: Count
    messages: Count = Field(description="Messages of the session at that moment.")
    summary_version: int | None = Field(description="The version in force; null without one.")


class ChangeCounts(Answer):
    """Messages by what happened to them between two windows."""

    added: Count
    folded: Count
    returned: Count
    gone: Count
    changed: Count
    same: Count = Field(description="Shown in both windows in the same form.")


StoredForm = Literal["whole", "cut", "line", "mended"]


class WindowChange(Answer):
    """A message that two windows show in different forms, or that only one of them shows."""

    message_id: str
    position: Count
    role: str
    change: Literal["added", "folded", "returned", "gone", "changed"] = Field(
        description="`added`: published in between. `folded`: no longer shown. `returned`: shown"
        " again. `gone`: retracted. `changed`: shown in another form."
    )
    form_before: StoredForm | None = Field(description="Null if the first window lacks it.")
    form_after: StoredForm | None = Field(description="Null if the second window lacks it.")
    state_before: MessageState | None = Field(description="Null if it was not published yet.")
    state_after: MessageState | None


class DifferenceAnswer(ReadAnswer):
    """The difference between the windows of two moments."""

    model_config = example(
        before={"as_of": "2", "tokens": 4_780, "messages": 120, "summary_version": 2},
        after={"as_of": None, "tokens": 5_210, "messages": 160, "summary_version": 3},
        counts={"added": 36, "folded": 31, "returned": 0, "gone": 0, "changed": 1, "same": 6},
        changes=[
            {
                "message_id": "turn-40#0",
                "position": 40_960,
                "role": "user",
                "change": "folded",
                "form_before": "whole",
                "form_after": None,
                "state_before": "live",
                "state_after": "covered",
            }
        ],
    )

    before: MomentWindow
    after: MomentWindow
    counts: ChangeCounts
    changes: list[WindowChange] = Field(
        description="The newest `limit` messages that changed, in the order of the session."
    )
