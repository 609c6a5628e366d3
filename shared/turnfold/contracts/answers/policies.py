"""Answers about policies, and about what was erased."""

from typing import Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer, OfSession, ReadAnswer
from turnfold.contracts.fields import (
    AgentField,
    Count,
    PolicyMode,
    PolicyValue,
    SessionField,
    example,
)

PolicyOrigin = Literal["session", "agent", "environment", "file", "preset"]


class PolicyNumber(Answer):
    """The value of a policy number, and where it comes from."""

    value: PolicyValue
    origin: PolicyOrigin = Field(alias="from", description="The place that sets the value.")


class PolicyAnswer(ReadAnswer):
    """The policy in force."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        mode="auto",
        mode_from="preset",
        preset="balanced",
        preset_from="preset",
        numbers={"max_live_messages": {"value": 50, "from": "preset"}},
    )

    agent_id: AgentField
    session_id: SessionField | None = Field(None, description="Absent for the policy of an agent.")
    mode: PolicyMode
    mode_from: PolicyOrigin = Field(description="The place that sets the mode.")
    preset: str
    preset_from: PolicyOrigin = Field(description="The place that chooses the preset.")
    numbers: dict[str, PolicyNumber] = Field(description="Every number of the policy, by name.")


class OverridesAnswer(Answer):
    """The overrides in force for a session or an agent."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        mode="manual",
        preset=None,
        overrides={"max_live_messages": 80},
    )

    agent_id: AgentField
    session_id: SessionField | None = Field(None, description="Absent for the policy of an agent.")
    mode: PolicyMode | None
    preset: str | None
    overrides: dict[str, PolicyValue] = Field(description="The overridden numbers, by name.")


class SessionErasedAnswer(OfSession):
    """An erased session."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        sessions=1,
        messages=160,
        policies=0,
        dead_letters=0,
    )

    sessions: Count = Field(description="Erased sessions.")
    messages: Count = Field(description="Erased messages.")
    policies: Count = Field(description="Erased policies: that of the session, if it had one.")
    dead_letters: Count = Field(description="Erased dead letters.")


class AgentErasedAnswer(Answer):
    """An erased agent."""

    model_config = example(
        agent_id="support", sessions=12, messages=1_920, policies=1, dead_letters=0
    )

    agent_id: AgentField
    sessions: Count = Field(description="Erased sessions.")
    messages: Count = Field(description="Erased messages.")
    policies: Count = Field(description="Erased policies, of the agent and of its sessions.")
    dead_letters: Count = Field(description="Erased dead letters.")
