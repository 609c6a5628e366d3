"""Whose wish counts."""

import json
import re

import pytest

from turnfold.core.policy.overrides import PolicyOverrides, effective_policy
from turnfold.core.policy.presets import PRESETS, Mode, Policy, adjusted, preset_named

NOTHING = PolicyOverrides()


def policy(
    agent: PolicyOverrides = NOTHING, session: PolicyOverrides = NOTHING, default: str = "balanced"
) -> Policy:
    return effective_policy(agent, session, default_preset=default, policy_of=preset_named)


def numbers(**overrides: object) -> PolicyOverrides:
    return PolicyOverrides(overrides=json.dumps(overrides))


def test_without_wishes_the_installation_decides() -> None:
    assert policy() == PRESETS["balanced"]
    assert policy(default="static-buffer") == PRESETS["static-buffer"]


@pytest.mark.proves("P1", "P2", "P3", "P4", "P5", "P6")
@pytest.mark.parametrize(
    ("name", "required"),
    [
        (
            "static-buffer",
            {"max_live_messages": 50, "keep_messages": 10, "commit": "immediate",
             "style": "narrative", "summary_max_words": 200},
        ),
        (
            "token-budget",
            {"reserve_tokens": 16_384, "keep_tokens": 20_000, "commit": "immediate",
             "style": "structured", "user_max_chars": 4_000, "assistant_max_chars": 4_000,
             "tool_result_max_chars": 4_000, "soft_ratio": 1.0, "view": "newest"},
        ),
        (
            "selective",
            {"trigger_ratio": 0.85, "keep_rounds": 12, "max_live_tool_blocks": 5,
             "commit": "on_summary", "arguments_max_tokens": 500, "result_max_tokens": 600,
             "preview_tokens": 200, "view": "previews"},
        ),
        (
            "adaptive",
            {"trigger_ratio": 0.0, "max_live_messages": 0, "reserve_tokens": 0,
             "every_rounds": 0, "keep_rounds": 1, "uses_model": False, "follow_budget": False,
             "soft_ratio": 0.3, "hard_ratio": 0.5, "max_messages": 50, "image_tokens": 300},
        ),
        (
            "rolling",
            {"every_rounds": 10, "keep_messages": 10, "commit": "immediate",
             "style": "structured", "rebuild_every_versions": 5, "view": "priority"},
        ),
        (
            "balanced",
            {"trigger_ratio": 0.6, "max_live_messages": 250, "keep_messages": 10,
             "commit": "immediate", "style": "structured", "rebuild_every_versions": 10,
             "view": "full"},
        ),
    ],
)  # fmt: skip
def test_a_preset_has_the_numbers_that_its_name_promises(
    name: str, required: dict[str, object]
) -> None:
    assert {number: getattr(PRESETS[name], number) for number in required} == required


@pytest.mark.proves("E6")
def test_a_session_stands_above_its_agent_and_both_above_the_installation() -> None:
    found = policy(numbers(keep_messages=3, keep_tokens=7), numbers(keep_messages=5))

    assert (found.keep_messages, found.keep_tokens, found.max_live_messages) == (5, 7, 250)


@pytest.mark.proves("E6")
def test_a_preset_is_chosen_first_and_numbers_are_set_upon_it() -> None:
    found = policy(
        PolicyOverrides(preset="balanced", overrides='{"keep_messages": 3}'),
        PolicyOverrides(preset="static-buffer"),
    )

    assert found.keep_messages == 3
    assert found.style == PRESETS["static-buffer"].style


@pytest.mark.proves("E6")
@pytest.mark.parametrize(
    ("agent", "session", "mode"),
    [
        ("off", None, "off"),
        ("off", "auto", "auto"),
        (None, "manual", "manual"),
        (None, None, "auto"),
    ],
)
def test_the_mode_of_the_session_counts_before_its_agents(
    agent: str | None, session: str | None, mode: str
) -> None:
    assert policy(PolicyOverrides(mode=agent), PolicyOverrides(mode=session)).mode is Mode(mode)


@pytest.mark.parametrize(
    "wishes",
    [
        numbers(keep_mesages=1),
        numbers(keep_messages=-1),
        numbers(keep_messages="many"),
        numbers(trigger_ratio=2),
        PolicyOverrides(preset="none"),
    ],
)
def test_what_no_policy_can_be_is_refused(wishes: PolicyOverrides) -> None:
    with pytest.raises(ValueError, match=r"keep_mes|trigger_ratio|none"):
        policy(session=wishes)


@pytest.mark.proves("T1")
def test_a_context_window_of_zero_is_a_wish_and_null_is_none() -> None:
    assert policy(numbers(context_window=0)).context_window == 0
    assert policy(numbers(context_window=5), numbers(context_window=None)).context_window is None


def test_wishes_add_up_and_null_takes_one_back() -> None:
    first = NOTHING.changed(
        preset="balanced", mode=None, overrides={"keep_messages": 3, "keep_tokens": 7}
    )
    then = first.changed(
        preset=None, mode="manual", overrides={"keep_tokens": None, "keep_rounds": 1}
    )

    assert (then.preset, then.mode, then.numbers()) == (
        "balanced",
        "manual",
        {"keep_messages": 3, "keep_rounds": 1},
    )


def test_when_all_overrides_are_taken_back_none_are_left() -> None:
    assert (
        numbers(keep_messages=3).changed(preset=None, mode=None, overrides={"keep_messages": None})
        == NOTHING
    )


@pytest.mark.proves("T2")
def test_what_media_cost_is_for_the_installation_to_say() -> None:
    for agent, session in (
        (numbers(image_tokens=85), NOTHING),
        (NOTHING, numbers(image_tokens=85)),
    ):
        with pytest.raises(ValueError, match="TURNFOLD_POLICY__IMAGE_TOKENS"):
            policy(agent, session)


@pytest.mark.proves("E6")
@pytest.mark.parametrize(
    ("word", "meant"),
    [("true", True), ("YES", True), ("1", True), ("false", False), ("No", False), ("0", False)],
)
def test_a_switch_is_set_by_a_word_as_the_environment_has_it(word: str, *, meant: bool) -> None:
    assert adjusted(Policy(), {"uses_model": word}).uses_model is meant


@pytest.mark.proves("E6")
@pytest.mark.parametrize("value", ["maybe", 0.5, None])
def test_a_value_that_a_number_cannot_take_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"uses_model cannot be {value!r}")):
        adjusted(Policy(), {"uses_model": value})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("keep_messages", "a whole number"),
        ("max_context_tokens", "a whole number"),
        ("soft_ratio", "a number"),
        ("follow_budget", "true or false"),
        ("style", "one of narrative, structured"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_the_kind_that_is_meant(
    name: str, wanted: str
) -> None:
    with pytest.raises(ValueError, match=f"^{name} cannot be 'x', but {wanted}"):
        adjusted(PRESETS["balanced"], {name: "x"})


def test_an_unknown_number_is_refused_with_the_name_that_is_close_or_the_list() -> None:
    with pytest.raises(ValueError, match="no 'keep_message'; did you mean 'keep_messages'"):
        adjusted(Policy(), {"keep_message": 4})
    with pytest.raises(ValueError, match="no 'zz'; `turnfold policy show` lists all"):
        adjusted(Policy(), {"zz": 4})
