"""Messages of programs are recognized by their beginning."""

from dataclasses import replace

import pytest

from turnfold.core.policy.meta import is_written_by_program
from turnfold.core.policy.presets import PRESETS


@pytest.mark.proves("W12", "I6")
@pytest.mark.parametrize(
    ("prefixes", "said", "is_by_program"),
    [
        ("[cron]; Reflect on", "Reflect on the results.", True),
        ("[cron]; Reflect on", "\n  [cron] It is seven.", True),
        ("[cron]; Reflect on", "Please wait. Reflect on the results.", False),
        ("[cron];; ;", "Where is my order?", False),
        ("", "Where is my order?", False),
    ],
)
def test_a_message_is_a_programs_if_it_begins_like_one(
    prefixes: str, said: str, *, is_by_program: bool
) -> None:
    policy = replace(PRESETS["balanced"], meta_prefixes=prefixes)

    assert is_written_by_program(said, policy) is is_by_program
