"""The budget of a window: where it comes from, and who gets which part of it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.histories import (
    Said,
    assistant,
    counted,
    history,
    instruction,
    parsed,
    plan,
    system,
    tool,
    user,
    words,
)
from tests.shaped import shaped_session
from tests.unit.window.windows import (
    BALANCED,
    FIRST_FIT,
    asked_of,
    forms,
    shown,
    tokens_of,
    tool_rounds,
)
from turnfold.core.policy.presets import Policy
from turnfold.core.window.framing import Placement, SummaryForm
from turnfold.core.window.window import WindowPlan, WindowRequest, budget_of
from turnfold.errors import CannotFit
from turnfold.messages import Shape


@pytest.mark.proves("L6", "C13")
@pytest.mark.parametrize("is_emergency", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1.25, 0.7])
def test_a_refusal_names_what_exactly_suffices(factor: float, *, is_emergency: bool) -> None:
    session = history(
        [
            system(words(500)),
            user(words(3_000)),
            assistant(words(900), "a", "b"),
            tool("a", words(4_000)),
        ],
        factor=factor,
    )

    with pytest.raises(CannotFit) as refused:
        asked_of(session, 100, is_emergency=is_emergency)

    needed = refused.value.needed_tokens
    assert needed is not None
    assert asked_of(session, needed, is_emergency=is_emergency).tokens <= needed
    with pytest.raises(CannotFit):
        asked_of(session, needed - 1, is_emergency=is_emergency)


@pytest.mark.proves("L6", "C13", "C76")
@pytest.mark.parametrize("is_emergency", [False, True])
@pytest.mark.parametrize("before", [[], [{"type": "message", "role": "assistant", "content": "I"}]])
def test_reasoning_of_an_unseen_call_that_does_not_fit_is_refused_and_never_left_out(
    before: list[dict[str, Any]], *, is_emergency: bool
) -> None:
    """It begins its response, or is joined to its text."""
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": words(2_000)}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": words(900)}
    stored = shaped_session(
        [
            ("responses", [user(words(90)), {**reasoning, "encrypted_content": "a"}, call]),
            ("responses", [user("go"), *before, reasoning, call, result]),
        ]
    ).stored

    def window(budget: int) -> WindowPlan:
        asked = WindowRequest(
            budget_tokens=budget, is_emergency=is_emergency, shape=Shape.RESPONSES
        )
        return plan(stored, asked, BALANCED)

    with pytest.raises(CannotFit) as refused:
        window(100)

    needed = refused.value.needed_tokens
    assert needed is not None
    with pytest.raises(CannotFit, match=f" {needed} tokens"):
        window(needed - 1)
    windows = {budget: window(budget) for budget in range(needed, 2 * needed, 50)}
    assert all(made.tokens <= budget for budget, made in windows.items())
    assert all("e2#0" in shown(made) for made in windows.values())


@pytest.mark.proves("L6", "C13")
@pytest.mark.parametrize("preview_tokens", [0, 1, 20])
def test_a_refusal_names_what_suffices_also_where_previews_are_short(preview_tokens: int) -> None:
    calls = [
        assistant(None, f"c{number}", arguments=json.dumps({"text": words(tokens)}))["tool_calls"]
        for number, tokens in enumerate((900, 700, 120, 120))
    ]
    session = history([user("go"), assistant() | {"tool_calls": [one for (one,) in calls]}])
    policy = replace(BALANCED, preview_tokens=preview_tokens)

    with pytest.raises(CannotFit) as refused:
        asked_of(session, 30, policy)

    needed = refused.value.needed_tokens
    assert needed is not None
    assert asked_of(session, needed, policy).tokens <= needed


@pytest.mark.proves("L6")
def test_arguments_of_which_nothing_is_shown_are_counted_as_the_empty_object_they_become() -> None:
    ids = [f"c{number}" for number in range(40)]
    call = assistant(None, *ids, name="f", arguments=json.dumps({"text": words(600)}))
    results = [tool(one, "ok") for one in ids]
    session = history([user("go"), call, *results, assistant("done"), user("next")])

    made = asked_of(session, 900, replace(FIRST_FIT, preview_tokens=0, keep_tool_blocks=50))

    assert forms(made)["e2#0"].arguments is not None
    assert counted(parsed(session.rendered(made))) <= made.tokens


@pytest.mark.proves("T5")
def test_budgets_and_window_tokens_are_counts_times_the_factor() -> None:
    session = history([user(words(100))], factor=1.25)

    made = asked_of(session, 10_000)

    assert made.tokens == -(-tokens_of(session) * 5 // 4)


@pytest.mark.proves("W1", "L6")
def test_under_a_tiny_budget_the_summary_is_cut_before_the_request() -> None:
    session = history(
        [user("what now, and why?")], summary=words(400), ledger=["path a.py"], covered=9
    )

    whole, cut, none = asked_of(session, 2_000), asked_of(session, 200), asked_of(session, 15)

    assert session.rendered(whole).summary_text == session.summary_text
    assert cut.summary is not None
    assert cut.summary.characters is not None
    assert session.rendered(cut).summary_text.endswith("\n…")
    assert session.summary_text.startswith(session.rendered(cut).summary_text[:-1])
    assert none.summary is None
    assert shown(none) == ["e1#0"]


@pytest.mark.proves("L6", "C13")
@pytest.mark.parametrize("said", [[system(words(300))], []])
def test_a_summary_without_messages_is_cut_to_the_budget(said: list[dict[str, Any]]) -> None:
    session = history(said, summary=words(120), ledger=["path a.py"], covered=9)
    smallest = 0
    if said:
        with pytest.raises(CannotFit) as refused:
            asked_of(session, 2)
        smallest = refused.value.needed_tokens or 0
    whole = asked_of(session, 5_000).tokens

    made = {budget: asked_of(session, budget) for budget in range(smallest, whole, 3)}
    assert [budget for budget, one in made.items() if one.tokens > budget] == []
    # It takes what the rest leaves, and is not left out.
    assert sum(one.summary is not None for one in made.values()) > 10


@pytest.mark.proves("S11", "C75")
def test_a_budget_too_small_for_the_ledger_shows_its_first_entries() -> None:
    ledger = [f"line def step_{number}(order_id)" for number in range(40)]
    session = history([user("what now?")], summary=words(20), ledger=ledger, covered=9)
    shown_entries = [
        session.rendered(asked_of(session, budget)).ledger for budget in (100, 200, 400, 2_000)
    ]

    numbers = [len(entries) for entries in shown_entries]
    assert numbers == sorted(numbers)
    assert 0 < numbers[1] < numbers[2] < numbers[3] == 40
    assert all(list(entries) == ledger[: len(entries)] for entries in shown_entries)
    assert all(asked_of(session, budget).tokens <= budget for budget in range(60, 400, 7))


@pytest.mark.parametrize(("budget", "results", "is_whole"), [(2_000, 12, False), (8_000, 60, True)])
def test_a_summary_that_results_left_no_room_for_is_shown_again(
    budget: int, results: int, is_whole: bool
) -> None:
    ids = [f"c{number}" for number in range(results)]
    said = [user("go"), assistant(None, *ids), *[tool(name, words(900)) for name in ids]]
    later = [assistant("done"), user(words(200)), assistant(words(200)), user("and now?")]
    session = history([*said, *later], summary=words(900), ledger=["path a.py"], covered=9)

    squeezed = asked_of(session.until(len(said)), budget)
    afterwards = asked_of(session, budget)

    assert squeezed.summary is None
    assert afterwards.summary is not None
    assert (afterwards.summary == SummaryForm(afterwards.summary.tokens)) is is_whole
    assert afterwards.summary.tokens > budget // 20


@pytest.mark.proves("W1", "C75")
def test_in_a_small_budget_summary_recall_and_the_newest_messages_each_have_a_share() -> None:
    session = history(
        [said for _ in range(12) for said in (user(words(100)), assistant(words(100)))]
        + [user("what now, and why?")],
        summary=words(2_000),
        ledger=[f"path src/module_{number}/handler.py" for number in range(120)],
        covered=90,
    )

    roomy, tight, recalling, with_lines = (
        plan(session.stored, WindowRequest(budget_tokens=tokens, recall_share=share), BALANCED)
        for tokens, share in ((8_000, 0.0), (2_000, 0.0), (2_000, 0.2), (8_000, 0.5))
    )

    assert roomy.summary
    assert with_lines.summary
    assert roomy.summary.tokens > 3_000
    assert 0.2 * 8_000 < with_lines.summary.tokens <= 0.25 * 8_000
    for made in (tight, recalling):
        assert made.summary
        assert 0.3 * 2_000 < made.summary.tokens <= 0.4 * 2_000
    assert shown(tight)[-3:] == shown(recalling)[-3:] == ["e23#0", "e24#0", "e25#0"]
    # The rest is left to the block of recalled messages.
    assert recalling.tokens <= 0.6 * 2_000


@pytest.mark.proves("W1", "L7", "C75")
@pytest.mark.parametrize(("rounds", "size", "newest"), [(7, 20, 3), (20, 20, 3), (3, 40, 2)])
def test_beside_the_digest_of_an_eviction_a_larger_budget_shows_no_fewer_messages(
    rounds: int, size: int, newest: int
) -> None:
    old = [Said(one, is_pending=True) for one in (user(words(60)), assistant(words(60)))] * 6
    live = [user(words(size)), assistant(words(size))] * rounds
    session = history([*old, *live, instruction("Be brief.")])
    pending = (replace(session.stored.pending[0], digest_tokens=300),)
    session = replace(session, stored=replace(session.stored, pending=pending))

    windows = [asked_of(session, budget, FIRST_FIT) for budget in range(300, 3_001, 10)]

    numbers = [len(made.entries) for made in windows]
    assert numbers == sorted(numbers)
    everything = shown(windows[-1])
    assert all(shown(made)[-newest:] == everything[-newest:] for made in windows)


@pytest.mark.proves("W2", "T1", "C14")
@pytest.mark.parametrize(
    ("window", "more", "expected"),
    [
        (128_000, {}, 115_712),
        (64_000, {}, 51_712),
        (200_000, {}, 187_712),
        (
            128_000,
            {"system_tokens": 3_000, "tools_tokens": 2_000, "max_output_tokens": 16_384},
            102_520,
        ),
        (8_192, {}, 4_096),
        (1_000, {}, 1_000),
        (0, {}, 4_096),
    ],
)
def test_a_budget_is_what_the_model_leaves(
    window: int, more: dict[str, float], expected: int
) -> None:
    assert budget_of(max_tokens=None, model_window=window, policy=BALANCED, **more) == expected  # type: ignore[arg-type] # a table of keywords


@pytest.mark.proves("W2", "C14")
@pytest.mark.parametrize(
    ("window", "more", "expected"),
    [
        (100_000, {"system_tokens": 1_000}, 82_000),
        (
            100_000,
            {"system_tokens": 1_000, "tools_tokens": 500, "max_output_tokens": 64_000},
            81_500,
        ),
        (5_000, {}, 4_096),
        (4_000, {}, 3_400),
        (0, {}, 4_096),
    ],
)
def test_a_reserve_leaves_its_share_of_the_window_free(
    window: int, more: dict[str, int], expected: int
) -> None:
    reserving = Policy(reserve_ratio=0.15)

    assert budget_of(max_tokens=None, model_window=window, policy=reserving, **more) == expected


@pytest.mark.proves("W2", "L6")
@pytest.mark.parametrize("tokens", [40, 900, 4_000, 30_000])
@pytest.mark.parametrize("window", [16_000, 64_000, 128_000])
def test_twenty_tool_rounds_of_any_size_stay_within_85_percent_of_the_window(
    tokens: int, window: int
) -> None:
    reserving = Policy(reserve_ratio=0.15)
    session = history([Said(user("look at everything")), *tool_rounds(20, tokens)])

    made = asked_of(
        session, budget_of(max_tokens=None, model_window=window, policy=reserving), reserving
    )

    assert made.tokens <= 0.85 * window


@pytest.mark.proves("W2", "C14")
def test_an_explicit_budget_is_taken_as_it_is() -> None:
    assert (
        budget_of(
            max_tokens=7,
            model_window=128_000,
            policy=BALANCED,
            system_tokens=5_000,
            tools_tokens=5_000,
        )
        == 7
    )


@pytest.mark.parametrize("placement", list(Placement))
def test_the_summary_counts_wherever_it_stands(placement: Placement) -> None:
    session = history([system("s"), user("hi")], summary=words(100), ledger=["id 7"], covered=3)

    made = plan(session.stored, WindowRequest(budget_tokens=5_000, placement=placement), BALANCED)

    assert made.tokens > tokens_of(session) + 90


@pytest.mark.proves("E8", "W2")
@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(100_000, 6_000), (4_000, 4_000), (None, 6_000)]
)
def test_a_ceiling_limits_every_budget(max_tokens: int | None, expected: int) -> None:
    policy = replace(BALANCED, max_context_tokens=6_000)

    assert budget_of(max_tokens=max_tokens, model_window=128_000, policy=policy) == expected
