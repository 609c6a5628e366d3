"""Hints: what a query server tells a worker of a window. A lost hint does no harm.

A hint travels on `turnfold.asked.<agent>.<session>` as `{"budget_tokens": 8000, "folded": 25}`.
"""

import json
from typing import NamedTuple

from turnfold.contracts.signals import read_signal
from turnfold.contracts.subjects import ASKED, session_subject
from turnfold.messages import MOST_EXACT, SessionKey


class BudgetHint(NamedTuple):
    """The budget of a window, and how many live messages the window left out because of it."""

    tokens: int
    folded: int = 0


def write_hint(key: SessionKey, hint: BudgetHint) -> tuple[str, bytes]:
    """Return the subject and the payload of a hint."""
    payload = {"budget_tokens": hint.tokens, "folded": hint.folded}
    return session_subject(ASKED, key), json.dumps(payload).encode()


def read_hint(subject: str, payload: bytes) -> tuple[SessionKey, BudgetHint] | None:
    """Return the session and the hint; None if this is not a hint. Unknown fields are ignored."""
    key, fields = read_signal(ASKED, subject, payload)
    if not isinstance(key, SessionKey):
        return None
    hint = BudgetHint(fields.get("budget_tokens", 0), fields.get("folded", 0))
    # Not `isinstance`, for which true and false are numbers.
    is_valid = all(type(number) is int and 0 <= number <= MOST_EXACT for number in hint)
    return (key, hint) if is_valid and hint.tokens else None
