"""A record merged by field: what is settled goes, everything else stays."""

import pytest

from turnfold.core.summary.carry_over import carry_over, numbered

BEFORE = {
    "decisions": ["SQLite was chosen.", "Retries are three."],
    "constraints": ["The billing tables must not be touched."],
    "open_questions": ["Which region?"],
    "file_changes": [{"path": "/a", "action": "modified"}],
    "context": "It began.",
}


def count(text: str) -> int:
    return (len(text) + 3) // 4


def after(said: dict[str, object], *, max_tokens: int = 1_200) -> dict[str, object]:
    return carry_over(BEFORE, said, max_tokens=max_tokens, count=count)


def test_entries_have_names_by_their_list() -> None:
    assert numbered(BEFORE)["decisions"] == {"d1": "SQLite was chosen.", "d2": "Retries are three."}
    assert list(numbered(BEFORE)) == ["decisions", "constraints", "open_questions"]


@pytest.mark.parametrize(
    "named",
    [
        "q1",
        "Q1",
        "Which region?",
        "q1: Which region?",
        "q1 (answered: eu-west-1)",
        "Q1 - eu-west-1",
    ],
)
@pytest.mark.proves("S3")
def test_what_an_answer_resolves_goes_and_all_else_stays(named: str) -> None:
    found = after(
        {"decisions": ["The region is eu-west-1."], "context": "It went on.", "resolved": [named]}
    )

    assert found == {
        "decisions": ["SQLite was chosen.", "Retries are three.", "The region is eu-west-1."],
        "constraints": ["The billing tables must not be touched."],
        "context": "It went on.",
    }


@pytest.mark.proves("S3")
def test_an_entry_that_begins_like_the_name_of_another_one_resolves_itself_alone() -> None:
    questions = ["Q3 figures for Ghent?", "Who signs?", "Which bank pays?"]

    found = carry_over(
        {"open_questions": questions}, {"resolved": questions[:1]}, max_tokens=1_200, count=count
    )

    assert found["open_questions"] == questions[1:]


@pytest.mark.proves("S3")
def test_plain_prose_leaves_every_list_as_it_was() -> None:
    found = after({"context": "It went on."})

    assert {name: found[name] for name in ("decisions", "constraints", "open_questions")} == {
        name: BEFORE[name] for name in ("decisions", "constraints", "open_questions")
    }


@pytest.mark.proves("S3")
def test_an_entry_that_is_said_again_is_there_once_and_counts_as_new() -> None:
    found = after({"decisions": ["sqlite was chosen"]})

    assert found["decisions"] == ["Retries are three.", "sqlite was chosen"]


@pytest.mark.proves("S3", "S10")
def test_the_oldest_go_first_where_there_is_no_room_and_constraints_last() -> None:
    found = after(
        {"decisions": [f"Decision number {number} was taken." for number in range(40)]},
        max_tokens=120,
    )

    assert found["constraints"] == ["The billing tables must not be touched."]
    decisions = found["decisions"]
    assert isinstance(decisions, list)
    assert 1 <= len(decisions) < 40
    assert decisions[-1] == "Decision number 39 was taken."


def letters(text: str) -> int:
    return len(text)


@pytest.mark.proves("S3", "S10", "O10")
@pytest.mark.parametrize(
    ("max_tokens", "constraints", "questions", "decisions"),
    [
        (100, 3, 1, 1),  # 60 for lists: three constraints of 12, 12 of the other 24 for questions
        (99, 3, 0, 1),
        (120, 3, 1, 2),
        (60, 3, 0, 0),
        (59, 2, 0, 0),
        (20, 1, 0, 0),
        (19, 0, 0, 0),
        (1_000, 3, 3, 3),
    ],
)
def test_lists_take_six_tenths_at_most_constraints_first_and_questions_half_of_what_these_leave(
    max_tokens: int, constraints: int, questions: int, decisions: int
) -> None:
    # Each entry has ten letters, and costs two tokens more.
    said = {
        name: [f"{name[:4]} no. {number}" for number in (1, 2, 3)]
        for name in ("decisions", "constraints", "open_questions")
    }

    found = carry_over({}, said, max_tokens=max_tokens, count=letters)

    assert [found[name] for name in ("constraints", "open_questions", "decisions")] == [
        said["constraints"][3 - constraints :],
        said["open_questions"][3 - questions :],
        said["decisions"][3 - decisions :],
    ]


@pytest.mark.proves("S3", "C54", "O10")
@pytest.mark.parametrize("damaged", [None, "text", 7, {"a": "b"}, [None, 7, "", "  ", ["x"]]])
def test_a_damaged_list_of_the_record_before_counts_as_an_empty_one(damaged: object) -> None:
    found = carry_over(
        {"decisions": damaged}, {"constraints": ["Stay."]}, max_tokens=1_200, count=count
    )

    assert found == {"constraints": ["Stay."]}
    assert numbered({"decisions": damaged}) == {}


@pytest.mark.proves("S3", "O10")
def test_entries_that_are_signs_alone_are_told_apart() -> None:
    found = carry_over(
        {"decisions": ["?!", "..."]}, {"decisions": ["..."]}, max_tokens=1_200, count=count
    )

    assert found == {"decisions": ["?!", "..."]}
