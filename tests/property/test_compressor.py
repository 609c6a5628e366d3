"""Every list, at every budget: what the plain library makes of it may be sent and fits, or is refused with what would."""

from copy import deepcopy

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.histories import Said, counter
from tests.property.test_window import budgets, spoken
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.presets import PRESETS
from turnfold.core.recovery.compressor import LadderCompressor
from turnfold.errors import CannotFit


@pytest.mark.proves("W8", "L5", "L6")
@given(st.lists(spoken(), max_size=20), budgets, st.booleans(), st.sampled_from(sorted(PRESETS)))
def test_every_list_is_made_sendable_within_its_budget_or_refused(
    said: list[Said], budget: int, is_emergency: bool, preset: str
) -> None:
    compressor = LadderCompressor(counter(), PRESETS[preset])
    messages = [one.body for one in said]
    given = deepcopy(messages)

    needed = budget
    try:
        compressed = compressor.compress(messages, budget, is_emergency=is_emergency)
    except CannotFit as refused:
        assume(refused.needed_messages is None)
        needed = refused.needed_tokens or 0
        compressed = compressor.compress(messages, needed, is_emergency=is_emergency)

    assert messages == given
    assert needed >= budget
    assert validation_errors(compressed.messages) == []
    assert (
        compressor.tokens(compressed.messages)
        <= compressed.tokens
        <= (needed * 3 // 5 if is_emergency else needed)
    )
    assert compressed.messages or not any(body["role"] != "tool" for body in messages)
