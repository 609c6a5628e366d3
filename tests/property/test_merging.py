"""Laws of merging a record by field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.summary.carry_over import LIST_SECTIONS, carry_over, numbered

ROOM = 400


def count(text: str) -> int:
    return (len(text) + 3) // 4


entries = st.lists(st.text(alphabet="abcde 字", min_size=1, max_size=60), max_size=12)
records = st.fixed_dictionaries(
    dict.fromkeys(LIST_SECTIONS, entries) | {"context": st.text(max_size=40)}
)
names = st.lists(
    st.sampled_from([f"{letter}{number}" for letter in "dcq" for number in range(1, 8)]), max_size=6
)


def once(texts: list[str]) -> set[str]:
    return {"".join(text.split()) for text in texts if text.strip()}


@given(records, records, names)
@pytest.mark.proves("S3")
def test_saying_the_same_again_changes_nothing(
    before: dict[str, list[str]], said: dict[str, list[str]], resolved: list[str]
) -> None:
    first = carry_over(before, said | {"resolved": resolved}, max_tokens=ROOM, count=count)

    assert carry_over(first, said, max_tokens=ROOM, count=count) == first


@given(records, records, names)
@pytest.mark.proves("S3")
def test_no_unresolved_constraint_is_lost_while_the_constraints_are_within_the_cap(
    before: dict[str, list[str]], said: dict[str, list[str]], resolved: list[str]
) -> None:
    open_ones = [
        text
        for name, text in numbered(before).get("constraints", {}).items()
        if name not in resolved
    ]

    found = carry_over(before, said | {"resolved": resolved}, max_tokens=100_000, count=count)

    assert once(open_ones) <= once(found["constraints"])
    assert once(said["constraints"]) <= once(found["constraints"])


@given(records, records)
@pytest.mark.proves("S3", "S10")
def test_lists_are_within_their_share_and_hold_nothing_twice(
    before: dict[str, list[str]], said: dict[str, list[str]]
) -> None:
    found = carry_over(before, said, max_tokens=ROOM, count=count)

    texts = [text for name in LIST_SECTIONS for text in found[name]]
    assert sum(count(text) + 2 for text in texts) <= ROOM * 0.6
    for name in LIST_SECTIONS:
        assert len(once(found[name])) == len(found[name])


@given(records, records)
@pytest.mark.proves("S3")
def test_nothing_is_made_up_and_the_newest_stay(
    before: dict[str, list[str]], said: dict[str, list[str]]
) -> None:
    found = carry_over(before, said, max_tokens=ROOM, count=count)

    for name in LIST_SECTIONS:
        assert set(found[name]) <= {*before[name], *said[name]}
    assert found["context"] == said["context"]
