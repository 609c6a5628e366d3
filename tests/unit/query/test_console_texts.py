"""How the console shows what was found, and figures."""

import pytest

from turnfold_query.console.formats import details, money, sentence, short, snippet, text_of
from turnfold_query.console.views import templates


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        ("<b>Where</b> is it?", "where b", "&lt;<mark>b</mark>&gt;<mark>Where</mark>&lt;/"),
        ("within it", "it", "within <mark>it</mark>"),
        ("請求書を送った", "求書", "請<mark>求書</mark>を送った"),
        ("a & b\n\n c", "nothing", "a &amp; b c"),
        ("the " * 500 + "KC-73 left. " + "x" * 500, "the KC-73", "<mark>KC</mark>-<mark>73</mark>"),
    ],
)
def test_a_snippet_marks_the_words_and_shows_markup_as_text(
    text: str, query: str, shown: str
) -> None:
    assert shown in snippet(text, query)


@pytest.mark.proves("V1")
def test_a_snippet_of_a_long_message_is_cut_on_both_sides() -> None:
    shown = snippet("before " * 100 + "KC-73 left " + "after " * 100, "KC-73")

    assert shown.startswith("…")
    assert shown.endswith("…")
    assert len(shown) < 200


@pytest.mark.proves("V1")
def test_a_text_that_turns_its_direction_is_seen_to_do_so_and_comes_back_with_its_form() -> None:
    template = '{{ t }}, {{ t|preview }}, {{ t|snippet("b") }}, <input value="{{ t|e }}">'

    shown = templates.from_string(template).render(t="<\u202ea b\u2066")

    assert (
        shown == '&lt;�a b�, &lt;�a b�, &lt;�a <mark>b</mark>�, <input value="&lt;\u202ea b\u2066">'
    )


@pytest.mark.proves("V1")
def test_the_audit_shows_sums_as_people_write_them() -> None:
    row = '{"cost": 0.00019319999999999998, "seconds": 2.0, "tiny": 1.2e-07, "model": null, "n": 3}'

    assert details(row) == "cost 0.0001932 · seconds 2 · tiny 0.00000012 · n 3"


@pytest.mark.proves("V1")
def test_a_large_number_has_at_most_three_digits_before_its_unit() -> None:
    numbers = (9_999, 10_000, 99_950, 999_499, 999_500, 999_999, 1_550_000, 999_500_000)

    shown = [short(number).replace("\N{NO-BREAK SPACE}", " ") for number in numbers]

    assert shown == ["9,999", "10 k", "100 k", "999 k", "1 M", "1 M", "1.6 M", "1 B"]


@pytest.mark.proves("V1")
def test_a_small_sum_of_money_is_not_shown_as_nothing() -> None:
    shown = [money(value) for value in (0, 0.000012, 0.00005, 0.0123, 1_234.5)]

    assert shown == ["$0.00", "<$0.0001", "$0.0001", "$0.0123", "$1,234.50"]


@pytest.mark.proves("V1")
def test_an_error_is_a_sentence_of_its_page() -> None:
    texts = ("no event is stored", "This page does not exist.", "as_of: there is no such version")

    shown = list(map(sentence, texts))

    assert shown == ["No event is stored.", texts[1], "as_of: there is no such version."]


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    "said", [{"refusal": "I cannot."}, {"audio": {"id": "audio_1", "transcript": "I cannot."}}]
)
def test_a_message_without_content_shows_what_it_says_elsewhere(said: dict[str, object]) -> None:
    assert text_of({"role": "assistant", "content": None, **said}) == "I cannot."
