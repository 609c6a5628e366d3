"""Hints on the wire, and those that wait."""

import pytest

from turnfold.bus.hints import PendingHints
from turnfold.contracts.hints import BudgetHint, read_hint, write_hint
from turnfold.contracts.signals import SIGNAL_BYTES
from turnfold.messages import AgentId, SessionId, SessionKey

KEY = SessionKey(AgentId("a.b *"), SessionId("s>1"))
PAYLOAD = b'{"budget_tokens": 8000, "folded": 25}'


def key(agent_id: str, session_id: str = "s") -> SessionKey:
    return SessionKey(AgentId(agent_id), SessionId(session_id))


@pytest.mark.proves("E8", "X2")
def test_a_hint_names_its_session_in_the_subject_alone() -> None:
    subject, payload = write_hint(KEY, BudgetHint(8_000, 25))

    assert (subject, payload) == ("turnfold.asked.a%2Eb%20%2A.s%3E1", PAYLOAD)
    assert read_hint(subject, payload) == (KEY, BudgetHint(8_000, 25))
    assert read_hint(subject, b'{"budget_tokens": 1, "later": {}}') == (KEY, BudgetHint(1))


@pytest.mark.proves("E8", "O7")
@pytest.mark.parametrize(
    ("subject", "payload"),
    [
        ("turnfold.asked.ada", PAYLOAD),
        ("turnfold.asked.ada.s.t", PAYLOAD),
        ("turnfold.asked.a%2.s", PAYLOAD),
        ("turnfold.ingested", PAYLOAD),
        ("turnfold.asked.ada.s", b""),
        ("turnfold.asked.ada.s", b"\xff\x00"),
        ("turnfold.asked.ada.s", b"[" * 4_000),
        ("turnfold.asked.ada.s", b"[8000]"),
        ("turnfold.asked.ada.s", b"{}"),
        ("turnfold.asked.ada.s", b'{"budget_tokens": 0}'),
        ("turnfold.asked.ada.s", b'{"budget_tokens": -1}'),
        ("turnfold.asked.ada.s", b'{"budget_tokens": true}'),
        ("turnfold.asked.ada.s", b'{"budget_tokens": 8e3}'),
        ("turnfold.asked.ada.s", b'{"budget_tokens": 9007199254740993}'),
        ("turnfold.asked.ada.s", b'{"budget_tokens": 8000, "folded": null}'),
        ("turnfold.asked.ada.s", PAYLOAD + b" " * SIGNAL_BYTES),
    ],
)
def test_what_is_no_hint_is_ignored(subject: str, payload: bytes) -> None:
    assert read_hint(subject, payload) is None


@pytest.mark.proves("E8")
def test_hints_keep_their_order_and_the_same_budget_is_one_hint() -> None:
    pending = PendingHints()
    for hint in (BudgetHint(200), BudgetHint(3, 5), BudgetHint(3), BudgetHint(200, 4)):
        assert pending.add(key("ada"), hint)
    pending.add(key("eve"), BudgetHint(7))

    assert len(pending) == 3
    assert pending.take(1) == {key("ada"): (BudgetHint(200, 4), BudgetHint(3, 5))}
    assert pending.take(9) == {key("eve"): (BudgetHint(7),)}
    assert len(pending) == 0


@pytest.mark.proves("E8", "X6")
def test_one_agent_leaves_room_for_the_hints_of_others() -> None:
    pending = PendingHints(most=10, each=4)
    taken = [pending.add(key("eve", f"s-{number}"), BudgetHint(7)) for number in range(9)]
    others = [pending.add(key(f"a-{number}"), BudgetHint(7)) for number in range(9)]

    assert (sum(taken), sum(others), len(pending)) == (4, 6, 10)
    pending.take(4)
    assert pending.add(key("eve"), BudgetHint(7))
