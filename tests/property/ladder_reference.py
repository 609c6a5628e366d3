"""Windows of generated sessions, and what the steps of the ladder look at, told anew."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from hypothesis import strategies as st

from tests.histories import History, Said, assistant, history, tool, user, words
from turnfold.core.policy.presets import Policy
from turnfold.core.window.budget_shares import WindowLimits, WindowLimitsByActivity
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.forms import (
    STAND_IN_TOKENS,
)
from turnfold.core.window.framing import Placement
from turnfold.core.window.prefix import WindowPrefix
from turnfold.core.window.views import BlockView, MessageView
from turnfold.messages import Priority

POLICY = Policy(
    tool_result_max_chars=400,
    user_max_chars=700,
    assistant_max_chars=500,
    arguments_max_tokens=50,
    result_max_tokens=60,
    preview_tokens=50,
    keep_tool_blocks=2,
)
SHORT = ("ok", "x" * 30, *[words(tokens) for tokens in (20, 60, 110)])
"""Texts without token offsets: no step can shorten them by a little."""

LONG = (*SHORT, words(200), words(700), "漢字の長い文。" * 120, "x" * 1_500, "a,b;\n" * 400)


class Reference(NamedTuple):
    """The change of a step to one message, and the tokens that it frees."""

    block: BlockView
    view: MessageView
    freed: int


def spoken(random: Random, texts: Sequence[str]) -> Said:
    """A user, an answer with reasoning, calls, or a result."""
    text, priority = random.choice(texts), random.choice(list(Priority))
    kind = random.choice(
        ("user", "user", "meta", "assistant", "calls", "calls", "tool", "tool", "tool")
    )
    ids = random.sample(("a", "b", "c"), random.randint(1, 2))
    if kind in ("user", "meta"):
        return Said(user(text), is_meta=kind == "meta", priority=priority)
    if kind == "tool":
        return Said(tool(ids[0], text), priority=priority, is_truncated=random.random() < 0.2)
    arguments = random.choice(('{"at":1}', '{"path":"src/app.py"}', f'{{"text":"{"a b " * 90}"}}'))
    more = (
        {"reasoning_content": random.choice(("short", words(700)))} if random.random() < 0.5 else {}
    )
    return Said(
        assistant(text, *(ids if kind == "calls" else ()), arguments=arguments, **more),
        priority=priority,
    )


def sessions(
    texts: Sequence[str], *, pending: bool = False, least: int = 1
) -> st.SearchStrategy[History]:
    """Sessions of some 24 messages that say these."""

    def made(random: Random, length: int) -> History:
        said = [spoken(random, texts) for _ in range(length)]
        gone = random.randint(0, length) if pending else 0
        return history([replace(one, is_pending=place < gone) for place, one in enumerate(said)])

    return st.builds(made, st.randoms(use_true_random=False), st.integers(least, least + 23))


def grown(
    session: History, share: float, policy: Policy = POLICY, *, tells_omitted: bool = False
) -> tuple[WindowBuilder, int]:
    """The whole session as a window that nobody trimmed, and the tokens it is to come down to."""
    stored = session.stored
    total = sum(message.tokens for message in stored.messages)
    limits = WindowLimits(
        tokens=max(1, int(total * share)),
        target_tokens=max(1, int(total * share)),
        arrival_tokens=max(1, int(total * share)),
        arrival_target_tokens=max(1, int(total * share)),
        summary_tokens=max(1, int(total * share)),
        messages=10_000,
        target_messages=10_000,
    )
    prefix = WindowPrefix(
        pinned=None,
        summary=None,
        placement=Placement.SEPARATE,
        pending={row.compaction_id: row for row in stored.pending},
    )
    by_activity = WindowLimitsByActivity(limits, limits)
    window = WindowBuilder(by_activity, policy, prefix, tells_omitted=tells_omitted)
    window.extend(stored.messages)
    return window, limits.target_tokens


def shares() -> st.SearchStrategy[float]:
    return st.floats(0.01, 1.1)


def sum_of(window: WindowBuilder) -> int:
    """The tokens of a window, added up anew."""
    shown = [block for block in window.blocks if block.is_shown]
    views = sum(view.tokens for block in shown for view in block.views)
    return (
        views
        + window.digest.tokens
        + STAND_IN_TOKENS * sum(result is None for block in shown for result in block.results)
    )


def in_order(found: Sequence[Reference]) -> list[Reference]:
    """LOW before NORMAL before HIGH, the oldest first."""
    return sorted(found, key=lambda one: (one.view.message.priority, one.view.message.position))


def until_enough(found: Sequence[Reference], total: int, target: int) -> set[int]:
    """The positions of those that are acted on, one after the other, until the target is met."""
    acted: set[int] = set()
    for one in found:
        if total <= target:
            break
        acted.add(one.view.message.position)
        total -= one.freed
    return acted


def views_of(window: WindowBuilder) -> list[tuple[BlockView, MessageView]]:
    """Every message of every block that may be trimmed."""
    return [
        (block, view)
        for block in window.blocks
        if not window.is_protected(block)
        for view in block.views
    ]


def acted_on(window: WindowBuilder, is_acted: Callable[[MessageView], bool]) -> set[int]:
    return {
        view.message.position for block in window.blocks for view in block.views if is_acted(view)
    }
