"""Hints that wait to be sent, or to be acted upon: few, and a share of them per agent."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from turnfold.contracts.hints import BudgetHint
from turnfold.messages import SessionKey

HINTS_AT_MOST: Final = 1_000
HINTS_PER_AGENT: Final = 100


class PendingHints:
    """Hints by session, in order of arrival. More than the limits are dropped."""

    def __init__(self, most: int = HINTS_AT_MOST, each: int = HINTS_PER_AGENT) -> None:
        self._most = most
        self._each = each
        self._waiting: dict[SessionKey, dict[int, BudgetHint]] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, key: SessionKey, hint: BudgetHint) -> bool:
        """Add a hint, or merge it with the one of the same budget; return whether it waits now."""
        budgets = self._waiting.get(key, {})
        if (earlier := budgets.get(hint.tokens)) is not None:
            budgets[hint.tokens] = max(earlier, hint)
            return True
        if len(self) >= self._most or self._counts[key.agent_id] >= self._each:
            return False
        self._waiting.setdefault(key, budgets)[hint.tokens] = hint
        self._counts[key.agent_id] += 1
        return True

    def take(self, sessions: int) -> Mapping[SessionKey, Sequence[BudgetHint]]:
        """Remove and return the hints of the sessions that waited longest."""
        taken = {
            key: tuple(self._waiting[key].values()) for key in list(islice(self._waiting, sessions))
        }
        for key, hints in taken.items():
            del self._waiting[key]
            self._counts[key.agent_id] -= len(hints)
        # Unary plus drops the agents without hints, whose names the counter would keep.
        self._counts = +self._counts
        return taken
