"""Sentences that say why a request is refused."""

import pytest

from turnfold.contracts.catalog import REQUESTS
from turnfold.contracts.reading import read_request
from turnfold.errors import BadRequest


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"after": "x"}', "after: Input should be a valid integer; or: Input should be 'latest'"),
        (b'{"wait_ms": "x"}', "wait_ms: Input should be a valid integer"),
    ],
)
def test_a_fault_names_the_field_and_what_it_may_hold(body: bytes, told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_request(REQUESTS["history.get"].request, body)

    assert str(caught.value) == told
