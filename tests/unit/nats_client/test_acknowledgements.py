"""Which replies count as an acknowledgement of a stream (O7, C69)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.nats_client.acknowledgements import (
    AHEAD,
    AckBatch,
    Acknowledgement,
    AckVerdict,
    Doubtful,
    Rejection,
    judge,
)

STREAM = "TURNFOLD_EVENTS"
FLOOR = 100
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["stream", "seq", "error", "code", "x"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)


def verdict(
    told: Any,
    *,
    floor: int | None = FLOOR,
    is_unproven: bool = False,
    batch: AckBatch | None = None,
) -> AckVerdict:
    data = told if isinstance(told, bytes) else json.dumps(told).encode()
    return judge(data, stream=STREAM, floor=floor, is_unproven=is_unproven, batch=batch)


@pytest.mark.proves("O7")
def test_the_next_sequence_of_the_stream_is_believed() -> None:
    assert verdict({"stream": STREAM, "seq": 101}) == Acknowledgement(101)
    assert verdict(
        {"stream": STREAM, "seq": FLOOR + AHEAD + 1, "domain": "hub"}
    ) == Acknowledgement(FLOOR + AHEAD + 1)


@pytest.mark.proves("O7")
@pytest.mark.parametrize("seq", [1, FLOOR, FLOOR + AHEAD + 2, 2**63 - 1])
def test_a_sequence_that_was_taken_or_is_far_ahead_is_looked_up(seq: int) -> None:
    assert verdict({"stream": STREAM, "seq": seq}) == Doubtful(Acknowledgement(seq))


@pytest.mark.proves("O7")
def test_a_duplicate_is_looked_up_and_so_is_everything_at_first_and_beside_strangers() -> None:
    told = {"stream": STREAM, "seq": 101}

    assert verdict(told | {"duplicate": True}) == Doubtful(Acknowledgement(101, is_duplicate=True))
    assert verdict(told, floor=None) == Doubtful(Acknowledgement(101))
    assert verdict(told, is_unproven=True) == Doubtful(Acknowledgement(101))


@pytest.mark.proves("O7")
@pytest.mark.parametrize(
    "told",
    [
        b"", b"null", b"[]", b"7", b'"ok"', b"{", b"\xff", b"[" * 4_000, b" " * 5_000, {"ok": True}, {"stream": STREAM}, {"seq": 101},
        {"stream": "TURNFOLD_NOTICES", "seq": 101}, {"stream": STREAM, "seq": True}, {"stream": STREAM, "seq": 101.0},
        {"stream": STREAM, "seq": "101"}, {"stream": STREAM, "seq": 0}, {"stream": STREAM, "seq": -1}, {"stream": STREAM, "seq": 2**63},
        {"stream": [STREAM], "seq": 101}, {"error": None}, {"error": "full"}, {"error": {}}, {"error": {"code": "503"}}, {"error": [503]},
    ],
)  # fmt: skip
def test_anything_else_is_nothing_of_the_streams(told: Any) -> None:
    assert verdict(told) is None


@pytest.mark.proves("O7")
def test_a_batch_is_acknowledged_by_its_name_and_its_size() -> None:
    batch = AckBatch("b1", 3)
    told = {"stream": STREAM, "seq": 103, "batch": "b1", "count": 3}

    assert verdict(told, batch=batch) == Acknowledgement(103, is_batch=True)
    assert verdict(told | {"seq": 102}, batch=batch) == Doubtful(
        Acknowledgement(102, is_batch=True)
    )
    assert [
        verdict(told | other, batch=batch)
        for other in ({"batch": "b2"}, {"count": 2}, {"batch": None})
    ] == [None, None, None]


@pytest.mark.proves("O7")
def test_an_error_of_the_stream_is_a_rejection() -> None:
    failure = {"code": 503, "err_code": 10_077, "description": "maximum messages exceeded"}

    assert verdict({"error": failure, "stream": STREAM, "seq": 0}) == Rejection(
        10_077, "maximum messages exceeded"
    )
    assert verdict({"error": {"code": 503, "err_code": "x", "description": 7}}) == Rejection(
        None, None
    )


@pytest.mark.proves("O7")
@given(told=ANY_JSON | st.binary(max_size=50), floor=st.none() | st.integers(0, 2**62))
def test_whatever_is_replied_no_sequence_is_believed_that_existed_before(
    told: Any, floor: int | None
) -> None:
    found = verdict(told, floor=floor)

    assert not isinstance(found, Acknowledgement) or (
        floor is not None and floor < found.seq <= floor + AHEAD + 1
    )
