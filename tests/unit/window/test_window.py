"""What a window shows, and what it gives up first."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.histories import (
    History,
    Said,
    assistant,
    history,
    parsed,
    system,
    text,
    tool,
    user,
    words,
)
from turnfold.core.policy.presets import PRESETS, Mode, Policy
from turnfold.core.window import leveling
from turnfold.core.window.framing import Placement
from turnfold.core.window.leveling import level_sizes
from turnfold.core.window.truncation import STAND_IN, Form
from turnfold.core.window.views import ShownMessage
from turnfold.core.window.window import (
    WindowPlan,
    WindowRequest,
    budget_of,
    build_window,
    plan,
)
from turnfold.errors import CannotFit
from turnfold.messages import Priority

BALANCED = Policy()
FIRST_FIT = Policy(low_water_ratio=1.0)


def asked_of(
    session: History, budget: int, policy: Policy = BALANCED, *, is_emergency: bool = False
) -> WindowPlan:
    return plan(
        session.stored, WindowRequest(budget_tokens=budget, is_emergency=is_emergency), policy
    )


def asked_without_digest(session: History, budget: int, policy: Policy = FIRST_FIT) -> WindowPlan:
    """A window in which nothing tells of what is left out, so that it is small."""
    return plan(session.stored, WindowRequest(budget_tokens=budget, tells_omitted=False), policy)


def tokens_of(session: History) -> int:
    return sum(message.tokens for message in session.stored.messages)


def forms(made: WindowPlan) -> dict[str, Form]:
    return {
        entry.message.message_id: entry.form
        for entry in made.entries
        if isinstance(entry, ShownMessage)
    }


def shown(made: WindowPlan) -> list[str]:
    return list(forms(made))


def tool_rounds(count: int, tokens: int, *, priority: Priority = Priority.NORMAL) -> list[Said]:
    return [
        said
        for number in range(count)
        for said in (
            Said(assistant(None, f"c{number}"), priority=priority),
            Said(tool(f"c{number}", words(tokens)), priority=priority),
        )
    ]


@pytest.mark.proves("L7", "L11")
def test_a_history_that_fits_is_shown_whole() -> None:
    session = history(
        [
            system("be brief"),
            user("look"),
            assistant(None, "a"),
            tool("a", "found"),
            assistant("done"),
        ]
    )

    made = asked_of(session, 10_000)

    assert made.tokens == tokens_of(session)
    assert session.rendered(made).messages == tuple(session.bodies.values())
    assert made.account.shown == 5


@pytest.mark.proves("L5", "E4", "C6")
def test_an_open_call_is_closed_by_one_fixed_text() -> None:
    session = history(
        [
            user("look"),
            assistant(None, "a", "b"),
            tool("b", "found"),
            user("and?"),
            assistant("well"),
        ]
    )

    made = asked_of(session, 10_000)

    rendered = session.rendered(made)
    assert [message["role"] for message in parsed(rendered)] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    assert parsed(rendered)[2] == {"role": "tool", "tool_call_id": "a", "content": STAND_IN}
    assert rendered.message_ids[2] is None
    assert made.account.synthesised == 1


@pytest.mark.proves("L5", "I1")
def test_results_stand_in_call_order_before_a_user_who_came_between() -> None:
    session = history(
        [
            user("look"),
            assistant(None, "a", "b"),
            tool("b", "second"),
            user("hurry"),
            tool("a", "first"),
        ]
    )

    rendered = session.rendered(asked_of(session, 10_000))

    assert [text(message) for message in parsed(rendered)] == [
        "look",
        "",
        "first",
        "second",
        "hurry",
    ]


@pytest.mark.proves("L7", "C10")
def test_what_nobody_called_for_is_folded_and_an_empty_window_is_no_error() -> None:
    orphans = history([tool("x", "1"), tool("y", "2")])
    with_user = history([user("hello"), tool("x", "1")])

    assert asked_of(orphans, 10).entries == ()
    assert asked_of(orphans, 10).account.folded == 2
    assert shown(asked_of(with_user, 100)) == ["e1#0"]


@pytest.mark.proves("L5")
def test_a_result_never_crosses_from_what_is_live_to_what_is_pending() -> None:
    session = history(
        [
            Said(user("go"), is_pending=True),
            Said(assistant(None, "a"), is_pending=True),
            tool("a", "late"),
            user("so?"),
        ]
    )

    made = asked_of(session, 10_000)

    assert [text(message) for message in parsed(session.rendered(made))] == [
        "go",
        "",
        STAND_IN,
        "so?",
    ]
    assert (made.account.folded, made.account.pending_shown) == (1, 2)


@pytest.mark.proves("L7", "W4")
def test_the_newest_system_message_is_first_and_older_ones_are_folded() -> None:
    session = history([system("old"), user("hi"), system("new"), assistant("hello")])

    made = asked_of(session, 1_000)

    assert [text(message) for message in parsed(session.rendered(made))] == ["new", "hi", "hello"]
    assert made.account.folded == 1


@pytest.mark.proves("W4", "C3", "E3")
def test_a_long_tool_loop_shrinks_around_its_request() -> None:
    request = words(300)
    session = history([user(request), *tool_rounds(200, 150)])

    made = asked_of(session, 4_000)

    messages = parsed(session.rendered(made))
    assert made.tokens <= 4_000
    assert text(messages[1]) == request
    assert text(messages[-1]) == words(150)
    assert made.account.folded > 250


@pytest.mark.proves("C4")
def test_without_any_user_the_newest_block_stays() -> None:
    session = history([assistant(words(200)) for _ in range(30)])

    made = asked_of(session, 1_000)

    assert shown(made)[-1] == "e30#0"
    assert made.tokens <= 1_000


@pytest.mark.proves("L6", "C12")
def test_a_newest_message_beyond_the_budget_is_trimmed_and_flagged() -> None:
    session = history([user("old"), user("PASTE " + words(10_000))])

    made = asked_of(session, 4_000)

    messages = parsed(session.rendered(made))
    assert text(messages[-1]).startswith("PASTE line 0:\nword number 1")
    assert "tokens left out" in text(messages[-1])
    assert made.account.trimmed == 1
    assert 3_300 <= made.tokens <= 4_000


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


@pytest.mark.proves("W3", "C18")
def test_placeholders_stop_at_the_first_point_that_fits() -> None:
    session = history([user("go"), *tool_rounds(40, 100), assistant("done"), user("next")])

    made = asked_of(session, tokens_of(session) - 1, FIRST_FIT)

    lines = [form.line for form in forms(made).values() if form.line]
    assert len(lines) == 1
    assert (
        forms(made)["e3#0"].line == "[look_up: 104 tokens left out, original: e3#0]"
        or "e3#0" in lines[0]
    )
    assert made.account.folded == 0


@pytest.mark.proves("W3")
def test_a_placeholder_names_tool_size_file_and_original() -> None:
    call = assistant(None, "a", name="read_file", arguments='{"path":"src/app.py"}')
    session = history(
        [user(words(2_000)), call, tool("a", words(300)), assistant("ok"), user("next")]
    )

    tokens = session.stored.messages[2].content_tokens
    made = asked_of(
        session,
        tokens_of(session) - tokens + 50,
        replace(FIRST_FIT, hard_ratio=0.1, soft_ratio=1.0),
    )

    content = text(parsed(session.rendered(made))[2])
    assert content == f"[read_file src/app.py: {tokens} tokens left out, original: e3#0]"


@pytest.mark.proves("W3")
def test_a_result_of_which_little_has_to_go_keeps_its_beginning_and_its_end() -> None:
    session = history(
        [user("go"), assistant(None, "a"), tool("a", words(300)), assistant("ok"), user("next")]
    )

    made = asked_of(
        session, tokens_of(session) - 60, replace(FIRST_FIT, hard_ratio=0.1, soft_ratio=1.0)
    )

    cut = forms(made)["e3#0"].cut
    assert cut is not None
    assert made.tokens >= 0.7 * tokens_of(session)


@pytest.mark.proves("W3")
def test_arguments_that_were_shortened_before_are_shortened_on_only_as_far_as_it_takes() -> None:
    written = json.dumps({"path": "a.py", "text": words(2_000)})
    session = history(
        [
            user("go"),
            assistant(None, "a", arguments=written),
            tool("a", "done"),
            assistant(words(60)),
            user("next"),
        ]
    )

    made = asked_of(session, 1_600, FIRST_FIT)

    assert made.tokens >= 0.95 * 1_600


@pytest.mark.proves("W3", "C20")
def test_low_goes_before_normal_before_high() -> None:
    session = history(
        [
            Said(user(words(100)), priority=Priority.HIGH),
            Said(user(words(100)), priority=Priority.NORMAL),
            Said(user(words(100)), priority=Priority.LOW),
            user(words(300)),
        ]
    )
    sizes = [message.tokens for message in session.stored.messages]

    made = asked_without_digest(session, sum(sizes) - 1)
    smaller = asked_without_digest(session, sizes[0] + sizes[3])

    assert shown(made) == ["e1#0", "e2#0", "e4#0"]
    assert shown(smaller) == ["e1#0", "e4#0"]


@pytest.mark.proves("W11")
def test_a_request_leaves_together_with_its_answers() -> None:
    session = history(
        [
            user("first"),
            assistant(words(100)),
            Said(user("second"), priority=Priority.LOW),
            Said(assistant(words(100)), priority=Priority.HIGH),
            user(words(300)),
        ]
    )
    sizes = [message.tokens for message in session.stored.messages]

    made = asked_without_digest(session, sum(sizes[2:]))
    smaller = asked_without_digest(session, sizes[4] + 20)

    assert shown(made) == ["e3#0", "e4#0", "e5#0"]
    assert shown(smaller) == ["e5#0"]


@pytest.mark.proves("W11", "L6")
def test_unseen_results_keep_the_request_that_a_newer_one_interrupted() -> None:
    session = history(
        [
            user("look it up"),
            assistant(words(100)),
            assistant(None, "a"),
            tool("a", words(100)),
            user("and be quick"),
        ]
    )
    sizes = [message.tokens for message in session.stored.messages]

    made = asked_without_digest(session, sum(sizes) - sizes[1])
    smaller = asked_without_digest(session, sum(sizes) - sizes[1] - 30)

    assert shown(made) == shown(smaller) == ["e1#0", "e3#0", "e4#0", "e5#0"]
    assert (made.account.trimmed, smaller.account.trimmed) == (0, 1)


@pytest.mark.proves("W4", "W12", "F2")
def test_no_message_that_must_stay_is_cut_to_make_room_for_recall() -> None:
    request = words(300)
    session = history(
        [system(words(200)), user(request), *[one for at in range(9) for one in talk(at)]],
        summary=words(400),
        covered=40,
    )
    asked = WindowRequest(budget_tokens=1_000, recall_share=0.5, placement=Placement.USER)

    made = plan(session.stored, asked, BALANCED)

    assert request in [text(message) for message in parsed(session.rendered(made))]
    assert made.tokens <= 650


def talk(number: int) -> list[Said]:
    """An answer without calls, after which a program reports: the turn goes on."""
    return [Said(assistant(f"{number} {words(12)}")), Said(user(words(30)), is_meta=True)]


# --- the views of the presets


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


# --- single steps


@pytest.mark.proves("W3", "C17")
def test_a_very_long_result_keeps_its_first_20_and_last_10_lines() -> None:
    lines = [f"line {number} of the log\n" for number in range(10_000)]
    session = history(
        [
            user("run"),
            assistant(None, "a"),
            tool("a", "".join(lines)),
            assistant("ran"),
            user(words(900)),
        ]
    )

    made = asked_of(session, tokens_of(session) - 1, replace(BALANCED, low_water_ratio=0.1))

    content = text(parsed(session.rendered(made))[2])
    left_out = session.stored.messages[2].content_tokens
    cut = forms(made)["e3#0"].cut
    assert cut is not None
    assert cut.omitted_tokens < left_out
    assert content == "".join(
        [
            *lines[:20],
            f"\n[... 9970 lines, {cut.omitted_tokens} tokens left out ...]\n",
            *lines[-10:],
        ]
    )


@pytest.mark.proves("W3", "C17")
def test_a_long_paste_is_cut_to_its_cap_and_0_switches_that_off() -> None:
    paste = words(60_000)[:50_000]
    policy = replace(BALANCED, low_water_ratio=0.8)
    session = history([user(paste), assistant("read"), user(words(200))])
    budget = tokens_of(session) - 10

    made = asked_of(session, budget, policy)
    unlimited = asked_of(session, budget, replace(policy, user_max_chars=0))

    assert 29_000 <= len(text(parsed(session.rendered(made))[0])) <= 30_000
    assert len(text(parsed(session.rendered(unlimited))[0])) > 30_000


@pytest.mark.proves("C15", "W3")
@pytest.mark.parametrize("cap", [200, 1_000, 5_000, 15_000])
def test_a_trimmed_result_is_within_its_cap_with_its_mark(cap: int) -> None:
    long_lines = "\n".join("🙂é漢x" * 1_000 for _ in range(10))
    session = history(
        [
            user("run"),
            assistant(None, "a"),
            tool("a", long_lines + "END"),
            assistant("ran"),
            user(words(90)),
        ]
    )

    made = asked_of(
        session,
        tokens_of(session) - 1,
        replace(
            BALANCED,
            low_water_ratio=0.5,
            tool_result_max_chars=cap,
            result_max_tokens=0,
            hard_ratio=1.0,
        ),
    )

    content = text(parsed(session.rendered(made))[2])
    assert len(content) <= cap
    assert "left out" in content


@pytest.mark.proves("C21")
def test_a_result_trimmed_by_its_producer_is_not_trimmed_again() -> None:
    session = history(
        [
            user(words(2_000)),
            assistant(None, "a"),
            Said(tool("a", words(1_500)), is_truncated=True),
            assistant(words(900)),
            user("next"),
        ]
    )

    made = asked_of(
        session,
        tokens_of(session) - 1,
        replace(FIRST_FIT, tool_result_max_chars=1_000, hard_ratio=1.0),
    )

    assert forms(made).get("e3#0", Form()).cut is None


@pytest.mark.proves("W3", "C19")
@pytest.mark.parametrize(("tokens", "is_previewed"), [(599, False), (601, True)])
def test_results_above_600_tokens_become_previews(tokens: int, *, is_previewed: bool) -> None:
    session = history(
        [
            user("go"),
            assistant(None, "a"),
            tool("a", _exactly(tokens)),
            assistant("ok"),
            user(words(800)),
        ]
    )

    made = asked_of(
        session, tokens_of(session) - 1, replace(FIRST_FIT, hard_ratio=1.0, soft_ratio=1.0)
    )

    form = forms(made).get("e3#0")
    assert (form is not None and form.cut is not None and form.cut.is_preview) is is_previewed
    if is_previewed:
        content = text(parsed(session.rendered(made))[2])
        assert f"[TRUNCATED original~{tokens} tokens]" in content


@pytest.mark.proves("W3", "C19")
@pytest.mark.parametrize(("tokens", "is_previewed"), [(499, False), (501, True)])
def test_arguments_above_500_tokens_become_previews(tokens: int, *, is_previewed: bool) -> None:
    arguments = '{"text":"' + _exactly(tokens, around='{"text":""}') + '"}'
    session = history(
        [
            user("hello"),
            user("go"),
            assistant(None, "a", arguments=arguments),
            tool("a", "ok"),
            assistant("ok"),
            user(words(90)),
        ]
    )

    made = asked_without_digest(session, tokens_of(session) - 1)

    form = forms(made).get("e3#0")
    assert (form is not None and form.arguments is not None) is is_previewed


def _exactly(tokens: int, *, around: str = "") -> str:
    """A text of exactly so many tokens (with what stands around it)."""
    from tests.histories import counter

    written = (
        "\\n".join(f"word {number} is here" for number in range(tokens))
        if around
        else words(tokens * 2)
    )
    left, right = (
        (around[: len(around) // 2 + 4], around[len(around) // 2 + 4 :]) if around else ("", "")
    )
    for end in range(len(written), 0, -1):
        if counter()(left + written[:end] + right) == tokens:
            return written[:end]
    raise AssertionError("no such text")


@pytest.mark.proves("W3", "C24")
def test_long_reasoning_of_earlier_rounds_goes_first_and_that_of_the_latest_stays() -> None:
    session = history(
        [
            user("one"),
            assistant("first", reasoning_content=words(2_000)),
            user("two"),
            assistant(None, "a", reasoning_content=words(2_000)),
            tool("a", "found"),
        ]
    )

    made = asked_of(session, tokens_of(session) - 1)

    assert forms(made)["e2#0"].without_reasoning
    assert forms(made)["e4#0"].is_whole
    assert "reasoning_content" not in parsed(session.rendered(made))[1]


@pytest.mark.proves("W4")
def test_results_the_model_has_not_seen_outlive_older_ones() -> None:
    session = history(
        [user("go"), *tool_rounds(10, 400), assistant(None, "last"), tool("last", words(900))]
    )

    made = asked_of(session, 4_000)

    assert forms(made)["e23#0"].is_whole
    assert any(not form.is_whole for form in forms(made).values()) or made.account.folded


@pytest.mark.proves("W1", "W3", "L7")
def test_what_is_pending_is_shown_while_it_fits_and_then_by_its_digest() -> None:
    old = [
        Said(user(words(100)), is_pending=True),
        Said(assistant(words(100)), is_pending=True),
    ] * 5
    session = history([*old, user("now"), assistant("yes")])

    roomy, tight = asked_of(session, 10_000), asked_of(session, 700)
    tiny = asked_of(session, 60)

    assert roomy.account.pending_shown == 10
    assert tight.account.pending_digested > 0
    assert "user asked for the first things" in session.rendered(tight).messages[0]
    assert tiny.digest.compaction_ids == ()
    assert tiny.account.pending_digested == 10


@pytest.mark.proves("W3", "W7", "C61")
def test_an_emergency_takes_three_fifths_of_the_budget_and_no_old_result_whole() -> None:
    session = history([user("go"), *tool_rounds(60, 300), assistant("done"), user("next")])

    made = asked_of(session, 10_000, is_emergency=True)

    assert made.tokens <= 6_000
    tools = [entry for entry in made.entries if isinstance(entry, ShownMessage) and entry.call]
    assert tools
    assert all(entry.form.line for entry in tools)


@pytest.mark.proves("E6", "C57")
def test_mode_off_trims_nothing_and_refuses_what_does_not_fit() -> None:
    session = history(
        [system("be brief"), user(words(900)), assistant(None, "a"), tool("a", words(9_000))]
    )
    off = Policy(mode=Mode.OFF)

    with pytest.raises(CannotFit) as refused:
        asked_of(session, 2, off)

    assert refused.value.needed_tokens == tokens_of(session)
    assert session.rendered(asked_of(session, tokens_of(session), off)).messages == tuple(
        session.bodies.values()
    )


@pytest.mark.proves("W2")
def test_max_messages_keeps_whole_blocks_from_the_newest_on() -> None:
    session = history(
        [
            system("s"),
            user("one"),
            *tool_rounds(10, 5),
            user("two"),
            assistant(None, "x", "y"),
            tool("x", "1"),
        ]
    )

    made = plan(session.stored, WindowRequest(max_messages=8), FIRST_FIT)

    rendered = session.rendered(made)
    assert len(rendered.messages) <= 9
    assert [message_id for message_id in rendered.message_ids if message_id][-3:] == [
        "e23#0",
        "e24#0",
        "e25#0",
    ]
    with pytest.raises(CannotFit) as refused:
        plan(session.stored, WindowRequest(max_messages=3), FIRST_FIT)
    assert refused.value.needed_messages == 4


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
    assert not cut.summary.is_whole
    assert session.summary_text.startswith(session.rendered(cut).summary_text)
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

    for budget in range(smallest, whole + 1, 3):
        assert asked_of(session, budget).tokens <= budget


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


@pytest.mark.proves("W1", "C75")
def test_in_a_small_budget_summary_recall_and_the_newest_messages_each_have_a_share() -> None:
    session = history(
        [said for _ in range(12) for said in (user(words(100)), assistant(words(100)))]
        + [user("what now, and why?")],
        summary=words(2_000),
        ledger=[f"path src/module_{number}/handler.py" for number in range(120)],
        covered=90,
    )

    roomy, tight, recalling = (
        plan(session.stored, WindowRequest(budget_tokens=tokens, recall_share=share), BALANCED)
        for tokens, share in ((8_000, 0.0), (2_000, 0.0), (2_000, 0.4))
    )

    assert roomy.summary
    assert roomy.summary.tokens > 3_000
    for made in (tight, recalling):
        assert made.summary
        assert 0.3 * 2_000 < made.summary.tokens <= 0.4 * 2_000
    assert shown(tight)[-3:] == ["e23#0", "e24#0", "e25#0"]
    # The rest is left to the block of recalled messages.
    assert recalling.tokens <= 0.6 * 2_000
    assert shown(recalling)[-2:] == ["e23#0", "e25#0"]


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


@pytest.mark.proves("L6", "O10")
@pytest.mark.parametrize(("max_messages", "shown", "digests"), [(3, 2, 1), (2, 1, 1), (1, 1, 0)])
def test_an_emergency_leaves_out_digests_only_if_there_are_too_many_messages_with_them(
    max_messages: int, shown: int, digests: int
) -> None:
    old = [Said(user("old " * 300), is_pending=True), Said(assistant("x " * 300), is_pending=True)]
    session = history([*old, user("now"), assistant("fine")])

    made = plan(
        session.stored,
        WindowRequest(budget_tokens=500, is_emergency=True, max_messages=max_messages),
        BALANCED,
    )

    assert (made.account.shown, len(made.digest.compaction_ids)) == (shown, digests)


@pytest.mark.proves("W2", "O10")
@pytest.mark.parametrize(
    ("sizes", "excess", "height"),
    [
        ([10], 4, 6),
        ([10, 6], 4, 6),
        ([10, 6], 5, 5),
        ([6, 10], 6, 5),
        ([6, 10], 7, 4),
        ([10, 6, 2], 12, 2),
        ([10, 6, 2], 13, 1),
        ([10, 6, 2], 18, 0),
        ([10, 6, 2], 19, 0),
        ([5, 5, 5], 4, 3),
        ([10, 6], 0, 10),
        ([], 3, 0),
    ],
)
def test_the_longest_texts_are_leveled_to_the_greatest_height_that_frees_enough(
    sizes: list[int], excess: int, height: int
) -> None:
    assert level_sizes(sizes, excess) == height


@pytest.mark.proves("X2", "X4")
def test_the_odd_name_of_a_tool_costs_a_window_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    levelled, rounds = level_sizes, 0

    def counted(sizes: Sequence[int], excess: int) -> int:
        nonlocal rounds
        rounds += 1
        return levelled(sizes, excess)

    monkeypatch.setattr(leveling, "level_sizes", counted)
    session = history(
        [
            user("x"),
            assistant(None, "c", name="[{(<" * 2_000, arguments='{"p": "' + words(500) + '"}'),
        ]
    )

    for share in (0.3, 0.6, 0.97):
        with pytest.raises(CannotFit):
            asked_of(session, int(share * tokens_of(session)))

    assert rounds <= 20


@pytest.mark.proves("E8", "W2")
@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(100_000, 6_000), (4_000, 4_000), (None, 6_000)]
)
def test_a_ceiling_limits_every_budget(max_tokens: int | None, expected: int) -> None:
    policy = replace(BALANCED, max_context_tokens=6_000)

    assert budget_of(max_tokens=max_tokens, model_window=128_000, policy=policy) == expected


@pytest.mark.proves("W3", "L11")
def test_a_trimmed_window_is_continued_also_after_it_was_asked_for_again() -> None:
    """Only the messages that were added since are read: what was trimmed is not trimmed again."""
    session = history([user("go"), *tool_rounds(30, 200), user("so?"), user("and?")])
    asked = WindowRequest(budget_tokens=2_000)
    before = session.until(len(session.stored.messages) - 1)

    made = build_window(before.stored, asked, BALANCED)
    again = build_window(before.stored, asked, BALANCED, made)
    later = build_window(session.stored, asked, BALANCED, again)

    assert again is made
    assert later is made
    assert made.total <= 2_000 < tokens_of(session)
