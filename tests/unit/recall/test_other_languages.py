"""Requests in languages other than English find what was said in other forms (F2)."""

import pytest

from turnfold.core.recall.english import FUNCTION_WORDS, IRREGULAR_FORMS, KINDS, SIMILAR_WORDS
from turnfold.core.recall.function_words import HOMOGRAPHS, OTHER_FUNCTION_WORDS
from turnfold.core.recall.question import question_of, related_lookups
from turnfold.core.text.words import normalize, runs, terms


def found_in(said: str, asked: str) -> int:
    """Return the number of lookups of a question that match a message."""
    index = terms(normalize(said)) or frozenset[str]()
    lookups = question_of(asked).lookups
    return sum(any(term.matches(one) for term in of for one in index) for of in lookups)


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("asked", "said", "least"),
    [
        ("Welche Räder reparieren die Mechaniker?", "Ein Mechaniker repariert das Rad.", 2),
        ("¿Quién cocinaba en las fiestas?", "Mi tía cocinó para la fiesta.", 2),
        ("Где мы катались на лошадях?", "Катание на лошади было в Суздале.", 1),
        ("Komşunun köpekleri nerede kayboldu?", "Köpekler parkta kaybolmuş.", 2),
        ("أين السيارة التي عند الجيران؟", "سيارتي وسيارة لجيراننا في المرآب.", 2),
        ("हमने नौकाओं को कहाँ बाँधा था?", "नौका घाट पर बाँधी गई।", 1),
    ],
)
def test_inflected_words_find_their_other_forms(asked: str, said: str, least: int) -> None:
    assert found_in(said, asked) >= least


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Wann und warum hat meine Tante das Boot verkauft?", "Wann hat er das und wer nicht?"),
        ("Où avais-tu garé la voiture ?", "Qui avait cela, et où ?"),
        ("Nasıl ve ne kadar süre pişirdik?", "Ne kadar ve nasıl?"),
        ("Когда и где мы ночевали?", "Где и когда это было?"),
        ("متى كان السفر إلى فاس؟", "متى كان هذا؟"),
        ("दादी का घर कहाँ था?", "वह कहाँ था?"),
    ],
)
def test_function_words_of_a_request_are_not_looked_up(asked: str, said: str) -> None:
    assert found_in(said, asked) == 0


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Wo ist Kim?", "Kim wohnt jetzt in Gent."),
        ("Ne kadar para ödedim?", "Para hesaptan çekildi."),
        ("¿En qué mes viajamos?", "El mes era mayo."),
        ("Où est la péniche de la Seine ?", "Elle reste sur la Seine."),
    ],
)
def test_a_topic_is_looked_up_although_another_language_has_a_word_like_it(
    asked: str, said: str
) -> None:
    assert found_in(said, asked) > 0


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("你还记得我之前跟你说过的那件事吗，就是后来我们一起去买的那个东西，花瓶在哪里？", "花瓶"),
        (
            "前にお話ししたことがあると思うのですが、あれはどこに置いたのでしたっけ、鍵箱は？",
            "鍵箱",
        ),
    ],
)
def test_a_long_request_without_spaces_looks_up_the_topic_at_its_end(asked: str, said: str) -> None:
    assert found_in(said, asked) == 1


def test_related_words_are_no_function_words_of_another_language() -> None:
    texts = ["Welche Gitarre haben wir nicht?", "Welche Gitarre werden wir nicht kaufen?"]

    lookups = related_lookups(texts, question_of("Musik"))

    assert [term.text for [term] in lookups] == ["xgitarr", "xkaufen"]


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    "asked",
    ["MIT license", "Did Zoë like the license?", "El license", "Zoë license", "40µs license"],
)
def test_a_foreign_name_does_not_change_the_rules_of_english(asked: str) -> None:
    assert found_in("licensing", asked) == 1
    assert found_in("lice", asked) == 0


@pytest.mark.proves("F2")
@pytest.mark.parametrize("asked", ["把 logs 删掉", "Где logs сервиса?", "로그 logs 어디"])
def test_english_words_in_a_request_in_another_alphabet_find_their_forms(asked: str) -> None:
    assert found_in("The log is full.", asked) == 1


def test_function_words_are_normalized_and_no_english_words_that_matter() -> None:
    groups = (*SIMILAR_WORDS, *IRREGULAR_FORMS)
    english = FUNCTION_WORDS.union(*groups, KINDS.replace(":", " ").split())

    assert [word for word in OTHER_FUNCTION_WORDS if runs(normalize(word)) != [word]] == []
    assert english & OTHER_FUNCTION_WORDS == set()
    assert set() == HOMOGRAPHS & OTHER_FUNCTION_WORDS
