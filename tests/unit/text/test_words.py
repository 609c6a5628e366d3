"""What texts are found by, and which answer is the better one."""

import pytest

from turnfold.core.text.search import (
    BEGINNINGS,
    VERBATIM,
    WHOLE,
    WORDS,
    SearchQuery,
    ranked,
    searchable,
)
from turnfold.core.text.words import MOST_BYTES, exact_terms, mark, normalize, terms


def found_by(text: str) -> frozenset[str]:
    held = terms(normalize(text))
    assert held is not None
    return held


@pytest.mark.proves("F1")
def test_eastern_text_is_taken_apart_by_two_characters_so_that_each_begins_a_term() -> None:
    assert found_by("琥珀色, 蜃気楼 서울") == {
        "x琥珀",
        "x珀色",
        "x色",
        "x蜃気",
        "x気楼",
        "x楼",
        "x서울",
        "x울",
    }


@pytest.mark.proves("F1")
@pytest.mark.parametrize("word", ["ꦧꦱꦗꦮ", "𞤀𞤣𞤤𞤢𞤥", "𐌰𐌱𐌲"])
def test_a_word_is_found_whole_also_in_scripts_that_follow_the_eastern_ones(
    word: str,
) -> None:
    assert found_by(f"{word} means") == {f"x{normalize(word)}", "xmeans"}


PAIRS = {
    "17.5 kg": ["5 kg"],
    "about 350 ms later": ["350 ms", "about 350"],
    "room  12": [],
    "room\n12": [],
    "3月5日": ["3 月", "月 5", "5 日"],
    "第 7 章": ["第 7", "7 章"],
    "第  7  章": [],
    "昭和63年": ["和 63", "63 年"],
    "価格は500円です": ["は 500", "500 円"],
    "5 кг": ["5 кг"],
    "кг 5": ["кг 5"],
    "кг кг": [],
    "vier kg": [],
    "7": [],
    "é,5 m": ["5 m"],
}
"""Texts, and the figures in them with what stands beside each."""


@pytest.mark.proves("F1", "O10")
@pytest.mark.parametrize(("text", "pairs"), PAIRS.items())
def test_a_figure_is_found_with_its_neighbor_one_blank_away_or_none_where_letters_are_eastern(
    text: str, pairs: list[str]
) -> None:
    neighbors = exact_terms(text) - {mark(value) for value in ("17.5", "17.5 kg")}

    assert neighbors == {mark(pair) for pair in pairs}
    assert neighbors <= found_by(text)


@pytest.mark.proves("F1")
def test_case_and_width_of_characters_make_no_difference() -> None:
    assert found_by("ＡＭＢＥＲ Straße ｶﾀ") == found_by("amber STRASSE カタ")


@pytest.mark.proves("F1")
def test_a_path_is_found_whole_and_from_each_folder_on() -> None:
    held = found_by("see /srv/zephyr/conf.d/app.toml.")

    assert {
        mark(one)
        for one in (
            "srv/zephyr/conf.d/app.toml",
            "zephyr/conf.d/app.toml",
            "conf.d/app.toml",
            "app.toml",
        )
    } <= held
    assert {"xsrv", "xzephyr", "xconf", "xapp", "xtoml"} <= held


@pytest.mark.proves("F1")
def test_a_text_with_more_terms_than_an_index_takes_has_none() -> None:
    assert terms(" ".join(f"{number:x}{'q' * 40}" for number in range(MOST_BYTES // 45))) is None


@pytest.mark.proves("F1")
def test_a_row_of_letters_without_end_costs_no_more_than_its_length() -> None:
    assert len(found_by("a" * 300_000 + "/" * 300_000 + "b" * 300_000)) < 10


@pytest.mark.proves("F1")
def test_a_message_is_searched_in_what_it_says_and_in_what_it_calls() -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "Run", "arguments": '{"command": "grep -n \\"琥\\" a\\nb", "n": 7}'},
    }

    text = searchable(
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Well"}],
            "tool_calls": [call],
            "reasoning_content": "hm",
        }
    )

    assert text.split("\n") == ["well", "run", "command", 'grep -n "琥" a', "b", "n", "7"]


@pytest.mark.proves("F1", "O10")
def test_a_call_in_the_old_form_is_searched_like_any_other() -> None:
    body = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "Run", "arguments": '{"command": "ls"}'},
    }

    assert searchable(body).split("\n") == ["", "run", "command", "ls"]


@pytest.mark.proves("F1")
@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("It listens on 10.0.0.1, they say", WHOLE),
        ("在10.0.0.1上", WHOLE),
        ("10.0.0.1/24", VERBATIM),
        ("v10.0.0.1", None),
        ("0, 1 and 10", WORDS),
        ("10.0.0.15", None),
        ("10.0.0.1 is it", WHOLE),
        ("10.0.0.1:/x", VERBATIM),
        ("10.0.0.1.5", VERBATIM),
    ],
)
def test_an_exact_value_is_told_from_a_part_of_another(text: str, tier: int | None) -> None:
    grade = SearchQuery.of("10.0.0.1").grade(normalize(text))

    assert (grade and grade.tier) == tier


@pytest.mark.proves("F1")
def test_words_of_three_letters_are_found_by_their_beginning() -> None:
    tiers = [
        SearchQuery.of(query).grade("the ambers are here") for query in ("amber", "am", "mbers")
    ]

    assert [grade and grade.tier for grade in tiers] == [BEGINNINGS, None, None]


@pytest.mark.proves("F1")
def test_of_equal_answers_the_newest_is_first_and_of_a_value_the_one_that_named_it() -> None:
    def order(query: str) -> list[int]:
        question = SearchQuery.of(query)
        text = normalize("amber 8443 दिल्ली ทะเล")
        graded = {place: grade for place in range(4) if (grade := question.grade(text))}
        return [one.position for one in ranked(question, graded)]

    assert order("amber") == order("दिल्ली") == order("ทะเล ") == [3, 2, 1, 0]
    assert order("8443") == [0, 3, 2, 1]
