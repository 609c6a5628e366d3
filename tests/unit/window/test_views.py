"""The views of the presets: which messages they shorten and leave out, in which order."""

from dataclasses import replace

import pytest

from tests.histories import Said, assistant, history, parsed, text, user, words
from tests.unit.window.windows import asked_of, forms, shown, tokens_of, tool_rounds
from turnfold.core.policy.presets import PRESETS
from turnfold.messages import Priority


@pytest.mark.proves("P2")
def test_a_token_budget_cuts_long_messages_first_and_then_keeps_the_newest_whatever_they_say() -> (
    None
):
    session = history(
        [
            user("go"),
            Said(assistant(words(300)), priority=Priority.HIGH),
            Said(assistant(words(3_000)), priority=Priority.LOW),
            Said(assistant(words(300)), priority=Priority.LOW),
            user("next"),
        ]
    )
    policy = replace(PRESETS["token-budget"], low_water_ratio=1.0)
    sizes = [message.tokens for message in session.stored.messages]
    cut = asked_of(session, sum(sizes) - 1, policy)

    assert shown(cut) == ["e1#0", "e2#0", "e3#0", "e4#0", "e5#0"]
    assert len(text(parsed(session.rendered(cut))[2])) <= 4_000
    assert shown(asked_of(session, sizes[0] + sizes[3] + sizes[4], policy)) == [
        "e1#0",
        "e4#0",
        "e5#0",
    ]


@pytest.mark.proves("P3")
def test_a_selective_window_previews_arguments_above_500_and_results_above_600_tokens() -> None:
    session = history(
        [user("go"), *tool_rounds(3, 700), *tool_rounds(3, 300), assistant("done"), user("next")]
    )

    total = tokens_of(session)
    made = asked_of(
        session, total - 1, replace(PRESETS["selective"], low_water_ratio=(total - 1_400) / total)
    )

    cuts = [form.cut for form in forms(made).values() if form.cut]
    assert len(cuts) == 3
    assert all(cut.is_preview and cut.tokens <= 200 and cut.original_tokens > 600 for cut in cuts)
    assert not any(form.line for form in forms(made).values())


@pytest.mark.proves("P4")
def test_an_adaptive_window_has_at_most_fifty_messages_and_trims_by_its_ratios() -> None:
    session = history(
        [
            said
            for number in range(60)
            for said in (user(f"question {number}"), assistant(f"answer {number}"))
        ]
    )
    policy = PRESETS["adaptive"]

    made = asked_of(session, 100_000, policy)

    assert len(session.rendered(made).messages) <= 50
    assert shown(made)[-2:] == ["e119#0", "e120#0"]
    assert (policy.soft_ratio, policy.hard_ratio) == (0.3, 0.5)
    assert (policy.tool_result_max_chars, policy.user_max_chars, policy.assistant_max_chars, policy.reasoning_max_chars) == (
        15_000, 30_000, 20_000, 2_000,
    )  # fmt: skip
    assert asked_of(session, 400, policy, is_emergency=True).tokens <= 240


@pytest.mark.proves("P5")
def test_a_rolling_window_leaves_out_low_before_normal_before_high_and_shortens_nothing_it_can_leave_out() -> (
    None
):
    said = [
        Said(assistant(words(300)), priority=priority)
        for priority in (Priority.HIGH, Priority.LOW, Priority.NORMAL)
    ]
    session = history([user("go"), *said, user("next")])
    policy = replace(PRESETS["rolling"], low_water_ratio=1.0)
    sizes = [message.tokens for message in session.stored.messages]

    assert shown(asked_of(session, sum(sizes) - sizes[2], policy)) == [
        "e1#0",
        "e2#0",
        "e4#0",
        "e5#0",
    ]
    assert shown(asked_of(session, sum(sizes) - sizes[2] - sizes[3], policy)) == [
        "e1#0",
        "e2#0",
        "e5#0",
    ]
