"""Which messages on a request's subject were led there by a client."""

import pytest

from turnfold.bus.answering import is_led
from turnfold.nats_client.corrected import REQUEST_INFO


@pytest.mark.proves("X5")
@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (None, False),
        ('{"acc": "USUPPORT", "user": "USUPPORT", "kind": "Client"}', False),
        ('{"acc": "USUPPORT", "svc": "USUPPORT"}', True),
        ('{"acc": "TURNFOLD"}', True),
        ('{"kind": "Account"}', True),
        ("[]", True),
        ("{", True),
    ],
)
def test_the_info_of_the_server_tells_a_request_from_what_was_led(
    info: str | None, *, expected: bool
) -> None:
    """A reply comes back through the import of another account, or of none."""
    assert is_led(None if info is None else {REQUEST_INFO: info}) == expected
