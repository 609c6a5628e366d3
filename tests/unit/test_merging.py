"""A record merged by field: what is settled goes, everything else stays."""

import pytest

from turnfold.core.merging import merged, numbered

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
    return merged(BEFORE, said, max_tokens=max_tokens, count=count)


def test_entries_have_names_by_their_list() -> None:
    assert numbered(BEFORE)["decisions"] == {"d1": "SQLite was chosen.", "d2": "Retries are three."}
    assert list(numbered(BEFORE)) == ["decisions", "constraints", "open_questions"]


@pytest.mark.parametrize("named", ["q1", "Q1", "Which region?"])
@pytest.mark.proves("S3")
def test_what_an_answer_resolves_goes_and_all_else_stays(named: str) -> None:
    found = after({"decisions": ["The region is eu-west-1."], "context": "It went on.", "resolved": [named]})

    assert found == {
        "decisions": ["SQLite was chosen.", "Retries are three.", "The region is eu-west-1."],
        "constraints": ["The billing tables must not be touched."],
        "context": "It went on.",
    }


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
    found = after({"decisions": [f"Decision number {number} was taken." for number in range(40)]}, max_tokens=120)

    assert found["constraints"] == ["The billing tables must not be touched."]
    decisions = found["decisions"]
    assert isinstance(decisions, list)
    assert 1 <= len(decisions) < 40
    assert decisions[-1] == "Decision number 39 was taken."
