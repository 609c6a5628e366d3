"""How recalled messages are told, and that a block never takes more than was planned."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.histories import assistant, counter, history, tool, user
from turnfold.core.recall.block import (
    FRAME_TOKENS,
    HEADING,
    LEAST_ROOM,
    TAG,
    RecalledMessage,
    write_block,
)
from turnfold.core.text.tokens import MESSAGE_TOKENS
from turnfold.messages import Json

Body = dict[str, Any]


def recalled(bodies: Sequence[Json], times: Sequence[str] = ()) -> list[RecalledMessage]:
    stored = history([dict(body) for body in bodies]).stored.messages
    return [
        RecalledMessage(message, 3 * number, said_at, body)
        for number, (message, body, said_at) in enumerate(
            zip(stored, bodies, [*times, *["2026-11-20 10:00"] * len(bodies)], strict=False)
        )
    ]


@pytest.mark.proves("F2")
def test_the_frame_costs_what_it_says() -> None:
    """It is counted, not bounded: in a small window every token of it costs a word."""
    frame = MESSAGE_TOKENS + counter()(f"{HEADING}\n<{TAG}>\n\n</{TAG}>")

    assert frame <= FRAME_TOKENS <= frame + 4


@pytest.mark.proves("F2")
def test_a_heading_names_the_day_and_the_minute_only_where_they_are_others() -> None:
    times = ["2026-11-20 10:00", "2026-11-20 10:00", "2026-11-20 10:05", "2026-11-21 10:05"]
    told = recalled([user(f"Word {number}.") for number in range(4)], times)

    block = write_block(told, (), 1_000)

    assert block is not None
    headings = [line for line in block.text.split("\n") if line.startswith("[")]
    at = [one.position for one in told]
    assert headings == [
        f"[{at[0]}, 2026-11-20 10:00]",
        f"[{at[1]}]",
        f"[{at[2]}, 10:05]",
        f"[{at[3]}, 2026-11-21 10:05]",
    ]


TEXTS = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(["lantern ", "42", "\n", "</turnfold-recall>", "[INST]", "漢字", "  ", "Ünïcödé", "é́", "'s", "...", "{}"])).map("".join),
)  # fmt: skip
NAMES = st.sampled_from([None, "Melanie", "a-very-long-name-of-an-agent-0123456789", "李小龙"])


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    role = draw(st.sampled_from(["user", "assistant", "parts"]))
    text, name = draw(TEXTS), draw(NAMES)
    body: Body = dict(user(text) if role == "user" else assistant(text))
    if role == "parts":
        body = {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}  # fmt: skip
    return body | ({"name": name} if name else {})


@pytest.mark.proves("F2", "L6")
@settings(deadline=None, max_examples=200)
@given(
    said=st.lists(bodies(), min_size=1, max_size=6),
    calls=st.integers(0, 3),
    tool_name=st.sampled_from(["read", "mcp__a_server_with_a_long_name__and_a_longer_tool"]),
    times=st.lists(st.sampled_from(["2026-11-20 10:00", "2026-11-20 23:59", "2025-01-01 00:00"]), max_size=9),
    room=st.integers(LEAST_ROOM, 900),
)  # fmt: skip
def test_a_block_never_takes_more_tokens_than_it_says(
    said: list[Body], calls: int, tool_name: str, times: list[str], room: int
) -> None:
    """The window is planned with the size that the block names."""
    rounds: list[Json] = []
    for number in range(calls):
        arguments = json.dumps({"path": f"/srv/part_{number}.py"})
        rounds += [
            assistant(None, f"c{number}", name=tool_name, arguments=arguments),
            tool(f"c{number}", "def f(): ...\n" * number),
        ]
    told = recalled([*said, *rounds], times)

    block = write_block(told, (), room)

    if block is not None:
        assert MESSAGE_TOKENS + counter()(block.text) <= block.tokens <= room
