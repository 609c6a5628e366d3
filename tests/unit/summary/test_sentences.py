"""Sentences of a text: what they keep of their words and figures, and which lines are code."""

import pytest

from tests.unit.summary.drafts import drafted, user
from turnfold.core.summary.sentences import SentenceKind, is_lasting, sentence_kinds, sentences


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("3.5 GB is the most it may take.", "3.5 GB is the most it may take."),
        ("12.50 dollars is my budget.", "12.50 dollars is my budget."),
        ("1.2.3 is the version we must keep.", "1.2.3 is the version we must keep."),
        ("-5 degrees is the limit.", "-5 degrees is the limit."),
        ("- -5 degrees is the limit.", "-5 degrees is the limit."),
        (">5 users must share it.", ">5 users must share it."),
        ("1. Use tabs.", "Use tabs."),
        ("- 2) Use tabs.", "Use tabs."),
        ("1.Use tabs.", "Use tabs."),
        ("-用制表符。", "用制表符。"),
        ("> Use tabs.", "Use tabs."),
        (">= 5 users must share it.", ">= 5 users must share it."),
        ("--no-verify must never be used.", "--no-verify must never be used."),
        ("*.log files must never be committed.", "*.log files must never be committed."),
    ],
)
@pytest.mark.proves("S6")
def test_the_mark_of_a_list_is_left_out_and_the_start_of_a_number_stays(
    text: str, sentence: str
) -> None:
    assert list(sentences(text)) == [sentence]


@pytest.mark.proves("S6")
def test_a_limit_at_the_start_of_a_sentence_is_told_to_the_letter() -> None:
    draft = drafted(user("Please size the cache. 3.5 GB is the maximum."))

    assert draft.sections["constraints"] == ["3.5 GB is the maximum."]
    assert "constraint 3.5 GB is the maximum." in draft.ledger


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("The limit is 2**10 bytes.", "The limit is 2**10 bytes."),
        ("It is x**-1 or f(x)**2 here.", "It is x**-1 or f(x)**2 here."),
        ("Only src/**/*.py must be checked.", "Only src/**/*.py must be checked."),
        ("**/*.py must be checked.", "**/*.py must be checked."),
        ("Leave out dist/**", "Leave out dist/**"),
        ("**Note:** use **tabs**.", "Note: use tabs."),
        ("**2. Use tabs.**", "Use tabs."),
        ("请**不要**改它。", "请不要改它。"),
    ],
)
@pytest.mark.proves("S6")
def test_two_stars_are_left_out_where_they_are_bold_print_alone(text: str, sentence: str) -> None:
    assert list(sentences(text)) == [sentence]


@pytest.mark.parametrize(
    "text",
    [
        "from now on always use Python 3.12 (not 3.11)",
        "from now on: never push to main",
        "for the report: only use EUR",
        "while you are at it, fix the footer (it is cut off)",
        "let me pay at most 20 EUR (or 22 USD)",
        "return the second item (unused) and refund it",
        "import the orders of May into Postgres",
        "print the invoice (as PDF) please",
        "10:30 works for me, book it",
        "NEVER use a port below 1024",
    ],
)
@pytest.mark.proves("S3", "O10")
def test_a_sentence_of_a_user_may_begin_like_code_or_output(text: str) -> None:
    assert list(sentences(text)) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "from os import path",
        "import os, sys",
        "import numpy as np",
        "import { a } from 'b'",
        "import './a.css'",
        "for key, value in items.items():",
        "for (let i = 0; i < 3; i++) {",
        "while (true) {",
        "while not done:",
        "let mut total = 0",
        "let {a, b} = c",
        "return total == 5",
        "return render(page)",
        "print('x', end='')",
        "class Page(Base):",
        "12:    total = 0",
        "PASSED 12 of 12",
    ],
)
@pytest.mark.proves("S3", "O10")
def test_a_line_of_code_or_output_is_no_sentence(text: str) -> None:
    assert list(sentences(text)) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The limit must be 15 GB.", "The limit must be 1.5 GB."),
        (
            f"You must {'carefully and ' * 5}always keep the number of replicas at 5.",
            f"You must {'carefully and ' * 5}always keep the number of replicas at 7.",
        ),
    ],
)
@pytest.mark.proves("S6")
def test_lines_with_different_numbers_are_two(first: str, second: str) -> None:
    draft = drafted(user(first, 1), user(second, 2), user("Go on. " * 60, 3))

    assert draft.sections["constraints"] == [first, second]


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("An equilateral triangle has three equal sides.", SentenceKind.OPEN),
        ("Wind power is the most commonly used source.", SentenceKind.CONSTRAINT),
        ("I cancel the trip and rebook it myself.", SentenceKind.DECISION),
        ("The tour takes four days and an hour by bus.", SentenceKind.FACT),
        ("The academy sells economy class tickets.", SentenceKind.FACT),
    ],
)
@pytest.mark.proves("S4")
def test_a_keyword_inside_another_word_says_nothing(sentence: str, kind: SentenceKind) -> None:
    assert kind not in sentence_kinds(sentence, is_user=True)
    assert not is_lasting(sentence)


def test_a_keyword_counts_wherever_a_word_begins_with_it() -> None:
    assert SentenceKind.OPEN in sentence_kinds("Isosceles, equilateral: later.", is_user=False)
    assert SentenceKind.FACT in sentence_kinds("Your (my own) tickets: four.", is_user=True)
    assert is_lasting("In your city and (my city).")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Über Ostern bleibt der Laden zu.", "Öffnet ihn erst danach wieder!"),
        ("Встреча с нотариусом перенесена на среду.", "Документы нельзя отправлять почтой."),
        ("Spotkanie z notariuszem jest w środę.", "Łukasz przyniesie umowę."),
        ("Schůzka s notářem je ve středu.", "Čtvrtek už nikomu nevyhovuje."),
        ("Зустріч із нотаріусом у середу.", "Її перенесли з понеділка."),
        ("Η συνάντηση είναι την Τετάρτη.", "Έγγραφα δεν στέλνουμε με ταχυδρομείο."),
        ("الاجتماع مع المحامي يوم الأربعاء.", "هل نرسل الوثائق بالبريد؟"),
        ("வழக்கறிஞருடன் சந்திப்பு புதன்கிழமை.", "ஆவணங்களை அஞ்சலில் அனுப்ப வேண்டாம்."),
        ("შეხვედრა ნოტარიუსთან ოთხშაბათსაა.", "საბუთები ფოსტით არ გააგზავნოთ."),
        ("वकील से मिलना बुधवार को है।", "काग़ज़ डाक से नहीं भेजने हैं।"),
        ("변호사와의 약속은 수요일이에요.", "서류는 우편으로 보내면 안 돼요."),
    ],
)
@pytest.mark.proves("S4")
def test_each_sentence_of_another_language_is_one_line(first: str, second: str) -> None:
    draft = drafted(user(f"{first} {second}"))

    assert f"\n- {first}" in draft.text
    assert f"\n- {second}" in draft.text
