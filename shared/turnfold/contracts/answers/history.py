"""Answers about the past of a session: messages, search hits, counts and audit rows."""

from typing import Any, Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer, AuditHead, OfSession, ReadAnswer
from turnfold.contracts.answers.policies import PolicyAnswer
from turnfold.contracts.fields import (
    AgentField,
    ChatMessage,
    CompactionField,
    Count,
    MessageField,
    MessageState,
    PolicyMode,
    SessionField,
    Time,
    example,
)

FRESH: Any = Field(
    True, description="False if an event up to `after` is not stored yet; absent without `after`."
)


class StoredEntry(Answer):
    """The fields of an original message in every shape."""

    message_id: MessageField
    position: Count = Field(description="Increases in the order of the session, with gaps.")
    state: MessageState = Field(
        description="`live`: in the window. `pending`: evicted, not summarized yet. `covered`:"
        " in the summary in force. `retracted`: taken back by its user, in no window."
    )
    is_meta: Literal[True] | None = Field(
        None, description="True if a program wrote this user message."
    )
    is_error: Literal[True] | None = Field(
        None, description="True if the event of this tool result says that the tool failed."
    )
    carry: Any = Field(
        None,
        description="What the event carries for this message, verbatim; absent if that is"
        " null, and in searches and sources.",
    )


class HistoryEntry(StoredEntry):
    """An original message."""

    message: ChatMessage
    original_content: Any = Field(
        None,
        description="Only for a tool result whose content is neither text nor parts: the content"
        " as it was published.",
    )
    shape: Literal["responses", "anthropic"] | None = Field(
        None, description="Only if the message was published in another shape than chat."
    )
    element: dict[str, Any] | None = Field(
        None,
        description="With `shape`: the item or the message as it was published; `message` is its "
        "chat view. An item that is part of a response has an empty one: the first item has all.",
    )


class PublishedEntry(StoredEntry):
    """An original message as it was published in another shape than chat."""

    shape: Literal["responses", "anthropic"]
    element: dict[str, Any]


class PopAnswer(Answer):
    """Messages that were retracted."""

    model_config = example(
        messages=[
            {
                "message_id": "e1#0",
                "position": 1_024,
                "state": "retracted",
                "message": {"role": "user", "content": "Where is order 7341?"},
            }
        ],
        seq=4_712,
    )

    messages: list[HistoryEntry] = Field(description="In order; empty if there was none.")
    seq: Count = Field(
        description="The stream sequence of the retraction, a freshness token; without messages,"
        " that of the newest event."
    )


class HistoryAnswer(ReadAnswer):
    """A page of original messages."""

    model_config = example(
        messages=[
            {
                "message_id": "e1#0",
                "position": 1_024,
                "state": "live",
                "message": {"role": "user", "content": "Where is order 7341?"},
            }
        ],
        next_position=1_024,
        previous_position=None,
        fresh=True,
    )

    messages: list[HistoryEntry]
    next_position: Count | None = Field(
        description="The `after_position` of the next page; null on the last page."
    )
    previous_position: Count | None = Field(
        None,
        description="Only for pages that end at a position: the `before_position` of the page"
        " before; null on the first page.",
    )
    fresh: bool = FRESH


class ElementsAnswer(ReadAnswer):
    """The answer to `bodies: published`: messages of another shape than chat have no `message`."""

    model_config = example(
        messages=[
            {
                "message_id": "e1#0",
                "position": 1_024,
                "state": "live",
                "shape": "responses",
                "element": {"type": "message", "role": "user", "content": "Where is order 7341?"},
            }
        ],
        next_position=1_024,
        fresh=True,
    )

    messages: list[HistoryEntry | PublishedEntry]
    next_position: Count | None
    previous_position: Count | None = None
    fresh: bool = FRESH


class SearchEntry(HistoryEntry):
    """A message that matches a query."""

    score: float = Field(description="Decreases from hit to hit; it has no other meaning.")


class SearchAnswer(ReadAnswer):
    """The messages that match a query, best first."""

    model_config = example(
        hits=[
            {
                "message_id": "e1#0",
                "position": 1_024,
                "state": "covered",
                "score": 2.25,
                "message": {"role": "user", "content": "Where is order 7341?"},
            }
        ],
        is_partial=False,
        fresh=True,
    )

    hits: list[SearchEntry]
    is_partial: bool = Field(
        description="True if not all matching messages were examined, or large ones are left out."
    )
    fresh: bool = FRESH


class SessionUsage(Answer):
    """The effect of the token counts that a provider reported."""

    state: Literal["calm", "compacted", "escalated"]
    reported_tokens: Count = Field(description="Tokens of the last reported call.")


class SessionCooldown(Answer):
    """The time for which the summary model is not called, because it failed."""

    failures: int = Field(ge=1, description="Failed attempts in a row.")
    until: Time
    reason: str | None


class SessionName(Answer):
    """A session of an agent."""

    session_id: SessionField
    messages_total: Count
    tokens_total: Count
    last_event_at: Time | None


class SessionAnswer(SessionName, ReadAnswer):
    """The counts of a session."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        model="gpt-4.1",
        preset=None,
        mode=None,
        messages_total=160,
        messages_live=42,
        messages_pending=0,
        messages_covered=118,
        tokens_total=21_400,
        tokens_live=5_230,
        factor=1.04,
        summary_version=3,
        summary_versions=3,
        compactions=3,
        usage={"state": "calm", "reported_tokens": 5_512},
        cooldown=None,
        audit={"rows": 12, "hash": "5e7b" * 16},
        last_event_at="2026-11-20T10:00:00.000Z",
    )

    agent_id: AgentField
    model: str | None = Field(description="The model of the newest event that named one.")
    preset: str | None = Field(description="The preset that the session chose; null if none.")
    mode: PolicyMode | None = Field(description="The mode that the session chose; null if none.")
    messages_live: Count
    messages_pending: Count
    messages_covered: Count
    tokens_live: Count = Field(
        description="Tokens of live messages without system messages, which are never evicted."
    )
    factor: float = Field(description="How many times more tokens the model counts than Turnfold.")
    summary_version: int | None = Field(description="The version in force; null if none is.")
    summary_versions: Count = Field(description="Versions that were written.")
    compactions: Count
    usage: SessionUsage
    cooldown: SessionCooldown | None = Field(description="Null if the model may be called.")
    audit: AuditHead
    policy: PolicyAnswer | None = Field(None, description="The policy in force, if asked for.")


class SessionListAnswer(ReadAnswer):
    """A page of sessions, newest event first."""

    model_config = example(sessions=[], next_after=None)

    sessions: list[SessionAnswer]
    next_after: str | None = Field(
        description="The `after` of the next page; null on the last page."
    )


class SessionNamesAnswer(ReadAnswer):
    """A page of the sessions of an agent, in the order of their ids."""

    model_config = example(
        agent_id="support",
        sessions=[
            {
                "session_id": "user-42",
                "messages_total": 160,
                "tokens_total": 18_400,
                "last_event_at": "2026-11-20T10:00:00.000Z",
            }
        ],
        next_after=None,
    )

    agent_id: AgentField
    sessions: list[SessionName]
    next_after: str | None = Field(
        description="The `after` of the next page; null on the last page."
    )


class EventsKnownAnswer(ReadAnswer):
    """Which of the events are stored, and which were erased."""

    model_config = example(agent_id="support", known=["e1"], erased=[])

    agent_id: AgentField
    known: list[str] = Field(description="The stored ones of the event ids, in the order asked.")
    erased: list[str] = Field(
        description="The ones that were erased, which are not stored again under these ids."
    )


class AuditEntry(OfSession):
    """One row of the audit chain."""

    audit_id: int = Field(ge=1, description="Counts the rows of the session from 1.")
    ordinal: int = Field(ge=1, description="The same as `audit_id`; part of the hash.")
    at: Time
    at_ms: Count = Field(description="The same time in milliseconds since 1970; part of the hash.")
    compaction_id: CompactionField | None
    phase: str = Field(description="What happened, such as `evicted` or `summary_done`.")
    reason: str | None
    tokens_before: Count | None
    tokens_after: Count | None
    details: str = Field(description="More facts as JSON text, exactly as they were hashed.")
    prev_hash: str = Field(description="The hash of the row before; empty for the first row.")
    hash: str = Field(description="SHA-256 of this row and the hash before.")
    actor: str | None = Field(
        description="Who asked: `key:<public key>`, `token:<name>`, `local` or `worker`."
    )


class AuditAnswer(ReadAnswer):
    """Audit rows of a session, oldest first."""

    model_config = example(
        audit=[
            {
                "audit_id": 1,
                "ordinal": 1,
                "at": "2026-11-20T10:00:00.000Z",
                "at_ms": 1_795_168_800_000,
                "agent_id": "support",
                "session_id": "user-42",
                "compaction_id": "17",
                "phase": "evicted",
                "reason": None,
                "tokens_before": 9_120,
                "tokens_after": 4_034,
                "details": '{"trigger":"messages"}',
                "prev_hash": "",
                "hash": "5e7b" * 16,
                "actor": "worker",
            }
        ],
        end={"rows": 1, "hash": "5e7b" * 16},
    )

    audit: list[AuditEntry]
    end: AuditHead = Field(
        description="The end of the whole chain, as the session or its erasure names it."
    )
