"""The chain of an audit shows what was changed, left out, cut off or added."""

from collections.abc import Sequence
from typing import Any

import pytest

from turnfold.core.history.audit_chain import ChainEnd, chain_fault, end_fault, row_hash


def chain(rows: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for ordinal in range(1, rows + 1):
        row: dict[str, Any] = {
            "agent_id": "a",
            "session_id": "s",
            "ordinal": ordinal,
            "at_ms": 1_000 + ordinal,
            "compaction_id": 7,
        }
        row |= {
            "phase": "evicted",
            "reason": None,
            "tokens_before": 10,
            "tokens_after": None,
            "details": "{}",
            "actor": "worker",
        }
        row["prev_hash"] = made[-1]["hash"] if made else ""
        row["hash"] = row_hash(row["prev_hash"], row)
        made.append(row)
    return made


def fault_of(
    rows: Sequence[dict[str, Any]], end: ChainEnd | None = None, later: ChainEnd | None = None
) -> str | None:
    """The first fault of a chain whose session names these ends."""
    hashes = [""]
    fault = chain_fault(rows, hashes)
    return end_fault(hashes, end, later) if fault is None and end is not None else fault


def end_of(rows: Sequence[dict[str, Any]], length: int) -> ChainEnd:
    """The end of a chain when it had so many rows."""
    return ChainEnd(length, rows[length - 1]["hash"])


@pytest.mark.proves("A1")
@pytest.mark.parametrize("told", [None, 2, 3])
def test_an_untouched_chain_is_intact_also_where_rows_came_after_the_look_at_its_end(
    told: int | None,
) -> None:
    rows = chain(3)

    assert fault_of(rows, end_of(rows, told) if told else None) is None
    assert fault_of([], ChainEnd(0, "")) is None


@pytest.mark.proves("A1")
@pytest.mark.parametrize(
    "field", ["phase", "reason", "tokens_before", "details", "at_ms", "compaction_id", "actor"]
)
def test_a_changed_field_shows_at_its_row(field: str) -> None:
    rows = chain(3)
    rows[1][field] = "other"

    assert fault_of(rows) == "row 2 was changed"


@pytest.mark.proves("A1")
def test_a_row_left_out_shows() -> None:
    first, _, third = chain(3)

    assert fault_of([first, third]) == "row 2 is missing"


@pytest.mark.proves("A1")
def test_a_cut_off_tail_shows() -> None:
    rows = chain(3)

    assert (
        fault_of(rows[:2], end_of(rows, 3))
        == "the end is cut off: 3 rows were written, 2 are there"
    )


@pytest.mark.proves("A1")
def test_a_row_put_between_shows() -> None:
    first, second, third = chain(3)

    assert (
        fault_of(
            [first, second | {"reason": "forged"}, second | {"ordinal": 3}, third | {"ordinal": 4}]
        )
        == "row 2 was changed"
    )
    assert (
        fault_of([first, second, second | {"ordinal": 3}, third | {"ordinal": 4}])
        == "row 3 is missing"
    )


@pytest.mark.proves("A1")
def test_a_well_sealed_row_at_the_end_shows_where_the_session_did_not_write_it() -> None:
    rows = chain(4)

    end = end_of(rows, 3)
    assert fault_of(rows, end, end_of(rows, 4)) is None
    assert fault_of(rows, end, end) == "row 4 was added: 3 rows were written, 4 are there"
    # Erased while it was read: its rows stay, and no end is left to compare them with.
    assert fault_of(rows, end, None) is None


@pytest.mark.proves("A1")
def test_a_chain_written_anew_shows_against_what_the_session_remembers() -> None:
    remembered = chain(3)[-1]["hash"]
    rows = chain(3)
    rows[2]["reason"] = "forged"
    rows[2]["hash"] = row_hash(rows[2]["prev_hash"], rows[2])

    assert (
        fault_of(rows, ChainEnd(3, remembered)) == "row 3 differs from the hash in the session row"
    )
