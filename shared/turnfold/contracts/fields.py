"""Fields that several wire models share, and the example of a model."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

AgentField = Annotated[str, Field(description="The id of the agent.")]
SessionField = Annotated[str, Field(description="The id of the session.")]
MessageField = Annotated[str, Field(description="A message id: `<event_id>#<index>`.")]
CompactionField = Annotated[str, Field(description="The id of the compaction.")]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[
    str,
    Field(
        description="A time in UTC, as RFC 3339 with milliseconds.",
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
    ),
]
RoleName = Literal["system", "developer", "user", "assistant", "tool"]
MessageState = Literal["live", "pending", "covered", "retracted"]
SearchedState = Literal["live", "pending", "covered"]
SummaryKind = Literal["llm", "extractive"]
SummaryStyle = Literal["narrative", "structured"]
PolicyMode = Literal["off", "manual", "auto"]
PolicyValue = bool | int | float | str | None
ChatMessage = Annotated[
    dict[str, Any],
    Field(description="A chat message as it was published. Only `role` is validated."),
]


def example(**fields: Any) -> ConfigDict:
    """Return the configuration of a model with an example, which its JSON schema shows."""
    return ConfigDict(json_schema_extra={"examples": [fields]})
