"""Requests without a message of their own, and records about tools, keep their place in a window."""

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolAvailabilityDeltaPart,
    ToolReturnPart,
    UserPromptPart,
)

from tests.hosts.conftest import RunningSystem
from tests.hosts.pydantic_ai.models import Script, faults, looks, says, texts
from turnfold.integrations.pydantic_ai import TurnfoldCapability

LONG = "word " * 1_000
RECORD = ToolAvailabilityDeltaPart(tools_added=["look"])


class Requested(AbstractCapability[Any]):  # type: ignore[misc]  # without types here
    """Keeps the messages of the requests, before Pydantic AI takes the records out for the model."""

    def __init__(self) -> None:
        self.calls: list[list[ModelMessage]] = []

    async def before_model_request(self, _: Any, request_context: Any) -> Any:
        self.calls.append(list(request_context.messages))
        return request_context


def agent_of(script: Script, requested: Requested, url: str) -> Any:
    capability = TurnfoldCapability("pydantic", client=url, max_tokens=3_000, patience_seconds=60)
    return Agent(script.model, instructions="Be brief.", capabilities=[capability, requested])


@pytest.mark.proves("G5")
async def test_a_run_without_a_prompt_goes_on_after_an_answer(
    system: RunningSystem, session_id: str
) -> None:
    script, requested = Script([says("Fine."), says("Checked.")]), Requested()
    agent = agent_of(script, requested, system.nats_url)
    first = await agent.run("Well?", conversation_id=session_id)

    second = await agent.run(message_history=first.all_messages(), conversation_id=session_id)

    assert second.output == "Checked."
    assert requested.calls[-1] == second.all_messages()[:-1]
    assert requested.calls[-1][-1].parts == []


@pytest.mark.proves("G5")
async def test_records_stay_in_front_of_the_answers_that_they_preceded(
    system: RunningSystem, session_id: str
) -> None:
    script, requested = Script([says("Fine.")]), Requested()
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("Look."), RECORD]),
        ModelResponse(parts=looks("a", "hall")),
        ModelRequest(parts=[ToolReturnPart("look", "nothing", "a-hall")]),
        ModelResponse(parts=[TextPart("Nothing.")]),
    ]

    result = await agent_of(script, requested, system.nats_url).run(
        "And so?", message_history=history, conversation_id=session_id
    )

    assert requested.calls == [result.all_messages()[:-1]]


@pytest.mark.proves("G5")
@pytest.mark.parametrize("words", ["", LONG], ids=["whole", "trimmed"])
async def test_a_last_request_may_hold_records_alone(
    system: RunningSystem, session_id: str, words: str
) -> None:
    script, requested = Script([says("Fine.")]), Requested()
    history: list[ModelMessage] = []
    for number in range(8):
        history.append(ModelRequest(parts=[UserPromptPart(f"{number} {words}"), RECORD]))
        history.append(ModelResponse(parts=[TextPart(f"Answer {number}.")]))
    history.append(ModelRequest(parts=[RECORD]))

    result = await agent_of(script, requested, system.nats_url).run(
        message_history=history, conversation_id=session_id
    )

    [asked] = requested.calls
    assert result.output == "Fine."
    assert faults(asked) == []
    assert all(isinstance(message, (ModelRequest, ModelResponse)) for message in asked)
    assert asked[-1].parts == [RECORD]
    assert [part for message in asked for part in message.parts].count(RECORD) == 9
    assert (f"0 {words}" in texts(asked)) == (words == "")
