"""Conversation files, whoever wrote them."""

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnfold.transcripts import Conversation, UnreadableTranscript, read_conversations, turns

Write = Callable[..., Path]

USER = {"role": "user", "content": "Where is order 7341?"}
ANSWER = {"role": "assistant", "content": "On its way."}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(*lines: Any, name: str = "talk.jsonl") -> Path:
        path = tmp_path / name
        text = "".join(
            (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n"
            for line in lines
        )
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return written


def read(path: Path | str) -> list[Conversation]:
    return list(read_conversations(path))


def roles(conversation: Conversation) -> list[str]:
    return [message["role"] for message in conversation.messages]


# --- this project's lines, and lists of messages


@pytest.mark.parametrize("name", ["talks.jsonl", "talks.jsonl.gz"])
def test_each_line_is_a_conversation_with_its_id_agent_and_model(write: Write, name: str) -> None:
    path = write(
        {"id": "one", "agent": "support", "model": "gpt-4.1", "messages": [USER, ANSWER]},
        {"id": "two", "agent": None, "model": None, "messages": [USER]},
        name=name,
    )

    one, two = read(path)

    assert (one.conversation_id, one.agent, one.model, one.messages) == (
        "one",
        "support",
        "gpt-4.1",
        (USER, ANSWER),
    )
    assert (two.conversation_id, two.agent, two.model) == ("two", None, None)


@pytest.mark.proves("I2")
def test_messages_come_out_as_they_stand_in_the_file(write: Write) -> None:
    odd = {
        "role": "assistant",
        "content": None,
        "x": [1, {"y": "\u0000 \u2028 語"}],
        "tool_calls": [{"id": "c"}],
        "reasoning_content": "",
    }
    path = write({"id": "odd", "messages": [USER, odd]})

    (conversation,) = read(path)

    assert conversation.messages == (USER, odd)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_messages_is_a_conversation_named_after_its_file(
    write: Write, indent: int | None
) -> None:
    path = write(json.dumps([USER, ANSWER], indent=indent), name="my talk.json")

    (conversation,) = read(path)

    assert (conversation.conversation_id, conversation.messages) == ("my talk", (USER, ANSWER))


def test_one_object_with_messages_is_a_conversation(write: Write) -> None:
    path = write(json.dumps({"messages": [USER, ANSWER]}, indent=2), name="talk.json")

    (conversation,) = read(path)

    assert (conversation.conversation_id, len(conversation.messages)) == ("talk", 2)


def test_a_list_of_conversations_is_read_one_by_one(write: Write) -> None:
    path = write([{"id": "a", "messages": [USER]}, {"messages": [USER]}], name="talks.json")

    assert [conversation.conversation_id for conversation in read(path)] == ["a", "talks-2"]


def test_lines_that_are_messages_make_one_conversation(write: Write) -> None:
    path = write(USER, ANSWER, USER)

    (conversation,) = read(path)

    assert (conversation.conversation_id, roles(conversation)) == (
        "talk",
        ["user", "assistant", "user"],
    )


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"messages": [USER]}).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))

    (conversation,) = read("-")

    assert conversation.conversation_id == "stdin"


# --- what cannot be read


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([{"id": "a", "messages": [USER]}, "{broken"], "line 2: not JSON"),
        (["[{", '"role": "user",', "oops"], "line 3: not JSON"),
        (
            ['{"messages": [{"role": "user", "content": NaN}]}'],
            "line 1: not JSON: NaN is not a JSON number",
        ),
        (
            [USER, '{"role": "user", "content": "a", "x": 1e999}'],
            "line 2: not JSON: 1e999 is not a JSON number",
        ),
        ([f'{{"x": {"9" * 4_001}}}'], "line 1: not JSON: 999999999999 is not a JSON number"),
        ([{"id": "a", "messages": [USER]}, 7], "line 2: neither a conversation"),
        ([{"messages": [USER, {"role": "robot"}]}], "line 1: message 1 has the role 'robot'"),
        ([{"messages": ["hello"]}], "line 1: message 0 is not an object"),
        ([{"messages": []}], "line 1: the conversation has no messages"),
        ([{"id": "x" * 257, "messages": [USER]}], "line 1: the id has 257 bytes"),
        (
            [{"id": "a", "agent": "a\u0000b", "messages": [USER]}],
            "line 1: the agent contains a control character",
        ),
        ([""], "line 1: the file is empty"),
    ],
)
def test_what_cannot_be_read_is_told_with_file_and_line(
    write: Write, lines: list[Any], told: str
) -> None:
    path = write(*lines)

    with pytest.raises(UnreadableTranscript) as caught:
        read(path)

    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTranscript, match=r"nowhere\.jsonl cannot be read: No such file"):
        read(tmp_path / "nowhere.jsonl")


def test_a_file_of_another_encoding_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "latin.json"
    path.write_bytes('{"content": "Grüße"}'.encode("latin-1"))

    with pytest.raises(UnreadableTranscript, match="line 1: not text in UTF-8"):
        read(path)


def test_a_damaged_archive_is_told_by_its_name(write: Write) -> None:
    path = write({"messages": [USER] * 200}, name="cut.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(UnreadableTranscript, match=r"cut\.jsonl\.gz"):
        read(path)


def test_conversations_before_a_broken_line_are_read(write: Write) -> None:
    found = read_conversations(write({"id": "a", "messages": [USER]}, "{broken"))

    assert next(found).conversation_id == "a"


# --- turns


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ("", []),
        ("ua", [2]),
        ("suata", [5]),
        ("auaua", [3, 2]),
        ("uatatauau", [6, 2, 1]),
        ("uuua", [1, 1, 2]),
        ("sata", [4]),
    ],
)
def test_a_turn_is_a_user_message_and_what_answered_it(said: str, sizes: list[int]) -> None:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [{"role": names[letter], "n": index} for index, letter in enumerate(said)]

    parted = turns(messages)

    assert [len(turn.messages) for turn in parted] == sizes
    assert [message for turn in parted for message in turn.messages] == messages


@pytest.mark.proves("I6")
def test_a_turn_that_a_machine_opened_is_marked() -> None:
    parted = turns([USER, ANSWER, USER, USER], frozenset({2}))

    assert [turn.is_meta for turn in parted] == [False, True, False]


# --- Claude Code


def record(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    identifier = more.pop("uuid", None) or f"u-{json.dumps([kind, content])[:60]}"
    message = {"role": kind, "content": content} | more.pop("message", {})
    return {"type": kind, "uuid": identifier, "sessionId": "5f0c", "message": message} | more


LOG = [
    {"type": "summary", "summary": "Fixing the parser", "leafUuid": "x"},
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    record("user", "<system-reminder>Be careful.</system-reminder>", isMeta=True),
    record("user", "Fix the parser, please."),
    record("assistant", [{"type": "thinking", "thinking": "Look first.", "signature": "c2ln"}], message={"id": "msg_1", "model": "claude-sonnet-4-5"}),
    record("assistant", [{"type": "text", "text": "I'll look at it."}], message={"id": "msg_1", "model": "claude-sonnet-4-5"}),
    record("assistant", [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/src/parse.py"}}], message={"id": "msg_1"}),
    record("user", [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "def parse(): ..."}]}]),
    record("assistant", [{"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {"command": "pytest", "note": "größer"}}], message={"id": "msg_1"}),
    record("user", [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "1 failed", "is_error": True}, {"type": "text", "text": "stop"}]),
    record("assistant", [{"type": "text", "text": "It fails."}], message={"id": "msg_2", "model": "claude-sonnet-4-5"}),
    record("assistant", [{"type": "text", "text": "API Error: 529"}], message={"id": "msg_3"}, isApiErrorMessage=True),
    {"type": "system", "subtype": "compact_boundary", "content": "Conversation compacted", "uuid": "s"},
]  # fmt: skip


def test_a_claude_code_log_becomes_chat_messages(write: Write) -> None:
    (conversation,) = read(write(*LOG, name="log.jsonl"))

    assert (conversation.conversation_id, conversation.agent, conversation.model) == (
        "5f0c",
        "claude-code",
        "claude-sonnet-4-5",
    )
    assert roles(conversation) == ["user", "user", "assistant", "tool", "tool", "user", "assistant"]
    assert conversation.machine_made == {0}
    assert conversation.messages[2] == {
        "role": "assistant",
        "content": "I'll look at it.",
        "thinking_blocks": [{"type": "thinking", "thinking": "Look first.", "signature": "c2ln"}],
        "reasoning_content": "Look first.",
        "tool_calls": [
            {
                "id": "toolu_1",
                "type": "function",
                "function": {"name": "Read", "arguments": '{"file_path": "/src/parse.py"}'},
            },
            {
                "id": "toolu_2",
                "type": "function",
                "function": {
                    "name": "Bash",
                    "arguments": '{"command": "pytest", "note": "größer"}',
                },
            },
        ],
    }
    assert conversation.messages[3] == {
        "role": "tool",
        "tool_call_id": "toolu_1",
        "content": "def parse(): ...",
        "name": "Read",
    }
    assert conversation.messages[4] == {
        "role": "tool",
        "tool_call_id": "toolu_2",
        "content": "1 failed",
        "name": "Bash",
        "is_error": True,
    }


@pytest.mark.proves("R4")
def test_each_sub_agent_of_a_log_is_a_conversation_of_its_own(write: Write) -> None:
    branch: dict[str, Any] = {"isSidechain": True}
    path = write(
        record("user", "Start."),
        record("user", "Search the docs.", uuid="r1", parentUuid=None, **branch),
        record(
            "assistant", [{"type": "text", "text": "Found."}], uuid="r2", parentUuid="r1", **branch
        ),
        record("assistant", [{"type": "text", "text": "Thanks."}]),
        record("user", "Count the tests.", uuid="k1", parentUuid=None, agentId="a7", **branch),
    )

    main, docs, count = read(path)

    assert (main.conversation_id, roles(main)) == ("5f0c", ["user", "assistant"])
    assert (docs.conversation_id, docs.agent, roles(docs)) == (
        "5f0c:r1",
        "claude-code-subagent",
        ["user", "assistant"],
    )
    assert (count.conversation_id, roles(count)) == ("5f0c:a7", ["user"])


@pytest.mark.proves("R4")
def test_a_record_that_is_left_out_does_not_part_the_conversation_of_a_sub_agent(
    write: Write,
) -> None:
    branch: dict[str, Any] = {"isSidechain": True}
    path = write(
        record("user", "Start."),
        record("user", "Search the docs.", uuid="r1", parentUuid=None, **branch),
        record(
            "assistant", "Overloaded", uuid="r2", parentUuid="r1", isApiErrorMessage=True, **branch
        ),
        {"type": "progress", "uuid": "r3", "parentUuid": "r2", "sessionId": "5f0c", **branch},
        record("assistant", "Found.", uuid="r4", parentUuid="r3", **branch),
    )

    _, docs = read(path)

    assert (docs.conversation_id, roles(docs)) == ("5f0c:r1", ["user", "assistant"])


def test_a_record_that_stands_twice_in_a_log_is_told_once(write: Write) -> None:
    (conversation,) = read(write(*LOG, *LOG))

    assert len(conversation.messages) == 7


def test_images_of_a_log_become_parts(write: Write) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    }
    path = write(
        record("user", [{"type": "text", "text": "See:"}, image]),
        record(
            "assistant",
            [{"type": "tool_use", "id": "t", "name": "Shot", "input": {}}],
            message={"id": "m"},
        ),
        record("user", [{"type": "tool_result", "tool_use_id": "t", "content": [image]}]),
    )

    (conversation,) = read(path)

    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    assert conversation.messages[0]["content"] == [{"type": "text", "text": "See:"}, shown]
    assert conversation.messages[2]["content"] == [shown]


# --- the examples of this project

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["coding-agent", "support-chat", "zh-travel"])
def test_the_examples_are_long_and_can_be_sent_as_they_stand(name: str) -> None:
    (conversation,) = read(EXAMPLES / f"{name}.jsonl")

    waiting: list[str] = []
    for message in conversation.messages:
        assert bool(waiting) == (message["role"] == "tool"), (
            f"a call and its result are parted before {message}"
        )
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
        waiting += [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting
    assert len(conversation.messages) > 120


# --- saved histories


def stored(number: int, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A message as `history.get` returns it."""
    place = {"message_id": f"e{number}#0", "position": number * 1_024, "state": "covered"}
    return place | {"message": message} | more


@pytest.mark.proves("A5")
def test_a_saved_history_has_each_message_once_as_it_was_published(write: Write) -> None:
    item = {"type": "message", "role": "user", "content": "And now?"}
    result = {"role": "tool", "tool_call_id": "c", "content": "7"}
    messages = [
        stored(1, USER, is_meta=True),
        stored(2, ANSWER, state="retracted", carry=1),
        stored(3, result, original_content=7, carry={"kept": "to the letter"}),
        stored(4, USER, shape="responses", element=item),
        stored(5, {}, shape="responses", element={"type": "reasoning", "summary": []}),
    ]
    left_out: Counter[str] = Counter()
    path = write(
        {"messages": messages[:3], "next_position": 3_072, "fresh": True},
        {"messages": messages[2:], "next_position": None, "fresh": True},
        name="user-42.jsonl",
    )

    (mixed,) = read_conversations(path, left_out=left_out)
    (items,) = read(write(*messages[3:], name="items.jsonl"))

    assert (mixed.conversation_id, mixed.agent, mixed.shape) == ("user-42", None, "chat")
    assert mixed.messages == (USER, result | {"content": 7}, USER)
    assert mixed.machine_made == {0}
    assert left_out == {"retracted messages": 1, "carried values": 1}
    assert items.messages == (item, {"type": "reasoning", "summary": []})


def test_a_history_without_its_fields_is_refused_with_its_line(write: Write) -> None:
    path = write(stored(1, USER), {"message_id": "e2#0", "message": ANSWER})

    with pytest.raises(UnreadableTranscript, match="line 2: not a record of history: a message"):
        read(path)
