"""What `turnfold context --explain` says of a message."""

import contextlib
from typing import Any

import pytest

from tests.terminal_output import Terminal
from turnfold.cli.explain import explanations, show_explanations
from turnfold.client import StoredMessage, Window

CALL = {"id": "c-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.proves("L7")
def test_a_late_result_is_missing_because_its_call_left_and_not_for_the_budget() -> None:
    window = Window.of({"agent_id": "ada", "session_id": "late", "messages": []})
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c-1", "content": "late"}

    explained = explanations(
        window, [StoredMessage("e#0", 1, "pending", call), StoredMessage("f#0", 2, "live", result)]
    )

    assert explained[1].shown == "not shown: its call left the window before it came"


@pytest.mark.proves("L7")
def test_a_second_result_is_missing_because_its_call_has_another_and_not_for_lack_of_a_call() -> (
    None
):
    window = Window.of({"agent_id": "ada", "session_id": "odd", "messages": []})
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    results = [{"role": "tool", "tool_call_id": "c-1", "content": text} for text in ("a", "b")]

    explained = explanations(
        window,
        [
            StoredMessage(f"e#{place}", place, "live", message)
            for place, message in enumerate([call, *results])
        ],
    )

    assert explained[2].shown == "not shown: its call has another result"


@pytest.mark.proves("V6")
def test_the_last_of_several_messages_is_called_so_where_long_ids_leave_no_room_for_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    window = Window.of(
        {"agent_id": "ada", "session_id": "ids", "messages": [], "window": {"tokens": 0}}
    )
    ids = [f"{number:026}#0" for number in range(9)]
    body = {"role": "user", "content": "Go on."}
    out = Terminal()

    with contextlib.redirect_stdout(out):
        messages = [StoredMessage(name, place, "live", body) for place, name in enumerate(ids)]
        show_explanations(explanations(window, messages), window, as_json=False)

    assert f"9 messages  {ids[0]}\n  last {ids[-1]}   state live" in out.getvalue()
