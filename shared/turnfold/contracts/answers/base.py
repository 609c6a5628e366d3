"""The base of all answers, and the parts that several answers share."""

from pydantic import BaseModel, ConfigDict, Field

from turnfold.contracts.fields import AgentField, Count, SessionField


class Answer(BaseModel):
    """An answer or a part of one. Receivers must ignore fields that they do not know.

    An optional field of a model is absent from the answer if it does not apply.
    """

    # Built at first use, because services start often and describe themselves rarely.
    model_config = ConfigDict(frozen=True, defer_build=True)


class ReadAnswer(Answer):
    """An answer to a request that reads."""

    ignored: list[str] | None = Field(
        None, description="Unknown fields of the request, which have no effect; at most ten."
    )


class OfSession(Answer):
    """An answer about one session."""

    agent_id: AgentField
    session_id: SessionField


class SessionTotals(Answer):
    """Sums over sessions."""

    sessions: Count
    messages: Count
    tokens: Count = Field(description="Tokens of all messages.")
    live_messages: Count = Field(description="Live messages without system messages.")
    live_tokens: Count = Field(description="Their tokens.")
    summaries: Count = Field(description="Versions of summaries that were written.")
    sessions_cooling_down: Count = Field(
        description="Sessions whose newest attempt at a summary failed."
    )


class AuditHead(Answer):
    """The end of a session's audit chain; a shortened chain does not match it."""

    rows: Count = Field(description="The number of audit rows of the session.")
    hash: str = Field(description="The hash of the newest row; empty if there is none.")
