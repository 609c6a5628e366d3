"""The laws of the window over thousands of sessions, recorded ones among them; `make prove` makes a million of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests import window_rules as laws
from tests.histories import Said, assistant, counter, history, plan, system, tool, user, words
from tests.window_check import __main__ as program
from tests.window_check.__main__ import proved
from tests.window_check.cuts import Question, Subject, Tally, is_block, steadiness
from tests.window_check.sessions import Sitting, data_directory
from turnfold.core.policy.presets import Policy
from turnfold.core.window.window import WindowRequest

SESSIONS = 96
BUDGET = 11_500
PATCH = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "all of it"}}
SAID = (
    system("be brief"),
    user(words(12_000)),
    assistant(None, "a", "b"),
    tool("b", "2"),
    tool("a", "1"),
    assistant("so"),
    assistant(None, tool_calls=[PATCH]),
    user("and now?"),
)


@pytest.mark.proves(
    "L5", "L6", "L7", "L11", "W4", "W9", "W10", "W11", "C1", "C2", "C4", "C6", "C7", "C9", "C10", "C12", "C13", "C15", "C19", "C22", "C61"
)  # fmt: skip
def test_thousands_of_windows_break_no_law() -> None:
    tally = proved(range(SESSIONS), seed=20, directory=data_directory())

    assert tally.failures == []
    assert tally.cuts >= 30 * SESSIONS
    assert tally.refused > 0
    assert tally.emergencies > 0
    assert tally.steady > 0


@pytest.mark.proves("L11", "F2")
@pytest.mark.parametrize("newest", [user("And now?"), assistant("Done."), tool("b", "2")])
@pytest.mark.parametrize("asked", [{}, {"recall_share": 0.4}, {"max_messages": 9}])
def test_a_window_that_begins_otherwise_one_message_later_is_found_out(
    newest: dict[str, Any], asked: dict[str, Any]
) -> None:
    known = [user("Look."), assistant("so", "a", "b")]
    steps = [known, [*known, newest], [user("Look!"), *known[1:], newest]]
    before, after, other = [
        Subject(Sitting(name="", said=tuple(map(Said, step)), summary="They met."), {})
        for step in steps
    ]
    question = Question(WindowRequest(budget_tokens=4_000, **asked), "balanced")

    faults = [steadiness(before, later, question, Tally()) for later in (after, other)]

    assert any(map(is_block, before.ask(question)[1].messages)) == ("recall_share" in asked)
    assert [[fault[:14] for fault in found] for found in faults] == [[], ["L11: there was"]]


@pytest.mark.parametrize(("goal", "least", "status"), [(0.0, 1, 0), (1.01, 1, 1), (1.01, 10**6, 0)])
def test_a_missed_goal_fails_if_enough_windows_were_measured(
    goal: float, least: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "GOALS", dict.fromkeys(program.GOALS, ("", goal)))
    monkeypatch.setattr(program, "COMPARED_FROM", least)
    monkeypatch.setattr("sys.argv", ["", "--cuts", "320"])

    with pytest.raises(SystemExit) as ended:
        program.main()

    assert ended.value.code == status


def answered() -> tuple[laws.Session, laws.Answer]:
    """A session and a sound window of it, with a trimmed message and an open call."""
    session = history(SAID)
    made = plan(session.stored, WindowRequest(budget_tokens=BUDGET), Policy())
    rendered = session.rendered(made)
    told = laws.Session(
        [laws.Told(f"e{seq}#0", json.dumps(body), body) for seq, body in enumerate(SAID, start=1)]
    )
    account = {name: getattr(made.account, name) for name in made.account.__slots__}
    return told, laws.Answer(rendered.messages, rendered.message_ids, account, made.tokens, BUDGET)


def without(index: int) -> Callable[[laws.Answer], laws.Answer]:
    def change(answer: laws.Answer) -> laws.Answer:
        messages, ids = list(answer.messages), list(answer.message_ids)
        del messages[index], ids[index]
        return replace(answer, messages=messages, message_ids=ids)

    return change


def swapped(one: int, other: int) -> Callable[[laws.Answer], laws.Answer]:
    def change(answer: laws.Answer) -> laws.Answer:
        messages, ids = list(answer.messages), list(answer.message_ids)
        messages[one], messages[other] = messages[other], messages[one]
        ids[one], ids[other] = ids[other], ids[one]
        return replace(answer, messages=messages, message_ids=ids)

    return change


def written(index: int, **keys: Any) -> Callable[[laws.Answer], laws.Answer]:
    def change(answer: laws.Answer) -> laws.Answer:
        messages = list(answer.messages)
        messages[index] = json.dumps(json.loads(messages[index]) | keys)
        return replace(answer, messages=messages)

    return change


def named(index: int, message_id: str | None) -> Callable[[laws.Answer], laws.Answer]:
    def change(answer: laws.Answer) -> laws.Answer:
        ids = list(answer.message_ids)
        ids[index] = message_id
        return replace(answer, message_ids=ids)

    return change


def given(*arguments: str) -> list[dict[str, Any]]:
    """The calls of the third message, with other arguments."""
    return [
        assistant(None, call_id, arguments=text)["tool_calls"][0]
        for call_id, text in zip("ab", arguments, strict=False)
    ]


def accounted(**numbers: int) -> Callable[[laws.Answer], laws.Answer]:
    return lambda answer: replace(answer, account=dict(answer.account) | numbers)


def test_a_sound_window_has_no_fault() -> None:
    told, answer = answered()

    assert laws.faults(told, answer, counter()) == []
    assert [json.loads(message)["role"] for message in answer.messages] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "assistant", "tool", "user",
    ]  # fmt: skip
    assert answer.account["trimmed"] == 1


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (without(3), "L5"),
        (without(7), "L5"),
        (without(2), "L5"),
        (without(8), "L5: the newest request"),
        (without(0), "W4"),
        (swapped(3, 4), "L5"),
        (swapped(1, 5), "L3"),
        (swapped(0, 1), "W4"),
        (written(3, content="other"), "C15"),
        (written(1, name="somebody"), "L7"),
        (
            written(1, content=words(12_000)[:200] + "\n[... 3 lines, 9 tokens left out ...]\n"),
            "C15",
        ),
        (written(8, content="something else altogether"), "W4"),
        (written(0, content="be long"), "W4"),
        (accounted(shown=7), "L7"),
        (accounted(trimmed=0), "L7"),
        (accounted(synthesised=0), "L7"),
        (lambda answer: replace(answer, tokens=answer.tokens - 60), "L6"),
        (lambda answer: replace(answer, asked_tokens=answer.tokens - 1), "L6"),
        (lambda answer: replace(answer, asked_messages=7), "W2"),
        (lambda answer: replace(answer, messages=(), message_ids=()), "L5: the window is empty"),
        (written(2, tool_calls=given("{}") * 2), "L5: message 2 holds calls"),
        (named(3, None), "L5: the result of 'a' is None"),
        (named(3, None), "E4: 2 texts"),
        (without(1), "W11"),
        (named(5, "e99#0"), "L7: a message is shown twice, or is none"),
        (named(5, "e2#0"), "L7: a message is shown twice, or is none"),
        (written(5, reasoning="hm"), "W4: the reasoning"),
        (written(1, content=[{"type": "text", "text": "so"}]), "L7: the content"),
        (written(2, tool_calls=given("{}")), "C9"),
        (written(2, tool_calls=given("[1]", "{}")), "C19: the arguments of 'a' became"),
        (written(2, tool_calls=given('{"a', "{}")), "C19: the arguments of 'a' are no JSON"),
        (
            written(6, tool_calls=[PATCH | {"custom": {"name": "patch", "input": "all"}}]),
            "C19: the input",
        ),
    ],
)
def test_a_broken_window_is_found_out(
    change: Callable[[laws.Answer], laws.Answer], law: str
) -> None:
    told, answer = answered()

    found = laws.faults(told, change(answer), counter())

    assert any(fault.startswith(law) for fault in found), found


@pytest.mark.proves("W10")
def test_a_digest_that_lacks_a_call_of_the_running_turn_is_found_out() -> None:
    ids = [f"c{number}" for number in range(40)]
    calls = [assistant(None, one, arguments=json.dumps({"path": f"{one}.py"})) for one in ids]
    results = [tool(one, words(200)) for one in ids]
    said = [user("read"), *[one for pair in zip(calls, results, strict=True) for one in pair]]
    session = history(said)
    made = plan(session.stored, WindowRequest(budget_tokens=2_000), Policy())
    rendered = session.rendered(made)
    told = laws.Session(
        [laws.Told(f"e{seq}#0", json.dumps(body), body) for seq, body in enumerate(said, start=1)]
    )
    account = {name: getattr(made.account, name) for name in made.account.__slots__}
    texts = [rendered.messages, [text.replace("c0.py · ", "") for text in rendered.messages]]

    found = [
        laws.faults(
            told, laws.Answer(shown, rendered.message_ids, account, made.tokens, 2_000), counter()
        )
        for shown in texts
    ]

    assert texts[0] != texts[1]
    assert [[fault[:4] for fault in faults] for faults in found] == [[], ["W10:"]]
