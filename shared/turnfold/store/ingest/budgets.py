"""Store the budgets of requested windows, and evict if the largest is too small."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence

from sqlalchemy import Connection

from turnfold.contracts.hints import BudgetHint
from turnfold.core.eviction.budgets import (
    AskedBudget,
    budgets_json,
    follows_budget,
    is_remembered,
    minds_reading,
    with_budget,
)
from turnfold.core.eviction.triggers import triggers_of_hints
from turnfold.core.policy.presets import Policy
from turnfold.messages import SessionKey
from turnfold.ports.ingest import Installation
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.session_rows import (
    SessionChange,
    SessionJournal,
    SessionRow,
    lock_by_key,
)
from turnfold.store.ingest.evict import evict_now, window_of


class SqlBudgetStore(SqlStore):
    """Remember the budgets that windows were asked with."""

    async def follow(
        self,
        hints: Mapping[SessionKey, Sequence[BudgetHint]],
        *,
        installation: Installation,
        now_ms: int,
    ) -> int:
        """Remember budgets, and evict what they make due; return how many compactions opened.

        One transaction, unless a session fails. Sessions that do not exist, or whose policy does
        not follow budgets, are left alone. `hints` of a session are in the order in which its
        windows were asked for.
        """

        def write(keys: Sequence[SessionKey]) -> Awaitable[int]:
            chosen = {key: hints[key] for key in keys}
            return self._database.write(
                lambda connection: _follow(connection, chosen, installation, now_ms)
            )

        return sum(await self._aside.together(self._aside.others(hints), write))


def _follow(
    connection: Connection,
    hints: Mapping[SessionKey, Sequence[BudgetHint]],
    installation: Installation,
    now_ms: int,
) -> int:
    journal = SessionJournal()
    changed: list[SessionRow] = []
    opened = 0
    for key, session in lock_by_key(connection, hints).items():
        # Both clocks are close to each other, and a window shows the newest event.
        at_ms = max(now_ms, session.last_event_at_ms or 0)
        policy = session.policy(installation)
        if not follows_budget(policy):
            if minds_reading(policy) and not session.budgets:
                session.asked_budgets = budgets_json((AskedBudget(at_ms, 0),))
                changed.append(session)
            continue
        is_changed = _remember(session, hints[key], policy, at_ms)
        fired = triggers_of_hints(
            session.budgets,
            hints[key],
            session.load,
            policy,
            model_window=window_of(session, policy, installation),
            at_ms=at_ms,
        )
        compaction = None
        if fired:
            change = SessionChange(connection, session, journal, at_ms)
            compaction = evict_now(change, fired[0], installation)
        opened += compaction is not None
        if is_changed or compaction is not None:
            changed.append(session)
    journal.write(connection, changed)
    return opened


def _remember(session: SessionRow, hints: Iterable[BudgetHint], policy: Policy, at_ms: int) -> bool:
    """Add budgets to those of a locked session; return whether that changes its row."""
    budgets = session.budgets
    for hint in hints:
        if not is_remembered(budgets, hint.tokens, policy, at_ms=at_ms):
            budgets = with_budget(budgets, AskedBudget(at_ms, hint.tokens), policy)
    before, session.asked_budgets = session.asked_budgets, budgets_json(budgets)
    return session.asked_budgets != before
