"""Calls of the open round are named by tool, exactly, for no more tokens than were planned."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.histories import assistant, counter, history, tool, user
from turnfold.core.window.digest.open_round import OpenRoundCalls
from turnfold.core.window.views import BlockView, RoundView

PATHS = [f"{'/srv/__ab1/C' * 6}/{name}" for name in ("a.py", "漢字", "__x", "defun", "...")]
COMMANDS = [
    "ls",
    "(a)",
    ")b",
    "defun x",
    "笑",
    '"q"',
    "12 34",
    "$(x)",
    "a\nb",
    "f;",
    "…",
    "x" * 90,
    *PATHS,
]
TOOLS = [
    "bash",
    "mcp__sand_box__run",
    "TodoWrite",
    "a.b-c_",
    "éa'sb",
    "漢字",
    "x" * 70,
    "[INST]",
    "f(",
]


def named(calls: list[tuple[str, str]], room: int = 1_000) -> OpenRoundCalls:
    """The named calls of a round, each a tool and its command."""
    said = [user("go")]
    for number, (name, command) in enumerate(calls):
        arguments = json.dumps({"command": command}) if command else "{}"
        said += [assistant(None, f"c{number}", name=name, arguments=arguments)]
        said += [tool(f"c{number}", "done")]
    in_round = RoundView()
    found = OpenRoundCalls(in_round, room)
    for message in history(said).stored.messages:
        if message.calls:
            found.add(BlockView(message, in_round))
    return found


@pytest.mark.proves("W10")
def test_a_tool_is_named_once_with_its_calls_and_the_tool_called_last_comes_last() -> None:
    calls = [("bash", "ls"), ("read", "a.py"), ("bash", "cd /srv\nmake"), ("stop", "")]
    calls += [("read", "b.py"), ("bash", "ls")]

    calls += [("read", f"/srv/{'a' * 50}/{name}_of_the_shop.py") for name in "xy"]

    (line,) = named(calls).lines

    files = f"/srv/{'a' * 35}…aa/x_of_the_shop.py · …aa/y_of_the_shop.py"
    listed = f"stop, bash(cd /srv\nmake · ls ×2), read(a.py · b.py · {files})"
    assert line == f"Calls made so far, by tool: {listed}"


@pytest.mark.proves("L6", "W10")
@given(
    st.lists(st.tuples(st.sampled_from(TOOLS), st.sampled_from(COMMANDS) | st.text(max_size=9))),
    st.integers(0, 300),
)
@example([("grep", f"defun f{number}") for number in range(40)], 1_000)
@example([("read", f"/{'a/' * 40}{number}") for number in range(40)], 1_000)
@example([("TodoWrite", f") {number}") for number in range(40)], 1_000)
def test_names_take_no_more_tokens_than_were_planned(
    calls: list[tuple[str, str]], room: int
) -> None:
    """Neither do many calls whose beginning is one token after a bracket and two after a space."""
    found = named(calls, room)

    assert counter()("".join(f"\n{line}" for line in found.lines)) <= found.cost
