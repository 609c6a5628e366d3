"""What a window shows, and what it gives up first."""

from collections.abc import Sequence

import pytest

from tests.histories import (
    Json,
    Said,
    assistant,
    history,
    parsed,
    plan,
    system,
    text,
    tool,
    user,
    words,
)
from tests.unit.window.windows import (
    BALANCED,
    FIRST_FIT,
    asked_of,
    asked_without_digest,
    forms,
    shown,
    talk,
    tokens_of,
    tool_rounds,
)
from turnfold.core.policy.presets import Mode, Policy
from turnfold.core.window import leveling
from turnfold.core.window.forms import STAND_IN
from turnfold.core.window.framing import Placement
from turnfold.core.window.leveling import level_sizes
from turnfold.core.window.views import BlockView, RoundView, ShownMessage
from turnfold.core.window.window import WindowRequest, build_window
from turnfold.errors import CannotFit
from turnfold.messages import Priority


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
    assert made.tokens <= 660


@pytest.mark.proves("W11", "F2")
@pytest.mark.parametrize(
    ("instructions", "answer", "is_whole"), [(1_300, 60, True), (1_000, 500, False)]
)
def test_room_for_recall_never_costs_the_newest_answer(
    instructions: int, answer: int, *, is_whole: bool
) -> None:
    session = history(
        [
            system(words(instructions)),
            *[one for at in range(9) for one in talk(at)],
            user("So?"),
            assistant(words(answer)),
        ],
        summary="They spoke.",
        covered=40,
    )
    asked = WindowRequest(budget_tokens=2_000, recall_share=0.5)

    made = plan(session.stored, asked, BALANCED)

    assert made.account.folded
    assert forms(made)[shown(made)[-1]].is_whole is is_whole
    assert shown(made)[-2:] == ["e20#0", "e21#0"]


@pytest.mark.proves("W4", "W9")
def test_an_older_message_is_counted_before_the_newest_request_is_cut() -> None:
    request = words(300)
    session = history([user(words(50)), user(request)])

    made = asked_of(session, tokens_of(session) - 1)

    messages = parsed(session.rendered(made))
    assert text(messages[-1]) == request
    assert made.account.folded_told == 1
    assert made.tokens < tokens_of(session)


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


@pytest.mark.proves("W11")
@pytest.mark.parametrize("budget", [400, 700, 1_000, 1_300, 1_600])
def test_no_request_whose_answer_is_digested_stands_unanswered(budget: int) -> None:
    old = [
        said
        for _ in range(8)
        for said in (
            Said(user(words(10)), is_pending=True),
            Said(assistant(words(200)), is_pending=True),
        )
    ]
    session = history([*old, user("now")])

    found = shown(asked_of(session, budget))

    for number in range(1, len(old), 2):
        assert (f"e{number}#0" in found) is (f"e{number + 1}#0" in found)


@pytest.mark.proves("L11")
@pytest.mark.parametrize("shows_pending", [True, False])
def test_evicted_messages_that_outlived_a_trim_stay_until_the_next(shows_pending: bool) -> None:
    """They were protected: a request whose call was interrupted, or the newest answer of all."""
    policy = Policy(shows_pending=shows_pending)
    interrupted: list[Said | Json] = [
        Said(user("look"), is_pending=True),
        Said(assistant(words(600)), is_pending=True),
        Said(user("again"), is_pending=True),
        Said(assistant(None, "a"), is_pending=True),
        Said(tool("a", words(200)), is_pending=True),
        user("stop"),
        assistant("stopped"),
    ]
    answers: list[Said | Json] = [Said(assistant(words(100)), is_pending=True)] * 6
    for said, kept in ((interrupted, "e4#0"), (answers, "e6#0")):
        before, after = history(said), history([*said, user("next")])
        old, new = asked_of(before, 500, policy), asked_of(after, 500, policy)

        assert kept in shown(old)
        assert old.account.pending_digested > 0
        assert after.rendered(new).messages[:-1] == before.rendered(old).messages


@pytest.mark.proves("W11")
def test_the_request_of_an_interrupted_turn_leaves_with_its_last_tool_block() -> None:
    session = history(
        [
            user("first"),
            *tool_rounds(3, 300),
            user("second"),
            *tool_rounds(6, 300),
            assistant("done"),
        ]
    )
    policy = Policy(keep_tool_blocks=2, low_water_ratio=1.0)

    found = [shown(asked_of(session, budget, policy)) for budget in range(100, 700, 25)]

    assert any("e1#0" in names for names in found)
    assert any("e1#0" not in names and "e9#0" in names for names in found)
    for names in found:
        assert ("e1#0" in names) is bool({"e2#0", "e4#0", "e6#0"} & {*names})


@pytest.mark.proves("X6")
def test_a_tool_block_leaves_without_a_look_at_all_of_its_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a turn of many calls costs their square when the next request needs its room."""
    looks: list[RoundView] = []

    def shown_of(one: RoundView) -> list[BlockView]:
        looks.append(one)
        return [block for block in one.blocks if block.is_shown]

    monkeypatch.setattr(RoundView, "shown", property(shown_of))
    session = history([user("first"), *tool_rounds(200, 5), user(words(9_000))])

    made = asked_of(session, tokens_of(session) - 3_000, Policy(low_water_ratio=1.0))

    assert made.account.shown < 300
    assert len(looks) < 10


@pytest.mark.proves("W3", "W7", "C61")
def test_an_emergency_takes_three_fifths_of_the_budget_and_no_old_result_whole() -> None:
    rounds = tool_rounds(60, 300)
    session = history([user("go"), *rounds, assistant("done"), user("next")])
    long = history([user("go"), *rounds, assistant(words(900)), user(words(900))])

    made = asked_of(session, 10_000, is_emergency=True)

    assert 800 < asked_of(long, 1_500, is_emergency=True).tokens <= 900
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


@pytest.mark.proves("E6", "C57")
def test_mode_off_names_every_need_at_once() -> None:
    session = history([user("one"), assistant("two"), user("three"), assistant("four")])
    off = Policy(mode=Mode.OFF)

    with pytest.raises(CannotFit) as refused:
        plan(session.stored, WindowRequest(budget_tokens=2, max_messages=2), off)

    needs = refused.value
    assert (needs.needed_tokens, needs.needed_messages) == (tokens_of(session), 4)
    made = plan(
        session.stored, WindowRequest(budget_tokens=tokens_of(session), max_messages=4), off
    )
    assert len(session.rendered(made).messages) == 4


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
