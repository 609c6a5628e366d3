"""Input within every limit whose cost once grew with its square, or worse; some of it never ended, or broke its reader.

Nothing is timed here. Where a cost grows with the square again, pytest ends the test and says where it was; the tests of
smaller costs hold only that the answer is right.
"""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import assistant, history, plan, tool, user, words
from turnfold.core.history.pairing import CallPosition, ResultPosition, match_results
from turnfold.core.policy.presets import Policy, View
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.model_answer import fitted, parse_answer
from turnfold.core.summary.redaction import redact
from turnfold.core.summary.sources import PreviousSummary, Source, SummaryJob
from turnfold.core.text import search
from turnfold.core.text.defuse import defused
from turnfold.core.text.values import values_in
from turnfold.core.text.words import MARKS_ON_A_LETTER, is_cjk, normalize
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.rendering.render import shortened_arguments
from turnfold.core.window.views import ShownMessage
from turnfold.core.window.window import WindowRequest
from turnfold.messages import MESSAGES_PER_EVENT
from turnfold.model_info.tokenizer import load_counter
from turnfold.operations.query.search import question_of


def extracted(*calls: tuple[str, str], **more: Any) -> str:
    job = SummaryJob(
        sources=(Source("e1#0", "assistant", "Booked it.", calls),),
        newest_request="Book it.",
        **more,
    )
    return extract(job, count=load_counter()).text


# --- what models write


@pytest.mark.proves("S3", "X3")
@pytest.mark.parametrize(
    "sentence",
    [
        "这是一段没有句号的很长的记录，用户说明了许多细节，",
        "句点のない長い記録で、利用者は多くのことを述べた、",
        "word" * 20 + ",",
    ],
)
def test_prose_without_an_end_is_cut_to_its_cap(sentence: str) -> None:
    count = load_counter()
    text, sections = parse_answer(sentence * 300, "narrative", max_words=800)

    text, sections = fitted(text, sections, max_tokens=400, count=count)

    assert count(text) <= 400
    assert len(text) > 200
    assert (sentence * 300).startswith(text)
    assert sections["context"].startswith(text)


@pytest.mark.proves("S3")
def test_an_entry_of_an_answer_may_be_nested_as_deep_as_it_likes() -> None:
    shallow = '{"decisions": [{"use": {"the": ["blue", {"one": "now"}]}}]}'
    deep = '{"decisions": [' + '{"a":' * 200 + '"x"' + "}" * 200 + '], "context": "They spoke."}'

    assert parse_answer(shallow, "structured")[1]["decisions"] == ["use: the: blue; one: now"]
    assert parse_answer(deep, "structured")[1] == {
        "decisions": [], "constraints": [], "open_questions": [], "file_changes": [], "context": "They spoke."
    }  # fmt: skip


@pytest.mark.proves("X3")
def test_a_summary_of_blanks_is_defused() -> None:
    assert (
        defused("<" + " " * 2_000_000 + "x < / TURNFOLD-summary>")
        == "<" + " " * 2_000_000 + "x ( / TURNFOLD-summary>"
    )


@pytest.mark.proves("S3")
def test_a_path_without_end_is_a_path() -> None:
    changes = [{"path": "/a" * 100_000 + f"/{number}", "action": "modified"} for number in range(3)]
    before = PreviousSummary("They worked.", {"file_changes": changes}, ())

    assert "They worked." in extracted(previous=before)


@pytest.mark.proves("S3", "X6")
def test_a_path_may_repeat_one_of_its_folders() -> None:
    """No version was ever written of such messages: the ledger failed."""
    said = Source("e1#0", "tool", "found x1y2z3 in x1y2z3/x1y2z3/x1y2z3")

    assert extract(SummaryJob(sources=(said,)), count=load_counter()).ledger == (
        "path x1y2z3/x1y2z3/x1y2z3",
    )


# --- what agents publish


@pytest.mark.proves("F1", "X2")
def test_a_letter_may_carry_any_number_of_marks() -> None:
    text = "cafe" + "\u0345" * 500_000 + "\u0316" * 500_000 + " Ａ猫"

    found = normalize(text)

    assert found.startswith("cafe")
    assert found.endswith(" a猫")
    assert len(found) < len("cafe a猫") + 2 * MARKS_ON_A_LETTER
    assert normalize("ﾞ" * 31 + "e\u0301") == normalize("ﾞ" * 30) + "é"
    assert normalize("─" * 100 + "x") == "─" * 100 + "x"


@pytest.mark.proves("X4")
def test_what_begins_like_a_token_all_the_time_is_none() -> None:
    token = ".".join(
        ["eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiIxMjM0NTY3ODkwIn0", "dozjgNryP4J3jVmNHl0w5N"]
    )

    assert redact("-eyJ" * 1_000_000) == "-eyJ" * 1_000_000
    assert redact(f"one -{token} two {token}.") == "one -[REDACTED:key] two [REDACTED:key]."
    assert (
        redact("eyJhbGciOiJIUzI1NiJ9-sk-abcdefghijklmnopqrst")
        == "eyJhbGciOiJIUzI1NiJ9-[REDACTED:key]"
    )


@pytest.mark.proves("L5", "X2")
def test_thousands_of_call_ids_that_agree_in_what_may_be_sent_stay_apart() -> None:
    ids = [f"{'x' * 64}{number}" for number in range(20_000)]
    session = history([user("go"), assistant(None, *ids), user("and?")])
    made = plan(session.stored, WindowRequest(budget_tokens=10_000_000), Policy())

    told = json.loads(to_anthropic(made, session.rendered(made)).messages[1])

    sent = [block["id"] for block in told["content"]]
    assert len(set(sent)) == len(ids)
    assert max(map(len, sent)) <= 64


@pytest.mark.proves("W1")
def test_arguments_that_are_no_object_become_one_within_their_tokens() -> None:
    count = load_counter()
    session = history(
        [
            user("go"),
            assistant(None, "a", arguments=json.dumps([1, 2] * 300_000)),
            tool("a", "done"),
            user("and?"),
        ]
    )
    made = plan(session.stored, WindowRequest(budget_tokens=10_000_000), Policy())

    (block,) = json.loads(to_anthropic(made, session.rendered(made)).messages[1])["content"]

    assert block["input"]["text"].startswith("[1, 2, 1, 2")
    assert count(json.dumps(block["input"])) <= next(
        message.tokens for message in session.stored.messages if message.calls
    )


@pytest.mark.proves("W3")
def test_thousands_of_calls_of_a_mended_message_are_shortened() -> None:
    made = assistant(
        None, *[f"c{number}" for number in range(8_000)], arguments=json.dumps({"p": words(60)})
    )
    made["tool_calls"].insert(0, {"id": ""})
    session = history([user("go"), made])
    tokens = sum(message.tokens for message in session.stored.messages)

    window = plan(session.stored, WindowRequest(budget_tokens=int(tokens * 1.1)), Policy())

    (called,) = [
        one for one in map(json.loads, session.rendered(window).messages) if one.get("tool_calls")
    ]
    assert len(called["tool_calls"]) == 8_000
    assert any("TRUNCATED" in call["function"]["arguments"] for call in called["tool_calls"])
    assert any(isinstance(entry, ShownMessage) and entry.form.is_mended for entry in window.entries)


@pytest.mark.proves("L3")
def test_a_hundred_thousand_results_wait_for_their_calls() -> None:
    count = 200_000
    results = [ResultPosition(number, bytes([number % 251])) for number in range(count)]
    calls = [CallPosition(count * MESSAGES_PER_EVENT + number, 0) for number in range(count)]

    verdicts = match_results(calls, results)

    answered = [verdicts[result.position].answers for result in results]
    assert all(
        one is not None and two is not None and one.position < two.position
        for one, two in pairwise(answered)
    )


@pytest.mark.proves("S3")
def test_numbers_that_look_like_colours_are_passed_over() -> None:
    text = "[0m" + ("[" + "1" * 18) * 3_000

    assert values_in(f"\x1b[1;31mORDER-7341\x1b[0m {text}")[0].text == "ORDER-7341"


@pytest.mark.proves("S3", "W3")
@pytest.mark.parametrize("deep", [300, 450, 900, 5_000])
def test_arguments_may_nest_in_their_text_what_no_event_may(deep: int) -> None:
    listed = '{"x":' + "[" * deep + "]" * deep + "}"
    boxed = '{"p":' + '{"a":' * deep + '"' + words(400) + '"' + "}" * deep + "}"

    assert "book" in extracted(("book", listed))
    assert "book" in extracted(("book", boxed))
    short = shortened_arguments(boxed, 100, 500)
    assert isinstance(json.loads(short), dict)
    assert len(short) < len(boxed)


# --- what people search for


@pytest.mark.proves("F1")
def test_a_query_of_many_short_words_is_graded_against_a_long_text() -> None:
    question = question_of(" ".join("a" * length for length in range(1, 44)))

    assert question.grade("a" * 1_000_000) is None
    assert question.holds("a" * 1_000_000) == frozenset()


@pytest.mark.proves("F1")
def test_a_query_that_nearly_begins_everywhere_is_looked_for_once() -> None:
    question = question_of("a " * 490 + "b")

    grade, whole = question.grade("b" + " a" * 2_000_000), question.grade("b" + "\n a" * 490 + " b")

    assert grade is not None
    assert whole is not None
    assert grade.tier < search.WHOLE == whole.tier


def holds_slowly(text: str, word: str, *, ends: bool) -> bool:
    """The rule, place by place."""

    def is_letter(character: str) -> bool:
        return character.isalnum() and not is_cjk(character)

    for at in range(len(text)):
        if text.startswith(word, at):
            begins = (
                at == 0
                or not is_letter(text[at - 1])
                or (at > 1 and text[at - 1] in "ntr" and text[at - 2] == "\\")
            )
            end = at + len(word)
            if begins and not (ends and end < len(text) and is_letter(text[end])):
                return True
    return False


@pytest.mark.proves("F1")
@given(
    st.text("ab1_-\\ntr é猫 ", max_size=30),
    st.text("ab1ntré", min_size=1, max_size=3),
    st.booleans(),
)
def test_a_word_stands_where_the_rule_says(text: str, word: str, ends: bool) -> None:
    assert search.TextWords(text).hold(word, ends=ends) == holds_slowly(text, word, ends=ends)


# --- what sessions become


@pytest.mark.proves("W3")
@pytest.mark.parametrize(
    ("asked", "policy"),
    [
        (WindowRequest(budget_tokens=None, max_messages=8), Policy()),
        (WindowRequest(budget_tokens=300), Policy(view=View.NEWEST)),
    ],
    ids=["few messages", "the newest"],
)
def test_a_session_of_which_nothing_ever_left_is_cut_to_its_newest(
    asked: WindowRequest, policy: Policy
) -> None:
    said = [user("go"), *[assistant(f"step {number}") for number in range(100_000)]]

    window = plan(history(said).stored, asked, policy)

    assert any(
        isinstance(entry, ShownMessage)
        and entry.message.index == 0
        and entry.message.event_id == "e100001"
        for entry in window.entries
    )
    assert len(window.entries) < 100
