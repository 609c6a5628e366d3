"""Which lines of earlier messages are marked, and which of them a block quotes first (W14)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import assistant, counter, user
from turnfold.core.recall.quotes import (
    MOST_LINES,
    READ_CHARACTERS,
    MarkedLine,
    best_lines,
    mark_lines,
    name_numbers,
    numbers_in_lines,
    numbers_of_names,
    quotable_text,
    read_marks,
    with_files,
)
from turnfold.core.text.names import names_in


def all_numbers(text: str) -> set[int]:
    return set(name_numbers(with_files(names_in(text))))


def marked(text: str) -> list[MarkedLine]:
    stored = mark_lines(dict(user(text)), counter())
    return [] if stored is None else read_marks(stored)


def quoted(texts: list[str], **hidden: object) -> list[str]:
    """The lines that a block would quote of these messages, best first."""
    shown, own = hidden.get("shown", ()), hidden.get("own", ())
    known, asked = (numbers_of_names(str(hidden.get(name, ""))) for name in ("known", "asked"))
    lines = {number: marked(text) for number, text in enumerate(texts)}
    quotable = [
        (number, line)
        for number in reversed(lines)
        if number not in shown  # type: ignore[operator]
        for line in lines[number]
    ]
    best = best_lines(lines, len(texts) - 1, quotable=quotable, known=known, own=own, asked=asked)  # type: ignore[arg-type]
    return [texts[number][line.start : line.start + line.characters] for number, line in best]


@pytest.mark.proves("W14")
def test_arguments_that_are_no_json_are_quoted_as_they_are() -> None:
    assert "session_key of app" in quotable_text(
        assistant(None, "c", arguments="session_key of app")
    )


@pytest.mark.proves("W14")
def test_marks_are_read_as_they_were_written() -> None:
    text = "first words\ndef session_key(path):\n    return cache_of(path)\n"
    (first, second) = marked(text)

    assert text[first.start : first.start + first.characters] == "def session_key(path):"
    assert first.tokens == counter()("def session_key(path):")
    assert set(first.names) == numbers_of_names("session_key")
    assert set(second.names) == numbers_of_names("cache_of")


@pytest.mark.proves("W14")
def test_lines_whose_tokens_are_only_bounded_are_ranked_by_what_their_message_takes() -> None:
    """Otherwise the newest messages, which are not indexed yet, would be quoted last."""
    names = [numbers_of_names(name) for name in ("session_key", "cache_of")]
    older, newer = (MarkedLine(0, 20, tokens, tuple(name)) for tokens, name in zip((8, 18), names, strict=True))  # fmt: skip
    lines = {0: [older], 1: [newer]}
    quotable = [(1, newer), (0, older)]

    best = best_lines(lines, 1, quotable=quotable, known=(), sizes=[8, 8])

    assert [ordinal for ordinal, _ in best] == [1, 0]


@pytest.mark.proves("W14")
@pytest.mark.parametrize("path", ["/srv/theme/schema.json", "https://example.org/schema.json"])
def test_a_path_names_its_file_too(path: str) -> None:
    """A question about a file by its name alone missed the lines with its path."""
    (line,) = marked(f"renamed to {path} (100%)")

    assert set(line.names) == numbers_of_names(f"{path} schema.json")
    assert numbers_in_lines([path]) == set(line.names)


@pytest.mark.proves("W14")
def test_a_message_without_names_stores_nothing() -> None:
    assert mark_lines(dict(user("Hello, how are you?")), counter()) is None


@pytest.mark.proves("W14")
@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_message_can_be_marked(texts: list[str]) -> None:
    body = {**assistant("\n".join(texts)), "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "run", "arguments": arguments}}
        for arguments in [json.dumps({"code": texts}), *texts]
    ]}  # fmt: skip

    stored = mark_lines(body, counter())

    for line in read_marks(stored or b""):
        piece = quotable_text(body)[line.start : line.start + line.characters]
        assert line.tokens == counter()(piece)
        assert set(line.names) == all_numbers(piece)


def test_long_messages_are_marked_in_part() -> None:
    lines = marked("\n".join(f"value_of_{number} = {number}" for number in range(5_000)))

    assert len(lines) == MOST_LINES
    assert all(line.start < READ_CHARACTERS for line in lines)


@pytest.mark.proves("W14")
def test_a_name_far_into_a_long_result_is_marked() -> None:
    """Large windows show each message and cut long results: the middle is what they lack."""
    filler = "\n".join(f"value_of_{number} = {number}" for number in range(100))
    plain = "nothing is named on these lines\n" * 1_200

    lines = marked(f"{filler}\n{plain}def far_away_name():")

    assert len(lines) == 101
    assert lines[-1].start > 38_000
    assert set(lines[-1].names) == numbers_of_names("far_away_name")


@pytest.mark.proves("W14")
def test_what_the_agent_wrote_itself_comes_before_what_it_was_told() -> None:
    texts = ["see the read_name here", "see the used_name here", "see the last_name here"]

    assert quoted(texts)[0] == texts[2]
    assert quoted(texts, own=[1])[0] == texts[1]


@pytest.mark.proves("W14")
def test_what_is_named_often_and_lately_comes_first() -> None:
    texts = ["the once_named thing", *["we use often_named here"] * 5, "and lately_named too"]

    assert quoted(texts)[0] == "we use often_named here"
    assert quoted(texts).index("and lately_named too") < quoted(texts).index(texts[0])
    assert len(quoted(texts)) == 3


@pytest.mark.proves("W14")
def test_several_names_are_worth_more_than_the_uses_of_one() -> None:
    """The next step mostly uses a name a second time that was used once."""
    often = "we use often_named here and there and in many other places"
    texts = [*[often] * 4, "one_name, two_names, three_names"]

    assert quoted(texts)[0] == texts[-1]


@pytest.mark.proves("F2", "W14")
def test_names_that_are_asked_for_are_quoted_first_and_of_every_message() -> None:
    texts = [
        "see lantern_shelf",
        "or lantern_shelf",
        "use map_size",
        "and map_size",
        "then map_size",
    ]

    assert quoted(texts, known="lantern_shelf", asked="lantern_shelf")[:2] == [texts[1], texts[0]]
    assert quoted(texts, known="lantern_shelf") == [texts[4]]


@pytest.mark.proves("F2", "W14")
def test_lines_of_one_name_that_is_asked_for_leave_room_for_those_of_another() -> None:
    texts = [*["see lantern_shelf"] * 9, "the map_size of a long line with many more words"]

    assert texts[-1] in quoted(texts, asked="lantern_shelf map_size")[:5]


@pytest.mark.proves("W14")
def test_nothing_is_quoted_that_the_window_has() -> None:
    texts = ["see first_name", "see second_name and first_name", "see third_name"]

    assert quoted(texts, shown={1, 2}) == ["see first_name"]
    assert quoted(texts, known="first_name, second_name") == ["see third_name"]


@pytest.mark.proves("W14")
@given(st.text("ab_/.:19A-\n\r\u2028 ", max_size=80))
def test_no_name_reaches_from_one_line_into_the_next(text: str) -> None:
    assert numbers_in_lines(text.split("\n")) == all_numbers(text)
