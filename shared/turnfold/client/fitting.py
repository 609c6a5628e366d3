"""Fit messages into a budget, with the notes of earlier windows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from turnfold.client.provider import ContextBudget
from turnfold.core.recovery.assembler import leading_count
from turnfold.core.recovery.compressor import Compressed, Compressor
from turnfold.core.window.window import EMERGENCY_FIFTHS, emergency_budget
from turnfold.errors import CannotFit


def fit(
    notes: Sequence[dict[str, Any]],
    rest: Sequence[dict[str, Any]],
    budget: ContextBudget,
    compressor: Compressor,
) -> Compressed:
    """Trim the messages to the budget that the notes leave, and insert the notes.

    If both do not fit, the notes are left out.
    """
    compress = partial(compressor.compress, rest, is_emergency=budget.is_emergency)
    if notes:
        notes_tokens = compressor.tokens(notes)
        left = max(0, most_tokens(budget) - notes_tokens)
        # The compressor takes three fifths of an emergency budget: it gets five thirds of the rest.
        with suppress(CannotFit):
            fitted = compress(emergency_budget(left) if budget.is_emergency else left)
            systems = leading_count(fitted.messages)
            messages = [*fitted.messages[:systems], *notes, *fitted.messages[systems:]]
            return replace(fitted, messages=messages, tokens=fitted.tokens + notes_tokens)
    return compress(budget.budget_tokens)


def most_tokens(budget: ContextBudget) -> int:
    """Return the most tokens of messages; three fifths of an emergency budget."""
    return (
        budget.budget_tokens * EMERGENCY_FIFTHS // 5
        if budget.is_emergency
        else budget.budget_tokens
    )
