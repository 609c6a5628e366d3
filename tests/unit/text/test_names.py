"""Which names the lines of a text hold (W14)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.text.names import LINE_CHARACTERS, named_lines, names_in


@pytest.mark.proves("W14")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def session_key(self):", {"session_key"}),
        ("call _private_part and HttpServer, parseHeader", {"_private_part", "HttpServer", "parseHeader"}),
        ("see src/app/main.py and config.toml.", {"src/app/main.py", "config.toml"}),
        ("at https://example.org/a?b=1, then", {"https://example.org/a?b=1"}),
        ("order DK-55-ALPHA of 2026-11-20 cost $1,250.50", {"DK-55-ALPHA", "2026-11-20", "$1,250.50"}),
        ("port 18080, version 10.4.12", {"18080", "10.4.12"}),
        ("plain words, x2, a.b and 17 of them", set()),
    ],
)  # fmt: skip
def test_names_are_found_by_their_shape(text: str, names: set[str]) -> None:
    assert names_in(text) == names


@pytest.mark.proves("W14")
def test_a_line_counts_only_for_a_name_that_no_earlier_line_has() -> None:
    text = "import session_key\nnothing here\n  session_key()  \n  other_name = session_key()"

    lines = list(named_lines(text))

    assert [line.text for line in lines] == ["import session_key", "other_name = session_key()"]


@pytest.mark.proves("W14")
@given(
    st.lists(
        st.sampled_from(["session_key", " ", "\n", ",", "src/main.py", "x" * 90, "\u2028", "\r", "漢字"])
    ).map("".join)
)  # fmt: skip
def test_a_line_stands_where_it_says(text: str) -> None:
    known: set[str] = set()
    for line in named_lines(text):
        assert text[line.start : line.start + len(line.text)] == line.text
        assert len(line.text) <= LINE_CHARACTERS
        assert line.names - known
        known |= line.names


PIECES = [
    "a",
    "Z",
    "0",
    "abc",
    "_",
    "/",
    ".",
    ",",
    ":",
    "-",
    "@",
    "+",
    "~",
    "$",
    "€",
    "漢",
    ".py",
    "http://",
]
WORD = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


@pytest.mark.proves("W14")
@given(WORD)
def test_no_word_is_passed_over_that_could_be_a_name(word: str) -> None:
    """Words with a digit are always searched, and what stands before the bracket is no name."""
    assert names_in(word) == names_in(f"(0){word}")
