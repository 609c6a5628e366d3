"""The form that an answer names for each message is true, in every form there is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import History, history, recorded
from tests.property.test_anthropic import odd_sessions, wanted
from tests.property.test_window import budgets, enough, placements, policies, sessions
from tests.window_rules import DIGEST_BEGINS, REASONING, sendable_calls, text_of
from turnfold.core.policy.presets import Policy
from turnfold.core.window.forms import STAND_IN
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.rendering.entries import ShownForm, planned_forms
from turnfold.core.window.window import WindowPlan
from turnfold.messages import MessageId, State
from turnfold.operations.query.window_json import shown_entries
from turnfold.ports.query import (
    OriginalMessage,
)

Json = dict[str, Any]


def published(session: History) -> dict[MessageId, OriginalMessage]:
    """The messages of a session as they are stored."""
    return {
        one.message_id: OriginalMessage(
            one.message_id, one.position, State.LIVE, session.bodies[one.position], None
        )
        for one in session.stored.messages
    }


def faults_of(session: History, made: WindowPlan) -> list[str]:
    """The faults in the entries of a window."""
    rendered, originals = session.rendered(made), published(session)
    entries = shown_entries(made, rendered.messages, rendered.message_ids, originals)
    if len(entries) != len(rendered.messages):
        return [f"{len(entries)} entries for {len(rendered.messages)} messages"]
    told = zip(entries, rendered.messages, rendered.message_ids, strict=True)
    return [
        f"{message_id} is called {entry.form} without {entry.without}: {text[:80]}"
        for entry, text, message_id in told
        if not (
            _is_addition(entry, json.loads(text))
            if message_id is None
            else _is_true(entry, text, originals[MessageId(str(message_id))])
        )
    ]


def _is_true(entry: ShownForm, text: str, stored: OriginalMessage) -> bool:
    shown: Json = json.loads(text)
    original: Json = json.loads(stored.body)
    if (entry.form == "whole") != (shown == original):
        return False
    lacks_reasoning = any(key in original and key not in shown for key in REASONING)
    if lacks_reasoning != ("reasoning" in entry.without):
        return False
    has_other_calls = entry.form not in ("whole", "line") and (
        shown.get("tool_calls", []) != sendable_calls(original)
    )
    if has_other_calls != ("arguments" in entry.without):
        return False
    content, before = shown["content"], original.get("content")
    is_true = {
        "whole": True,
        "line": str(content).endswith(f"original: {stored.message_id}]"),
        "mended": text_of(original) in text_of(shown),
        "cut": bool(entry.without) or content != before,
    }
    return is_true.get(entry.form, False)


def _is_addition(entry: ShownForm, shown: Json) -> bool:
    content = str(shown["content"])
    is_true = {
        "stand_in": shown["role"] == "tool" and content == STAND_IN,
        "digest": content.startswith(DIGEST_BEGINS),
        "summary": content.startswith("# Conversation Summary"),
    }
    return is_true.get(entry.form, False)


@pytest.mark.proves("G1", "W3")
@given(sessions() | odd_sessions, budgets, placements, st.booleans(), policies)
def test_a_message_is_called_whole_if_and_only_if_it_is_the_original_to_the_letter(
    session: History, budget: int, placement: Placement, is_emergency: bool, policy: Policy
) -> None:
    _, made = enough(session, wanted(budget, placement, is_emergency=is_emergency), policy)

    assert faults_of(session, made) == []


@pytest.mark.proves("G1", "W3")
@pytest.mark.parametrize("budget", [2_500, 6_000, 12_000, 120_000])
def test_the_forms_of_recorded_conversations_are_true(budget: int) -> None:
    for name, messages in recorded(2):
        session = history(messages[:80])
        for is_emergency in (False, True):
            asked = wanted(budget, Placement.USER, is_emergency=is_emergency)
            _, made = enough(session, asked, Policy())
            assert faults_of(session, made) == [], name


@pytest.mark.proves("G1", "W1")
@given(sessions() | odd_sessions, budgets, placements)
def test_in_the_format_of_anthropic_a_merged_message_has_the_form_of_its_most_shortened_part(
    session: History, budget: int, placement: Placement
) -> None:
    _, made = enough(session, wanted(budget, placement), Policy())
    shape = to_anthropic(made, session.rendered(made))
    planned = planned_forms(made)
    originals = published(session)

    shown = shown_entries(made, shape.messages, shape.message_ids, originals)

    for entry, text, ids in zip(shown, shape.messages, shape.message_ids, strict=True):
        stored = [one for one in (ids if isinstance(ids, tuple) else (ids,)) if one]
        parts = {planned[one].form for one in stored if one in planned}
        is_same = len(stored) == 1 and json.loads(text) == json.loads(originals[stored[0]].body)
        assert (entry.form == "whole") == is_same
        assert (entry.form in ("whole", "line", "cut", "mended")) == bool(stored)
        assert (entry.form == "line") == ("line" in parts)
        assert (entry.form == "cut") == ("cut" in parts and "line" not in parts)
