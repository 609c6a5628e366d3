"""What resists the ladder and what goes first."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.history.priority import BINDING, STATED, classify
from turnfold.messages import Priority

TALK = (
    "The worker stores every message in SQL, evicts old ones from the live window at once, and has a model summarise them later. "
    "A query service answers what should my model see next with the current summary plus a trimmed history now. "
)


def calling(name: Any, arguments: Any = "{}") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
        ],
    }


def shell(command: Any, name: str = "bash") -> dict[str, Any]:
    return calling(name, json.dumps({"command": command}))


@pytest.mark.proves("I4")
@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
@pytest.mark.parametrize(
    "text",
    [
        "We decided to use PostgreSQL.",
        "Decision: ship on Friday.",
        "Let's go with the second option.",
        "Let’s go with the second option.",
        "TODO: rotate the keys",
        "todos: write the docs, call Anna",
        "Please remember that my daughter is allergic to nuts.",
        "Remember: the port is 8443",
        "From now on answer in French.",
        "The budget must not exceed 500 euros.",
        "One constraint is memory.",
        "Rules: no swearing",
        "Don't forget the tickets.",
        "Keep in mind I cannot fly before noon.",
        "我们决定用第二个方案。",
        "請記住我的生日是五月三日。",
        "从现在开始请用中文回答",
        "预算必须控制在五百元以内",
        "待办：更新文档",
        "禁止删除任何文件",
        "以后请叫我小王",
        "規則很簡單",
    ],
)
def test_what_must_hold_later_is_high(role: str, text: str) -> None:
    assert classify({"role": role, "content": text}) is Priority.HIGH
    assert (
        classify(
            {
                "role": role,
                "content": [{"type": "image_url"}, {"type": "text", "text": f"Hello. {text}"}],
            }
        )
        is Priority.HIGH
    )


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    "text",
    [
        "Never push to main.",
        "Hello.\nAlways run the tests first.",
        "Do not touch the lock file.",
        "ok, make sure it builds"[4:],
    ],
)
def test_an_order_binds_when_the_user_gives_it(text: str) -> None:
    assert classify({"role": "user", "content": text}) is Priority.HIGH
    assert classify({"role": "assistant", "content": text}) is Priority.NORMAL


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, how are you?",
        TALK,
        "I remember when we met.",
        "Do you remember?",
        "I have never been there.",
        "Mustard and custard, rulers and mustangs.",
        "Never mind.",
        "Don't worry about it.",
        "open todo.py and call todo()",
        "今天天气怎么样？",
        "你好，请帮我找一家酒店。",
        "你还记得吗",
    ],
)
def test_talk_is_normal(text: str) -> None:
    assert classify({"role": "user", "content": text}) is Priority.NORMAL


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    "name",
    [
        "read_file",
        "Read",
        "list_directory",
        "LS",
        "Grep",
        "glob",
        "WebSearch",
        "search_direct_flight",
        "Events_1_FindEvents",
        "fs-view",
    ],
)
def test_calls_of_looking_tools_and_their_results_are_low(name: str) -> None:
    assert classify(calling(name)) is Priority.LOW
    assert (
        classify({"role": "tool", "tool_call_id": "c1", "content": "must remember", "name": name})
        is Priority.LOW
    )
    assert (
        classify(
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
            call=calling(name)["tool_calls"][0],
        )
        is Priority.LOW
    )


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    "name",
    [
        "write_file",
        "Edit",
        "create_list",
        "search_and_replace",
        "book_hotel",
        "TodoWrite",
        "calculate",
        "readme",
        "",
        None,
        7,
    ],
)
def test_what_changes_things_is_normal(name: Any) -> None:
    assert classify(calling(name)) is Priority.NORMAL
    assert (
        classify({"role": "tool", "tool_call_id": "c1", "content": "done", "name": name})
        is Priority.NORMAL
    )


@pytest.mark.proves("I4")
def test_a_result_of_a_tool_nobody_named_is_normal() -> None:
    assert (
        classify({"role": "tool", "tool_call_id": "c1", "content": "total 12\n-rw-r--r-- a.py"})
        is Priority.NORMAL
    )


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    "command",
    [
        "ls -la",
        "cat src/app.py",
        "cd /srv && ls",
        "grep -rn 'a;b > c' src | head -20",
        "find . -name '*.py' 2>/dev/null | wc -l",
        "head -5 a.txt; tail -5 a.txt",
        "sed -n 1,40p a.py",
        "git log --oneline | head",
        "sudo cat /etc/hosts",
        "env | grep PATH",
        "env LC_ALL=C TZ='UTC' sort -u a.txt | yq .a",
        "fd -e py main src",
        "awk '{print $1}' a.txt | xxd",
        "git diff --stat",
        ["bash", "-lc", "ls -la"],
        ["cat", "a.txt"],
        ["grep", "-c", "TODO", "a.txt"],
    ],
)
def test_shell_commands_that_only_look_are_low(command: Any) -> None:
    body = shell(command)

    assert classify(body) is Priority.LOW
    assert (
        classify({"role": "tool", "tool_call_id": "c1", "content": "x"}, call=body["tool_calls"][0])
        is Priority.LOW
    )


@pytest.mark.proves("I4")
@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build",
        ["gcc", "-c", "cat"],
        "ls && rm a",
        "cat a > b",
        "cat <<EOF\nx\nEOF",
        "find . -delete",
        "find . -name x -exec rm {} +",
        "sed -i s/a/b/ c",
        "sed -ni s/a/b/p c",
        "sed -n --in-place s/a/b/p c",
        "env STAGE=prod ./deploy.sh",
        "env python manage.py migrate",
        "yq -i '.a=1' values.yaml",
        "sort -uo users.txt users.txt",
        "fd -e tmp --exec rm",
        "fd -e tmp -X rm",
        "awk -i inplace '{print $1}' users.txt",
        "xxd -r dump.txt logo.png",
        "find . -fls files.txt",
        "git diff --output=all.patch",
        "cat $(rm a)",
        "ls `rm a`",
        "git push",
        "pytest -q",
        "cd /srv",
        "echo done",
        "lsof",
        "catalog",
        "",
        None,
        7,
        [],
        [7],
        "ls " * 3_000,
    ],
)
def test_other_shell_commands_are_normal(command: Any) -> None:
    assert classify(shell(command)) is Priority.NORMAL


@pytest.mark.proves("I4")
def test_one_call_that_changes_things_makes_a_message_normal() -> None:
    both = [*calling("read_file")["tool_calls"], *calling("write_file")["tool_calls"]]

    assert classify({"role": "assistant", "content": "", "tool_calls": both}) is Priority.NORMAL


@pytest.mark.proves("I4")
def test_a_decision_beside_a_look_is_high() -> None:
    assert (
        classify({**calling("read_file"), "content": "We decided to keep SQLite."}) is Priority.HIGH
    )


@pytest.mark.proves("C22")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"role": 7},
        {"role": "user", "content": 7},
        {"role": "user", "content": [None, {"type": "text"}, {"type": "text", "text": 7}]},
        {"role": "assistant", "tool_calls": 7},
        {"role": "assistant", "tool_calls": [None]},
        {"role": "assistant", "tool_calls": [{"function": 7}]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "bash", "arguments": "{broken"}}],
        },
        {"role": "assistant", "tool_calls": [{"function": {"name": "bash", "arguments": '"ls"'}}]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "bash", "arguments": "[" * 3_000}}],
        },
        {"role": "tool", "content": None, "name": ["read"]},
        {"role": "user", "content": "\ud800\x00"},
    ],
)
def test_a_message_of_any_shape_has_a_priority(body: dict[str, Any]) -> None:
    assert classify(body) is Priority.NORMAL


@pytest.mark.proves("I4", "C20")
def test_only_the_ends_of_a_long_text_are_read() -> None:
    filler = "nothing to see here. " * 1_000

    assert (
        classify({"role": "user", "content": filler + "Remember this." + filler}) is Priority.NORMAL
    )
    assert classify({"role": "user", "content": "Remember this." + filler}) is Priority.HIGH
    assert classify({"role": "user", "content": filler + "Remember this."}) is Priority.HIGH


PIECES = st.sampled_from([phrase.phrase for phrase in BINDING])
NOISE = st.text("aAsSnN .,:;!-_'(2/\n文\u0130\u212a", max_size=4)
"""The last two become letters of ASCII in lower case."""


@pytest.mark.proves("I4")
@given(
    parts=st.lists(st.tuples(NOISE, PIECES, NOISE), max_size=3),
    after=st.sampled_from(["", "to go", "n't", "s: it", " is not", "!"]),
)
def test_looking_words_up_finds_what_looking_for_every_phrase_does(
    parts: list[tuple[str, str, str]], after: str
) -> None:
    text = "".join(piece for part in parts for piece in part) + after
    for role, phrases in (("user", BINDING), ("assistant", STATED)):
        binds = any(phrase.pattern.search(text.lower()) for phrase in phrases)
        assert (classify({"role": role, "content": text}) is Priority.HIGH) == binds, text
