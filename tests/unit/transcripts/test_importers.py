"""The logs of other programs, each as it is written by that program."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from turnfold.cli.recordings import Step, events_of, load_recordings, units
from turnfold.messages import Shape
from turnfold.transcripts import Conversation, Format, UnreadableTranscript, read_conversations

LOGS = Path(__file__).parents[3] / "examples" / "logs"


def read(name: str, form: Format | None = None) -> tuple[Conversation, dict[str, int]]:
    """The one conversation of a shipped log, and what is not in it."""
    left_out: Counter[str] = Counter()
    (conversation,) = read_conversations(LOGS / name, form, left_out=left_out)
    return conversation, {kind: count for kind, count in left_out.items() if count}


def write(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def kinds(conversation: Conversation) -> list[str]:
    return [
        message["role"] if message.get("type", "message") == "message" else message["type"]
        for message in conversation.messages
    ]


@pytest.mark.proves("G11")
def test_a_rollout_of_codex_is_its_items_without_those_taken_back() -> None:
    conversation, left_out = read("codex.jsonl")

    assert conversation.conversation_id == "0199b1c2-7d10-7c41-9a55-3f2e8c6a1b04"
    assert (conversation.agent, conversation.model) == ("codex", "gpt-5-codex")
    assert conversation.shape is Shape.RESPONSES
    assert kinds(conversation) == [
        "developer",
        "user",
        "user",
        "reasoning",
        *["function_call"] * 2,
        *["function_call_output"] * 2,
        "assistant",
        "user",
        "custom_tool_call",
        "custom_tool_call_output",
        "assistant",
    ]
    assert conversation.messages[3]["encrypted_content"] == "Z2VoZWltIGdlaGVpbQ=="
    assert "Delete the test" not in json.dumps(conversation.messages)
    assert conversation.machine_made == {1}
    assert left_out == {"base instructions": 1, "token_count": 1, "rolled back items": 2}


@pytest.mark.proves("G11")
@pytest.mark.parametrize(
    "texts",
    [
        ["<user_shell_command>\nls\n</user_shell_command>"],
        ['<hook_prompt hook_run_id="1">Go on.</hook_prompt>'],
        ["What is open?", "<external_editor>a.py</external_editor>"],
    ],
)
def test_a_turn_taken_back_in_codex_begins_with_a_text_of_the_user(
    tmp_path: Path, texts: list[str]
) -> None:
    def item(*texts: str) -> dict[str, Any]:
        content = [{"type": "input_text", "text": text} for text in texts]
        message = {"type": "message", "role": "user", "content": content}
        return {"type": "response_item", "payload": message}

    event = {"type": "thread_rolled_back", "num_turns": 1}
    path = write(
        tmp_path / "rollout.jsonl",
        {"type": "session_meta", "payload": {"id": "5973"}},
        item("Why does it fail?"),
        item(*texts),
        item("Delete the test."),
        item(*texts),
        {"type": "event_msg", "payload": event},
    )

    (conversation,) = read_conversations(path)

    assert len(conversation.messages) == 2
    assert conversation.machine_made == {1}


@pytest.mark.proves("G11", "W12")
@pytest.mark.parametrize(
    "text",
    [
        "<skill> is not found. Why?",
        "<external_api>a</external_api> Is this right?",
        "# AGENTS.md instructions are old. Mend them.",
    ],
)
def test_a_text_that_only_begins_like_one_of_codex_is_of_the_user(
    tmp_path: Path, text: str
) -> None:
    path = write(
        tmp_path / "rollout.jsonl",
        {"type": "session_meta", "payload": {"id": "5973"}},
        {
            "type": "response_item",
            "payload": {"type": "message", "role": "user", "content": text},
        },
    )

    (conversation,) = read_conversations(path)

    assert conversation.machine_made == frozenset()


@pytest.mark.proves("G11")
def test_an_old_rollout_has_items_below_its_id(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rollout.jsonl",
        {"id": "5973", "timestamp": "2025-06-01T10:00:00Z", "instructions": None},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "ghost_snapshot", "ghost_commit": {"id": "c0"}},
    )
    left_out: Counter[str] = Counter()

    (conversation,) = read_conversations(path, left_out=left_out)

    assert (conversation.conversation_id, kinds(conversation)) == ("5973", ["user"])
    assert left_out == {"state": 1, "ghost_snapshot": 1}


@pytest.mark.proves("G11")
def test_a_session_of_nanobot_is_what_it_sends_to_models() -> None:
    conversation, left_out = read("nanobot.jsonl")

    assert (conversation.conversation_id, conversation.agent) == ("telegram:4711", "nanobot")
    assert kinds(conversation) == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert conversation.messages[2] == {
        "role": "tool",
        "content": "Last departure 22:40, Sundays 21:10",
        "tool_call_id": "call_ferry",
        "name": "web_fetch",
    }
    assert left_out == {"commands": 1, "messages with media files": 1}


@pytest.mark.proves("G11", "I6")
def test_turns_that_nanobot_began_are_marked(tmp_path: Path) -> None:
    asked, noted = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Noted."}
    path = write(
        tmp_path / "session.jsonl",
        {"_type": "metadata", "key": "telegram:1"},
        *[asked, noted],
        *[asked | {"_automation_turn": {"kind": "cron"}}, noted],
        *[asked | {"_cron_turn": True}, asked | {"_hidden_history": True}],
    )

    (conversation,) = read_conversations(path)

    assert conversation.machine_made == {2, 4, 5}
    assert list(conversation.messages) == [asked, noted, asked, noted, asked, asked]


@pytest.mark.proves("G11")
def test_a_session_of_claude_code_says_what_it_leaves_out() -> None:
    conversation, left_out = read("claude-code.jsonl")

    assert (conversation.agent, conversation.model) == ("claude-code", "claude-sonnet-4-5")
    assert kinds(conversation) == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert conversation.messages[1]["tool_calls"][0]["id"] == "toolu_conf"
    assert left_out == {"file-history-snapshot": 1, "system": 1}


@pytest.mark.proves("G11")
@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"},
            "[document: application/pdf]",
        ),
        (
            {"type": "text", "media_type": "text/plain", "data": "Fares rise in May."},
            "Fares rise in May.",
        ),
    ],
)
def test_a_document_of_claude_code_is_its_text_or_its_kind(
    tmp_path: Path, source: dict[str, str], told: str
) -> None:
    first = json.loads((LOGS / "claude-code.jsonl").read_text().splitlines()[1])
    first["message"]["content"] = [
        {"type": "text", "text": "Read it."},
        {"type": "document", "source": source},
    ]

    (conversation,) = read_conversations(write(tmp_path / "session.jsonl", first))

    assert [message["content"] for message in conversation.messages] == [f"Read it.\n{told}"]


@pytest.mark.proves("G11")
@pytest.mark.parametrize("as_lines", [False, True])
def test_items_of_the_responses_api_stay_items(tmp_path: Path, *, as_lines: bool) -> None:
    request = json.loads((LOGS / "openai-responses.json").read_text())
    items = request["input"]
    path = write(tmp_path / "cabin.json", *(items if as_lines else [items]))

    (listed,) = read_conversations(path)
    conversation, left_out = read("openai-responses.json")

    assert listed.messages == conversation.messages == tuple(items)
    assert listed.shape is conversation.shape is Shape.RESPONSES
    assert (conversation.model, left_out) == ("gpt-4.1", {"instructions": 1})


def test_a_list_of_chat_messages_stays_a_chat() -> None:
    conversation, left_out = read("openai-chat.jsonl")

    assert (conversation.shape, left_out) == (Shape.CHAT, {})
    assert kinds(conversation) == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("values", "form", "cause"),
    [
        ([{"_type": "metadata", "key": "k"}, {"role": "robot"}], None, "line 2: not a record of nanobot: a message"),
        ([{"type": "event_msg", "payload": {}}, 7], None, "line 2: not a record of codex: it is not"),
        ([{"type": "response_item", "payload": {"type": "message"}}], None, "line 1: not a record of codex: a message needs"),
        ([{"type": "summary"}, {"message": {}}], None, "line 2: not a record of claude-code: a record has no type"),
        ([[{"role": "user", "content": "a"}]], Format.TURNFOLD, "line 1: neither a conversation"),
        ([[{"type": "reasoning"}, {"role": "tool"}]], None, "line 1: message 1 cannot be read: a message needs"),
        ([{"type": "reasoning"}, {"type": "message", "role": 7}], None, "line 2: message 1 cannot be read"),
        ([{"id": "a", "messages": []}], Format.CODEX, "line 1: not a record of codex: a message needs"),
        ([{"role": "user", "content": "a"}], Format.CLAUDE_CODE, "line 1: not a record of claude-code"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_file_and_line(
    tmp_path: Path, values: list[Any], form: Format | None, cause: str
) -> None:
    path = write(tmp_path / "log.jsonl", *values)

    with pytest.raises(UnreadableTranscript) as caught:
        list(read_conversations(path, form))

    assert str(caught.value).startswith(f"{path}, {cause}")


def test_a_format_that_is_named_decides(tmp_path: Path) -> None:
    path = write(tmp_path / "old.jsonl", {"role": "user", "content": "a", "timestamp": "t"})

    (conversation,) = read_conversations(path, Format.NANOBOT)

    assert (conversation.agent, conversation.messages) == (
        "nanobot",
        ({"role": "user", "content": "a"},),
    )


# --- events


@pytest.mark.proves("G11")
@pytest.mark.parametrize("step", Step)
def test_the_items_of_one_response_are_in_one_event(step: Step) -> None:
    (recording,) = load_recordings([str(LOGS / "codex.jsonl")])

    events = [json.loads(event.payload) for event, _ in events_of(recording, step)]
    homes = [event["messages"] for event in events]

    assert [item for home in homes for item in home] == list(recording.conversation.messages)
    assert {event["shape"] for event in events} == {"responses"}
    (home,) = (home for home in homes if any(item["type"] == "reasoning" for item in home))
    assert [item["type"] for item in home if "function_call" in item["type"]][:2] == [
        "function_call",
        "function_call",
    ]


def test_chat_messages_are_events_alone_and_responses_are_not() -> None:
    conversation, _ = read("codex.jsonl")

    assert [len(unit) for unit in units(conversation.messages, Shape.RESPONSES)] == [
        *[1, 1, 1],
        3,
        *[1] * 7,
    ]
    assert {len(unit) for unit in units(conversation.messages, Shape.CHAT)} == {1}
