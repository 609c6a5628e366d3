"""System messages in mid-conversation: they keep their place, and are told when they leave."""

import json
from typing import Any

import pytest

from tests.anthropic_faults import anthropic_faults
from tests.histories import (
    assistant,
    counter,
    history,
    instruction,
    parsed,
    plan,
    system,
    tool,
    user,
)
from turnfold.core.eviction.choose import decide_eviction
from turnfold.core.eviction.triggers import Trigger, load_of
from turnfold.core.history.blocks import group
from turnfold.core.policy.presets import Policy
from turnfold.core.shapes.blocks import INSTRUCTION
from turnfold.core.summary.eviction_digest import digest_eviction
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.redaction import readable_sources
from turnfold.core.summary.source_messages import sources_of
from turnfold.core.summary.sources import SummaryJob
from turnfold.core.text.tokens import INSTRUCTION_TOKENS
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.window import WindowRequest

Json = dict[str, Any]
FRENCH = instruction("From now on: French. The project is called Zebrafish.")
SAID = (
    system("Be brief."),
    user("Hello"),
    assistant(None, "c1"),
    FRENCH,
    tool("c1", "7"),
    assistant("Bonjour."),
)


@pytest.mark.proves("G1", "L3", "L5")
@pytest.mark.parametrize("role", ["system", "developer"])
def test_one_that_follows_another_message_of_its_event_keeps_its_place(role: str) -> None:
    later = instruction("From now on: French.", role)
    session = history([system("Be brief."), user("Hello"), later, assistant("Bonjour.")])

    shown = parsed(session.rendered(plan(session.stored, WindowRequest(), Policy())))

    assert shown == [system("Be brief."), user("Hello"), later.body, assistant("Bonjour.")]


@pytest.mark.proves("G1", "W4")
def test_one_that_begins_its_event_replaces_the_pinned_one() -> None:
    session = history([system("Be brief."), user("Hello"), FRENCH, system("Be kind.")])

    grouped = group(session.stored.messages)

    assert grouped.pinned is session.stored.messages[3]
    assert grouped.loose == session.stored.messages[:1]
    assert [block.head for block in grouped.blocks] == [*session.stored.messages[1:3]]


@pytest.mark.proves("G1", "L5")
def test_one_between_a_call_and_its_result_stands_after_both() -> None:
    session = history(SAID)

    shown = parsed(session.rendered(plan(session.stored, WindowRequest(), Policy())))

    assert [message["role"] for message in shown] == [
        "system", "user", "assistant", "tool", "system", "assistant",
    ]  # fmt: skip


@pytest.mark.proves("G1", "W1", "L6")
def test_anthropic_gets_it_in_its_place_as_a_marked_text_of_the_user() -> None:
    session = history(SAID)
    made = plan(session.stored, WindowRequest(), Policy())

    shape = to_anthropic(made, session.rendered(made))
    messages = [json.loads(message) for message in shape.messages]

    assert shape.system == "Be brief."
    assert anthropic_faults(messages) == []
    text = messages[2]["content"][-1]["text"]
    assert text == INSTRUCTION.format(FRENCH.body["content"])
    assert messages[2]["content"][0]["type"] == "tool_result"
    frame = counter()(text) - counter()(FRENCH.body["content"])
    assert frame <= INSTRUCTION_TOKENS <= frame + 6


@pytest.mark.proves("G1", "E1", "S2")
def test_it_counts_for_triggers_leaves_with_its_neighbours_and_is_summarised() -> None:
    session = history([*SAID, *[user(f"Question {number}?") for number in range(8)]])
    messages = session.stored.messages
    policy = Policy(keep_messages=1, keep_tokens=0, keep_at_most_messages=0)

    evicted = decide_eviction(messages, policy, Trigger.REQUEST, now_ms=0)

    assert messages[3] in evicted
    assert load_of(messages).messages == len(messages) - 1
    sources = sources_of([(one, session.bodies[one.position], False) for one in evicted])
    told, _ = digest_eviction(evicted[:5], session.bodies, count=counter())
    text = extract(SummaryJob(sources=readable_sources(sources)), count=counter()).text
    assert "Be brief." not in told + text
    assert "System: From now on: French." in told
    assert "Zebrafish" in text
