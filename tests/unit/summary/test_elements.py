"""Summaries and digests of items: they read the chat view, each thing once."""

import json

import pytest

from tests.histories import assistant, counter, history, tool
from tests.shaped import Json, shaped_session
from turnfold.core.history.gist import named_calls
from turnfold.core.summary.eviction_digest import digest_eviction, digest_messages
from turnfold.core.summary.prompt import message_data
from turnfold.core.summary.source_messages import open_request, sources_of
from turnfold.core.summary.tool_calls.actions import file_changes
from turnfold.messages import EventId, Message, Priority, Role


def turn(number: int) -> list[Json]:
    calls = [
        {"type": "function_call", "call_id": f"{number}{name}", "name": "read", "arguments": "{}"}
        for name in "abcdefgh"
    ]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
        for call in calls
    ]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "secret plan"}]}
    return [{"role": "user", "content": f"Check {number}."}, thought, *calls, *outputs]


@pytest.mark.proves("G1", "S2")
def test_a_summarizer_reads_a_response_as_one_message() -> None:
    session = shaped_session([("responses", turn(1))])

    sources = sources_of(
        (one, session.bodies[one.position], False) for one in session.stored.messages
    )

    assert [source.role for source in sources] == ["user", "assistant", *["tool"] * 8]
    assert len(sources[1].calls) == 8
    assert {source.tool_name for source in sources[2:]} == {"read"}
    assert "secret plan" not in json.dumps(sources)


@pytest.mark.proves("S2", "S6")
def test_a_summarizer_is_told_which_results_of_a_turn_failed() -> None:
    """Frameworks mark them in the message, and a `tool.result` is marked beside it."""
    failed = tool("c1", "No such place.") | {"is_error": True}
    session = history([assistant(None, "c1", "c2"), failed, tool("c2", "A hall.")])

    sources = sources_of(
        (one, session.bodies[one.position], False) for one in session.stored.messages
    )

    assert [source.is_error for source in sources] == [False, True, False]
    assert json.loads(message_data(sources[1]))["error"] is True


@pytest.mark.proves("G1", "I4", "S6", "W10")
@pytest.mark.parametrize(
    ("call", "told", "file", "priority"),
    [
        (
            {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "src/a.py"}},
            "apply_patch(src/a.py)", ("src/a.py", "modified"), Priority.NORMAL,
        ),
        (
            {"type": "shell_call", "action": {"commands": ["cat src/a.py", "ls"], "timeout_ms": 9}},
            "shell(cat src/a.py; ls)", ("src/a.py", "read"), Priority.LOW,
        ),
        (
            {"type": "local_shell_call", "action": {"type": "exec", "command": ["cat", "src/a.py"]}},
            "local_shell(cat src/a.py)", ("src/a.py", "read"), Priority.LOW,
        ),
    ],
)  # fmt: skip
def test_tools_of_the_provider_are_told_by_their_command_or_their_file(
    call: Json, told: str, file: tuple[str, str], priority: Priority
) -> None:
    session = shaped_session([("responses", [{**call, "call_id": "c1"}])])
    (message,) = session.stored.messages
    sources = sources_of([(message, session.bodies[message.position], False)])

    assert [item.text for item in named_calls(message)] == [told]
    assert [(one.path, one.action) for one in file_changes(None, sources)] == [file]
    assert message.priority is priority


@pytest.mark.proves("G1", "W3")
def test_a_digest_spends_no_line_on_joined_items() -> None:
    session = shaped_session([("responses", turn(number)) for number in range(4)])
    evicted = session.stored.messages

    quoted = digest_messages(evicted)
    text, _ = digest_eviction(evicted, session.bodies, count=counter())

    assert len(quoted) == 8
    assert all(f"Check {number}." in text for number in range(4))


@pytest.mark.proves("I2", "S2", "S11")
@pytest.mark.parametrize(
    "said",
    [
        {"content": None, "refusal": "Port 8443 stays."},
        {"content": [{"type": "refusal", "refusal": "Port 8443 stays."}]},
        {"content": None, "audio": {"id": "audio_1", "transcript": "Port 8443 stays."}},
        {"content": "", "refusal": None, "audio": {"transcript": "Port 8443 stays."}},
    ],
)
def test_a_refusal_and_a_transcript_of_speech_are_read_and_answer_the_request(said: Json) -> None:
    chat = [{"role": "user", "content": "Open port 80."}, {"role": "assistant", **said}]
    session = history(chat)
    evicted = [(one, session.bodies[one.position], False) for one in session.stored.messages]

    sources = sources_of(evicted)

    assert [source.text for source in sources] == ["Open port 80.", "Port 8443 stays."]
    assert open_request(None, evicted, ()) is None
    assert open_request(None, evicted[:1], chat[1:]) is None


@pytest.mark.proves("I2", "S2")
def test_a_prompt_can_be_sent_whatever_name_a_result_has() -> None:
    message = Message(1, EventId("e1"), 1, Role.TOOL, 9)
    body = {"role": "tool", "tool_call_id": "c1", "name": "read\ud800\x00", "content": "1"}

    (source,) = sources_of([(message, json.dumps(body), False)])

    assert source.tool_name == "read"
    message_data(source).encode()
