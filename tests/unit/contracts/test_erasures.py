"""Signals of erasures on the wire."""

import pytest

from turnfold.contracts.erasures import ErasedSessions, read_erasure, write_erasure
from turnfold.contracts.signals import SIGNAL_BYTES
from turnfold.messages import AgentId, SessionId, SessionKey

AGENT = AgentId("a.b *")
KEY = SessionKey(AGENT, SessionId("s>1"))


@pytest.mark.proves("A6", "X2")
@pytest.mark.parametrize(
    ("erased", "payload"),
    [
        (ErasedSessions.of(KEY), b'{"session_id": "s>1"}'),
        (ErasedSessions.of(AGENT, "s>"), b'{"prefix": "s>"}'),
        (ErasedSessions.of(AGENT), b'{"prefix": ""}'),
    ],
)
def test_a_signal_names_what_was_erased(erased: ErasedSessions, payload: bytes) -> None:
    subject, written = write_erasure(erased)

    assert (subject, written) == ("turnfold.erased.a%2Eb%20%2A", payload)
    assert read_erasure(subject, payload) == erased
    assert erased.includes(*KEY)
    assert not erased.includes("another", "s>1")


def test_one_session_is_not_all_that_begin_so() -> None:
    assert not ErasedSessions.of(KEY).includes(AGENT, "s>12")
    assert ErasedSessions.of(AGENT, "s>1").includes(AGENT, "s>12")
    assert not ErasedSessions.of(AGENT, "s>1").includes(AGENT, "s")


@pytest.mark.proves("A6", "O7")
@pytest.mark.parametrize(
    ("subject", "payload"),
    [
        ("turnfold.erased", b'{"prefix": ""}'),
        ("turnfold.erased.ada.s", b'{"prefix": ""}'),
        ("turnfold.erased.a%2", b'{"prefix": ""}'),
        ("turnfold.erased.ada", b""),
        ("turnfold.erased.ada", b"\xff\x00"),
        ("turnfold.erased.ada", b"[" * 4_000),
        ("turnfold.erased.ada", b"[]"),
        ("turnfold.erased.ada", b"{}"),
        ("turnfold.erased.ada", b'{"session_id": 7}'),
        ("turnfold.erased.ada", b'{"prefix": ""}' + b" " * SIGNAL_BYTES),
    ],
)
def test_what_is_no_signal_is_ignored(subject: str, payload: bytes) -> None:
    assert read_erasure(subject, payload) is None
