"""Trimming within messages: results, arguments, pasted text and reasoning."""

import json
from dataclasses import replace

import pytest

from tests.histories import (
    Json,
    Said,
    assistant,
    counter,
    history,
    parsed,
    plan,
    text,
    tool,
    user,
    words,
)
from tests.shaped import shaped_session
from tests.unit.window.windows import (
    BALANCED,
    FIRST_FIT,
    asked_of,
    asked_without_digest,
    forms,
    shown,
    tokens_of,
    tool_rounds,
)
from turnfold.core.policy.presets import PRESETS
from turnfold.core.window.forms import PREVIEW_MARK_TOKENS, Form
from turnfold.core.window.leveling import level_sizes
from turnfold.core.window.window import WindowRequest
from turnfold.messages import Shape


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


@pytest.mark.proves("C21")
@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("share", [0.95, 0.9, 0.8, 0.7, 0.6])
def test_results_trimmed_by_their_producer_become_lines_or_are_left_out(
    preset: str, share: float
) -> None:
    session = history(
        [
            user("read both files"),
            assistant(None, "a", name="read_file", arguments='{"path":"a.py"}'),
            Said(tool("a", words(3_000)), is_truncated=True),
            assistant(None, "b", name="read_file", arguments='{"path":"b.py"}'),
            Said(tool("b", words(3_000)), is_truncated=True),
            assistant("done"),
            user("next?"),
        ]
    )

    made = asked_of(session, int(share * tokens_of(session)), PRESETS[preset])

    assert [at for at, form in forms(made).items() if form.cut is not None] == []


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
        head, _, tail = content.partition(f"[TRUNCATED original~{tokens} tokens]")
        assert counter()(head) == pytest.approx(2 * counter()(tail), rel=0.2)


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


@pytest.mark.proves("W3", "W14")
@pytest.mark.parametrize(
    ("budget", "is_emergency", "shortened"),
    [(1_500, False, ["e4#0"]), (2_500, True, ["e3#0", "e4#0"])],
)
def test_newest_reasoning_that_leaves_no_room_for_anything_else_goes_before_anything_else(
    budget: int, is_emergency: bool, shortened: list[str]
) -> None:
    """It would leave anyway, after every other message, the digest's names and the answer."""
    session = history(
        [
            user("one"),
            assistant(None, "a"),
            tool("a", words(500)),
            assistant("Now b.", "b", reasoning_content=words(2_000)),
            tool("b", "found"),
        ]
    )

    made = asked_of(session, budget, is_emergency=is_emergency)

    assert made.account.folded == 0
    assert [name for name, form in forms(made).items() if not form.is_whole] == shortened
    assert forms(made)["e4#0"].without_reasoning
    assert forms(made)["e4#0"].cut is None


@pytest.mark.proves("W3", "C76")
@pytest.mark.parametrize("budget", [1_500, 2_500])
@pytest.mark.parametrize("more", [[], [user("and now?")]], ids=["within its turn", "after it"])
@pytest.mark.parametrize(("calls", "before"), [(0, []), (1, []), (16, []), (1, [user("stop")])])
def test_a_response_whose_reasoning_leaves_no_room_leaves_before_anything_else(
    budget: int, more: list[Json], calls: int, before: list[Json]
) -> None:
    """The API rejects calls without their reasoning, which no trim can shorten."""
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": words(3_000)}
    item = {"type": "message", "id": "m", "role": "assistant", "content": "Done."}
    call = {"type": "function_call", "name": "deploy", "arguments": "{}"}
    result = {"type": "function_call_output", "output": "done"}
    called = [{**one, "call_id": f"c{at}"} for one in (call, result) for at in range(calls)]
    older = [("chat", [user(words(90)), assistant(words(90))])] * 4
    turn = [user("go"), reasoning, *called, *before, item]
    session = shaped_session([*older, ("responses", [*turn, *more])])
    asked = WindowRequest(budget_tokens=budget, shape=Shape.RESPONSES)

    made = plan(session.stored, asked, BALANCED)

    assert shown(made)[:8] == [f"e{number}#{index}" for number in range(1, 5) for index in (0, 1)]
    assert "e5#1" not in shown(made)


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


@pytest.mark.parametrize("budget", [100, 1_000])
def test_a_request_whose_image_does_not_fit_takes_only_the_tokens_of_its_text(budget: int) -> None:
    said = words(30)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    session = history([user([{"type": "text", "text": said}, image])])

    made = asked_of(session, budget)

    assert made.tokens <= tokens_of(history([user(said)])) + PREVIEW_MARK_TOKENS
    assert parsed(session.rendered(made))[0]["content"].startswith(said)
