"""Answers about the installation: publishing, dead letters, health and descriptions."""

from typing import Any, Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer, ReadAnswer, SessionTotals
from turnfold.contracts.answers.summaries import CampaignAnswer
from turnfold.contracts.fields import AgentField, Count, Time, example


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


class DeadLetterListAnswer(ReadAnswer):
    """A page of dead letters, oldest first; with `before`, newest first."""

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


class DeadLetterAnswer(DeadLetterEntry, ReadAnswer):
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


class AgentEntry(SessionTotals):
    """An agent, with sums over its sessions."""

    agent_id: AgentField
    last_event_at: Time | None


class AgentListAnswer(ReadAnswer):
    """A page of agents, in the order of their ids."""

    model_config = example(
        agents=[
            {
                "agent_id": "support",
                "sessions": 80,
                "messages": 14_200,
                "tokens": 1_420_000,
                "live_messages": 3_100,
                "live_tokens": 310_000,
                "summaries": 210,
                "sessions_cooling_down": 0,
                "last_event_at": "2026-11-20T10:00:00.000Z",
            }
        ],
        next_after=None,
    )

    agents: list[AgentEntry]
    next_after: str | None = Field(description="The `after` of the next page; null on the last.")


class ModelCost(Answer):
    """The tokens and the money that the versions of one model took."""

    model: str | None = Field(description="Null for versions that were written without a model.")
    versions: Count
    prompt_tokens: Count
    completion_tokens: Count
    cost: float = Field(ge=0, description="In US dollars, of the versions whose cost is known.")
    unpriced: Count = Field(description="Versions whose cost is unknown.")


class DayCost(Answer):
    """The tokens that summaries took on one day."""

    day: str = Field(description="A day in UTC.", pattern=r"^\d{4}-\d\d-\d\d$")
    tokens: Count


class AgentCost(Answer):
    """The tokens that the summaries of one agent took."""

    agent_id: AgentField
    tokens: Count


class CostAnswer(ReadAnswer):
    """The cost of summaries: versions since the beginning, and tokens of recent days."""

    model_config = example(
        versions=320,
        prompt_tokens=1_920_000,
        completion_tokens=128_000,
        cost=0.97,
        models=[
            {
                "model": "openai/gpt-4.1-mini",
                "versions": 310,
                "prompt_tokens": 1_920_000,
                "completion_tokens": 128_000,
                "cost": 0.97,
                "unpriced": 0,
            },
            {
                "model": None,
                "versions": 10,
                "prompt_tokens": 0,
                "completion_tokens": 0,
                "cost": 0.0,
                "unpriced": 10,
            },
        ],
        days=[{"day": "2026-11-20", "tokens": 64_200}],
        agents=[{"agent_id": "support", "tokens": 64_200}],
    )

    versions: Count = Field(description="Versions of summaries that are stored.")
    prompt_tokens: Count = Field(description="As providers counted them.")
    completion_tokens: Count
    cost: float = Field(ge=0, description="In US dollars, of the versions whose cost is known.")
    models: list[ModelCost] = Field(description="The most expensive first.")
    days: list[DayCost] = Field(
        description="Each of the days, oldest first; includes failed attempts."
    )
    agents: list[AgentCost] = Field(
        description="The agents that took most on these days, at most 50; includes failed attempts."
    )


class CampaignEntry(CampaignAnswer):
    """A campaign, its progress, and its actor."""

    actor: str | None = Field(description="The actor that started it; null if unknown.")


class CampaignListAnswer(ReadAnswer):
    """The newest campaigns."""

    model_config = example(
        campaigns=[
            {
                "campaign_id": "4711",
                "agent_id": "support",
                "sessions": 120,
                "opened": 14,
                "written": 11,
                "failed": 1,
                "open": 2,
                "requested_at": "2026-11-20T10:00:00.000Z",
                "finished_at": None,
                "actor": "token:operations",
            }
        ]
    )

    campaigns: list[CampaignEntry]
