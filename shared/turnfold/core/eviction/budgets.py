"""The budgets of requested windows; the largest recent one decides when messages leave.

The query service reports them with hints, and a worker stores them in the session's row. A
budget is dropped if a later one is at least as large, so that a session has few. The last one loses
its tokens when it expires, but stays, because any budget shows that windows were requested.
"""

import json
from functools import lru_cache
from typing import Final, NamedTuple

from turnfold.contracts.hints import BudgetHint
from turnfold.core.policy.presets import Mode, Policy
from turnfold.core.policy.retention import DAY_MS

BUDGETS_AT_MOST: Final = 8
"""The most budgets of a session that are remembered at once."""


class AskedBudget(NamedTuple):
    """The budget of a window, in tokens of the model, and when it was requested (ms since 1970)."""

    at_ms: int
    tokens: int


Budgets = tuple[AskedBudget, ...]
"""Budgets by time, from the largest and oldest to the smallest and newest."""

NO_BUDGETS: Final[Budgets] = ()


def follows_budget(policy: Policy) -> bool:
    """Return whether the budgets of requested windows can make messages leave."""
    return policy.follow_budget and policy.mode is Mode.AUTO


def minds_reading(policy: Policy) -> bool:
    """Return whether messages leave earlier until the first window is requested."""
    return policy.mode is Mode.AUTO and policy.max_unread_messages > 0


def largest_budget(budgets: Budgets, policy: Policy, *, at_ms: int) -> int:
    """Return the largest budget that is remembered at a time, in tokens; 0 without one."""
    if not follows_budget(policy):
        return 0
    recent = recent_budgets(budgets, policy, at_ms=at_ms)
    return max((budget.tokens for budget in recent), default=0)


def with_budget(budgets: Budgets, asked: AskedBudget, policy: Policy) -> Budgets:
    """Return the budgets to remember after one more, without those that have expired by then.

    Above `BUDGETS_AT_MOST`, the two newest become one that is as large and lasts as long as either.
    """
    recent = recent_budgets(budgets, policy, at_ms=asked.at_ms)
    # An older budget that is not larger expires earlier, and so never decides.
    kept = [budget for budget in recent if budget.tokens > asked.tokens]
    if len(kept) == BUDGETS_AT_MOST:
        asked = asked._replace(tokens=kept.pop().tokens)
    return (*kept, asked)


def is_remembered(budgets: Budgets, tokens: int, policy: Policy, *, at_ms: int) -> bool:
    """Return whether a budget needs no new entry: one as large is valid for half of its time."""
    since_ms = at_ms - 500 * policy.budget_memory_seconds
    return any(
        budget.tokens >= tokens and since_ms <= budget.at_ms <= at_ms + DAY_MS for budget in budgets
    )


def is_hint_due(budgets: Budgets, hint: BudgetHint, policy: Policy, *, at_ms: int) -> bool:
    """Return whether a worker needs a hint about a window.

    It needs the budget, and whether the largest recent one did not suffice. So each window repeats
    the hint until the worker has acted on one. Even if budgets have no effect, the first window of
    a session needs a hint, because some limits apply only until then.
    """
    if not follows_budget(policy):
        return minds_reading(policy) and not budgets
    if hint.folded and hint.tokens >= largest_budget(budgets, policy, at_ms=at_ms):
        return True
    return not is_remembered(budgets, hint.tokens, policy, at_ms=at_ms)


def recent_budgets(budgets: Budgets, policy: Policy, *, at_ms: int) -> Budgets:
    """Return the budgets that are still remembered at a time.

    One that is more than a day later was requested while a clock was ahead.
    """
    since_ms = at_ms - 1_000 * policy.budget_memory_seconds
    return tuple([budget for budget in budgets if since_ms <= budget.at_ms <= at_ms + DAY_MS])


def without_forgotten(budgets: Budgets, policy: Policy, *, at_ms: int) -> Budgets:
    """Return the budgets that have not expired, or one of 0 tokens: windows were requested."""
    recent = recent_budgets(budgets, policy, at_ms=at_ms)
    return recent or tuple([budget._replace(tokens=0) for budget in budgets[-1:]])


@lru_cache(maxsize=1_024)
def read_budgets(stored: str | None) -> Budgets:
    """Return the budgets of a session from the JSON of its row."""
    return tuple(AskedBudget(*budget) for budget in json.loads(stored)) if stored else NO_BUDGETS


def budgets_json(budgets: Budgets) -> str | None:
    """Return the budgets as JSON for the session's row; None without any."""
    return json.dumps(budgets, separators=(",", ":")) if budgets else None
