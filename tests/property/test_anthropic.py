"""Every window in the Anthropic shape: fit to be sent, whole, and for no more than what was counted."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.anthropic_faults import anthropic_faults
from tests.histories import (
    History,
    Said,
    assistant,
    counter,
    history,
    plan,
    recorded,
    system,
    tool,
    user,
)
from tests.property.test_window import (
    answer,
    budgets,
    enough,
    placements,
    policies,
    sessions,
    spoken,
)
from turnfold.core.policy.presets import Policy
from turnfold.core.text.tokens import CALL_TOKENS, IMAGE_TOKENS, MESSAGE_TOKENS
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.anthropic import (
    ASIDE_MESSAGES,
    ASIDE_TOKENS,
    AnthropicWindow,
    to_anthropic,
)
from turnfold.core.window.window import WindowPlan, WindowRequest
from turnfold.errors import CannotFit

Json = dict[str, Any]


def tokens_of(block: Json) -> int:
    """What a block costs by itself."""
    count = counter()
    match block["type"]:
        case "text":
            return count(block["text"])
        case "tool_use":
            written = json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))
            return CALL_TOKENS + count(block["name"]) + (count(written) if block["input"] else 0)
        case "tool_result":
            return sum(map(tokens_of, block.get("content", ())))
        case "thinking" | "redacted_thinking":
            return sum(count(value) for key, value in block.items() if key != "type")
        case _:
            return IMAGE_TOKENS


def counted(shape: AnthropicWindow, messages: Sequence[Json]) -> int:
    """What the whole shape costs."""
    system = MESSAGE_TOKENS + counter()(shape.system) if shape.system else 0
    return system + sum(
        MESSAGE_TOKENS + sum(map(tokens_of, message["content"])) for message in messages
    )


def faults_of(session: History, asked: WindowRequest, made: WindowPlan) -> list[str]:
    """All that is wrong with a window in this shape."""
    rendered = session.rendered(made)
    shape = to_anthropic(made, rendered)
    messages = [json.loads(message) for message in shape.messages]
    found = anthropic_faults(messages)
    if bool(messages) != bool(rendered.messages) or len(messages) != len(shape.message_ids):
        found.append(
            f"{len(messages)} messages with {len(shape.message_ids)} ids of {len(rendered.messages)}"
        )
    ids = [
        one
        for entry in shape.message_ids
        for one in (entry if isinstance(entry, tuple) else [entry])
        if one is not None
    ]
    pinned = [made.pinned.message_id] if made.pinned is not None else []
    if [*pinned, *ids] != [one for one in rendered.message_ids if one is not None]:
        found.append(f"{ids} of {rendered.message_ids}")
    tokens = counted(shape, messages)
    if asked.placement is Placement.SEPARATE:
        tokens += counter()(rendered.summary_text) + sum(map(counter(), rendered.ledger))
    if tokens * session.stored.factor > made.tokens:
        found.append(f"{tokens} tokens x {session.stored.factor} reported as {made.tokens}")
    if asked.budget_tokens is not None and made.tokens > asked.budget_tokens * (
        0.6 if asked.is_emergency else 1
    ):
        found.append(f"{made.tokens} tokens for a budget of {asked.budget_tokens}")
    if asked.max_messages is not None and len(messages) > asked.max_messages:
        found.append(f"{len(messages)} messages of {asked.max_messages}")
    return found


odd_parts = st.sampled_from(
    [
        {"type": "text", "text": " "},
        {"type": "text"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "tool_use", "id": "x", "name": "y", "input": {}},
        {"type": 7},
        None,
        "bare text",
        12,
    ]
)
contents = st.lists(odd_parts, max_size=4) | st.sampled_from(
    ["", " \n", None, 5, {"a": 1}, "said \n"]
)
thoughts = st.sampled_from(
    [
        None,
        [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}],
        [{"type": "thinking", "thinking": "unsigned"}],
        [3],
        "loose",
    ]
)
odd_ids = st.sampled_from(["call_0", "call.1", "call:1", "漢", "x" * 90, "call_0"])
odd_arguments = st.sampled_from(
    [
        "",
        " ",
        "{",
        '{"a": 1}',
        "[1]",
        '"text"',
        '{"n": 1e999}',
        '{"n": NaN}',
        "{" * 400,
        '{"a":' * 300 + "1" + "}" * 300,
    ]
)


@st.composite
def odd(draw: st.DrawFn) -> Said:
    """Messages as no one should write them."""
    kind = draw(st.sampled_from(["user", "assistant", "calls", "tool", "tool"]))
    content = draw(contents)
    if kind == "user":
        return Said(user(content))
    if kind == "tool":
        return Said(tool(draw(odd_ids), content), is_error=draw(st.booleans()))
    ids = draw(st.lists(odd_ids, min_size=1, max_size=3)) if kind == "calls" else []
    body = assistant(
        content,
        *ids,
        arguments=draw(odd_arguments),
        name=draw(st.sampled_from(["look_up", "files.read"])),
    )
    return Said(body | {"thinking_blocks": draw(thoughts)})


odd_sessions = st.lists(odd() | spoken(), max_size=16).map(history)


def wanted(budget: int, placement: Placement, **more: Any) -> WindowRequest:
    return WindowRequest(
        budget_tokens=budget,
        placement=placement,
        aside_tokens=ASIDE_TOKENS,
        aside_messages=ASIDE_MESSAGES,
        **more,
    )


@pytest.mark.proves("W1", "L5", "L6", "C1", "C9", "C12", "C22")
@given(sessions() | odd_sessions, budgets, placements, st.booleans(), policies)
@example(history([]), 1, Placement.SEPARATE, False, Policy())
@example(history([system("alone")]), 100, Placement.SEPARATE, False, Policy())
@example(history([assistant("")]), 100, Placement.SEPARATE, False, Policy())
@example(
    history([user("hi"), assistant("yes"), user("")]), 100, Placement.SEPARATE, False, Policy()
)
def test_every_window_may_be_sent_in_the_anthropic_shape_and_costs_no_more(
    session: History, budget: int, placement: Placement, is_emergency: bool, policy: Policy
) -> None:
    asked, made = enough(session, wanted(budget, placement, is_emergency=is_emergency), policy)

    assert faults_of(session, asked, made) == []


@pytest.mark.proves("W2", "W1")
@given(sessions() | odd_sessions, st.integers(1, 30), placements)
def test_no_window_in_the_anthropic_shape_has_more_messages_than_asked_for(
    session: History, most: int, placement: Placement
) -> None:
    asked = wanted(10_000_000, placement, max_messages=most)

    made = answer(session, asked, Policy())
    if isinstance(made, CannotFit):
        asked = replace(asked, max_messages=made.needed_messages)
        made = plan(session.stored, asked, Policy())

    assert faults_of(session, asked, made) == []


@pytest.mark.proves("W1", "L5", "L6")
@pytest.mark.parametrize("budget", [300, 2_500, 15_000, 120_000, 1_000_000])
def test_recorded_conversations_may_be_sent_in_the_anthropic_shape_at_every_budget(
    budget: int,
) -> None:
    for name, messages in recorded(2):
        session = history(messages[:80])
        for is_emergency in (False, True):
            asked, made = enough(
                session, wanted(budget, Placement.SEPARATE, is_emergency=is_emergency), Policy()
            )
            assert faults_of(session, asked, made) == [], name
