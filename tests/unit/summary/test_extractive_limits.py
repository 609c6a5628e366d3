"""The size of a summary without a model: caps, what leaves first, and what lasts over many versions."""

import json

import pytest

from tests.unit.summary.drafts import assistant, count, drafted, reading, tool, user
from turnfold.core.summary.sources import Draft, Source, head_and_tail, word_count
from turnfold.core.summary.tool_calls.actions import MAX_FILES, commands_of, file_changes
from turnfold.core.summary.tool_calls.arguments import argument_texts
from turnfold.core.text.lines import clip


@pytest.mark.proves("S10")
def test_ten_compactions_of_equal_volume_do_not_grow_the_summary() -> None:
    def batch(number: int) -> list[Source]:
        return [
            source
            for turn in range(number * 12, number * 12 + 12)
            for source in (
                user(
                    f"Please check host-{turn:03}.example.org:8{turn:03} and tell me whether release 1.{turn:03}.0 is on it.",
                    turn,
                ),
                assistant(
                    f"Release 1.{turn:03}.0 is installed on host-{turn:03}, and the check of {turn + 100} files passed.",
                    turn,
                ),
            )
        ]

    drafts: list[Draft] = []
    for number in range(10):
        drafts.append(drafted(*batch(number), previous=drafts[-1] if drafts else None))

    sizes = [count("\n".join([draft.text, *draft.ledger])) for draft in drafts]
    assert max(count(draft.text) for draft in drafts) <= 1_200
    assert max(count(draft.text) for draft in drafts[1:]) <= count(drafts[0].text) * 1.1
    assert max(sizes) <= 1_200 + 2_100
    assert all(draft.text.count("The user asked:") == 1 for draft in drafts)


@pytest.mark.proves("C42")
def test_early_facts_outlive_filler_and_five_compactions() -> None:
    facts = [
        ("My dog is called Biscuit.", "Biscuit"),
        ("I am allergic to peanuts.", "peanuts"),
        ("My sister lives in Porto.", "Porto"),
        ("Our staging database listens on 10.0.0.5:5433.", "10.0.0.5:5433"),
        ("My user id is mia_li_3668.", "mia_li_3668"),
        ("The contract number is KX-20417.", "KX-20417"),
        ("I work as a cartographer.", "cartographer"),
        ("From now on answer in metric units.", "metric"),
    ]
    turns = [
        source
        for number, (fact, _) in enumerate(facts)
        for source in (user(fact, number), assistant("Noted, thank you for telling me.", number))
    ]
    for number in range(48):
        turns.append(
            user(
                f"Can you tell me something about topic {number}, for instance how people thought of it in the past?",
                100 + number,
            )
        )
        turns.append(
            assistant(
                f"Topic {number} has a long history. People in many countries wrote about it, and opinions changed over time.",
                100 + number,
            )
        )

    draft: Draft | None = None
    size = len(turns) // 5 + 1
    for start in range(0, len(turns), size):
        draft = drafted(*turns[start : start + size], previous=draft)

    assert draft is not None
    artifact = "\n".join([draft.text, *draft.ledger])
    assert [answer for _, answer in facts if answer not in artifact] == []


@pytest.mark.proves("S6", "C46")
def test_files_leave_a_full_text_before_its_last_three_lines_do_and_the_newest_file_last() -> None:
    paths = [f"/srv/{name}/{'deep/' * 12}{name}.py" for name in ("one", "two", "six", "ten")]
    said = (
        user("Please implement the retry queue."),
        assistant("The retry queue is implemented and all 45 tests pass."),
        user("Let's go with exponential backoff."),
        tool("nothing to see\n" * 900),
    )
    lines = ["retry queue", "45 tests pass", "exponential backoff"]

    whole = drafted(*said, reading(*paths), max_tokens=2_000).text
    short = drafted(*said, reading(*paths), max_tokens=count(whole) - 60).text

    assert all(line in whole for line in [*lines, *paths])
    assert all(line in short for line in lines)
    assert [path in short for path in paths] == [False, False, False, True]


@pytest.mark.parametrize(
    "sources",
    [
        [user("ok")],
        [tool("42")],
        [assistant("", 1, ("get_weather", "{}"))],
        [user("   "), tool("x")],
        [user("\x00\ud800 hm")],
    ],
)
def test_anything_at_all_gives_some_text(sources: list[Source]) -> None:
    draft = drafted(*sources)

    assert draft.text.strip()
    draft.text.encode()


@pytest.mark.proves("C32")
def test_nothing_gives_no_text() -> None:
    assert drafted(Source("e0#0", "system", "You are an agent.")).text == ""


def test_summary_is_smaller_than_what_it_stands_for() -> None:
    sources = [
        user(
            f"Please look at file number {number}. I think it should say something else about the weather.",
            number,
        )
        for number in range(30)
    ]

    draft = drafted(*sources)

    assert (
        count(draft.text) + sum(map(count, draft.ledger))
        < sum(count(source.text) for source in sources) * 0.7
    )


@pytest.mark.parametrize("max_tokens", [20, 60, 200])
@pytest.mark.proves("S4")
def test_token_cap_holds(max_tokens: int) -> None:
    sources = [
        user(f"Please implement part {number} of the plan and never break build {number}.", number)
        for number in range(40)
    ]

    assert count(drafted(*sources, max_tokens=max_tokens).text) <= max_tokens


def test_narrative_style_keeps_to_its_words() -> None:
    sources = [
        user(f"Please implement part {number} of the plan and never break build {number}.", number)
        for number in range(60)
    ]

    assert word_count(drafted(*sources, style="narrative", max_words=80).text) <= 80


def test_same_job_gives_the_same_draft() -> None:
    sources = [
        user("Fix /srv/a.py at 10.0.0.1:80."),
        assistant("Done.", 1, ("edit", '{"path": "/srv/a.py"}')),
    ]

    assert drafted(*sources) == drafted(*sources)


def test_cut_texts_say_how_much_is_missing() -> None:
    assert (
        head_and_tail("a" * 10 + "b" * 5 + "c" * 10, 10, 10)
        == "a" * 10 + "\n[… 5 characters left out …]\n" + "c" * 10
    )
    assert clip("one two three four", 15) == "one two three…"


def test_a_million_characters_without_a_break_take_linear_time() -> None:
    """They take a second; at quadratic cost they would take hours, and the test its time limit."""
    sources = [
        user("啊" * 1_000_000),
        tool("x" * 1_000_000),
        tool(("0" * 50 + "/") * 20_000),
        user("a." * 500_000),
        user("<" + "a" * 1_000_000),
    ]

    assert drafted(*sources).text


@pytest.mark.proves("X5", "O10")
def test_no_more_than_two_hundred_arguments_of_a_call_are_looked_at() -> None:
    many = json.dumps({f"name{number}": f"text {number}" for number in range(300)})

    # The arguments as a whole are the first of two hundred.
    assert len(list(argument_texts(many))) == 199


def test_a_text_of_exactly_the_limit_is_not_clipped() -> None:
    assert clip("abcd efgh", 9) == "abcd efgh"
    assert len(clip("abcd efghi", 9)) <= 9


def test_the_oldest_modified_files_go_first_when_there_are_too_many() -> None:
    calls = [("edit", json.dumps({"path": f"/srv/{number}.py"})) for number in range(MAX_FILES + 2)]

    changes = file_changes(None, [assistant("", 1, *calls)])

    assert [change.path for change in changes] == [
        f"/srv/{number}.py" for number in range(2, MAX_FILES + 2)
    ]


@pytest.mark.proves("S6")
@pytest.mark.parametrize("last_word", ["x" * 105, "a-file " * 14 + "a-file"])
def test_a_long_command_that_is_cut_ends_with_a_whole_word_and_an_ellipsis(last_word: str) -> None:
    first_words = "git commit -m " + last_word
    command = json.dumps({"command": first_words + " /srv/app/" + "y" * 40})

    assert list(commands_of("bash", command)) == [first_words + "…"]
