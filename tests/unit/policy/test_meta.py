"""Messages of programs are recognized by their beginning, in whatever way their JSON is written."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.policy.meta import is_written_by_program, may_be_written_by_program
from turnfold.core.policy.presets import PRESETS
from turnfold.core.text.tokens import text_of

CHARACTERS = 'ab <"\\/\n\té記\ud83d;'
WRITERS: tuple[Callable[[object], str], ...] = (
    json.dumps,
    lambda message: json.dumps(message, ensure_ascii=False),
    lambda message: json.dumps(message, ensure_ascii=False).replace("/", "\\/"),
    lambda message: json.dumps(message).replace("a", "\\u0061"),
)
TEXTS = st.text(alphabet=CHARACTERS, max_size=6)


@given(TEXTS, st.lists(TEXTS, max_size=3), st.sampled_from(WRITERS))
def test_no_message_of_a_program_is_passed_over_unread(
    prefixes: str, parts: list[str], write: Callable[[object], str]
) -> None:
    policy = replace(PRESETS["balanced"], meta_prefixes=prefixes)
    for content in ("".join(parts), [{"type": "text", "text": part} for part in parts]):
        message = {"role": "user", "content": content}
        if is_written_by_program(text_of(message), policy):
            assert may_be_written_by_program(write(message), policy)


@pytest.mark.parametrize(
    ("body", "may_be"),
    [
        ('{"role": "user", "content": "Fix the tests, please."}', False),
        ('{"role": "user", "content": " Reflect on the results and decide what is next."}', True),
        (r'{"role": "user", "content": "\u0052eflect on the results"}', True),
    ],
)
def test_only_messages_that_may_be_a_programs_are_read(body: str, may_be: bool) -> None:
    assert may_be_written_by_program(body, PRESETS["balanced"]) is may_be


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
