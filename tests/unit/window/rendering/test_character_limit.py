"""Budgets in characters."""

import json

from turnfold.core.window.rendering.character_limit import characters_of
from turnfold.core.window.rendering.render import Rendered
from turnfold.messages import MessageId


def test_the_summary_counts_where_it_stands_beside_the_messages() -> None:
    rendered = Rendered(
        messages=(json.dumps({"role": "user", "content": "12345"}),),
        message_ids=(MessageId("e1#0"),),
        summary_text="1234567",
        ledger=("123", "1234"),
    )

    assert characters_of(rendered, with_summary=False) == 5
    assert characters_of(rendered, with_summary=True) == 5 + 7 + 7
