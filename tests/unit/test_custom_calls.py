"""A call of a custom tool, which takes free text, is a call wherever a call of a function is one."""

import json
from typing import Any

import pytest

from tests.histories import assistant, counter, custom, history, parsed, plan, tool, user, words
from tests.shaped import shaped_session
from turnfold.core.history.gist import named_calls
from turnfold.core.history.priority import classify
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import write_block
from turnfold.core.recall.material import RecalledMessage, RecallMaterial
from turnfold.core.recovery.compressor import LadderCompressor
from turnfold.core.summary.source_messages import sources_of
from turnfold.core.summary.tool_calls.actions import file_changes
from turnfold.core.text.search import searched_text
from turnfold.core.text.tokens import CALL_TOKENS, count_message
from turnfold.core.window.rendering.anthropic import ASIDE_MESSAGES, ASIDE_TOKENS, to_anthropic
from turnfold.core.window.window import WindowRequest
from turnfold.messages import Priority, Shape

Json = dict[str, Any]
SQL = "select count(*)\nfrom \"seas\" where order_id = 'ORD-77120'"
PATCH = "*** Begin Patch\n*** Update File: src/app.py\n+x\n*** End Patch"


def calling(*calls: Json, content: str | None = None) -> Json:
    return assistant(content) | {"tool_calls": list(calls)}


@pytest.mark.proves("T2", "L6")
def test_its_text_is_counted_as_it_stands_in_arguments() -> None:
    measured = count_message(calling(custom("c1", SQL)), counter())

    (call,) = measured.calls
    written = json.dumps({"input": SQL}, separators=(",", ":"))
    assert (call.call_id, call.name) == ("c1", "sql")
    assert call.tokens == CALL_TOKENS + counter()("sql") + counter()(written)
    assert not measured.is_irregular


@pytest.mark.parametrize(
    "entry",
    [
        {"id": "c1", "type": "custom", "custom": {"name": "", "input": "x"}},
        {"id": "c1", "type": "custom", "custom": "sql"},
        {"id": "", "type": "custom", "custom": {"name": "sql", "input": "x"}},
        {"type": "custom", "custom": {"name": "sql"}},
    ],
)
def test_without_a_name_or_an_id_it_is_none(entry: Json) -> None:
    measured = count_message(calling(entry), counter())

    assert measured.calls == ()
    assert measured.is_irregular


@pytest.mark.proves("L5", "W1", "G1")
def test_its_result_stands_beside_it_in_both_formats() -> None:
    body = calling(custom("c1", SQL))
    session = history([user("how many?"), body, tool("c1", "7")])
    made = plan(session.stored, WindowRequest(), Policy())

    shown = parsed(session.rendered(made))
    shape = to_anthropic(made, session.rendered(made))

    assert shown == [user("how many?"), body, tool("c1", "7")]
    (block,) = json.loads(shape.messages[1])["content"]
    assert block == {"type": "tool_use", "id": "c1", "name": "sql", "input": {"input": SQL}}
    assert json.loads(shape.messages[2])["content"][0]["tool_use_id"] == "c1"


@pytest.mark.proves("L5", "G1")
def test_as_items_it_is_a_custom_call_and_its_text_stays_to_the_letter() -> None:
    said = [user("how many?"), calling(custom("c1", SQL)), tool("c1", "7")]
    session = shaped_session([("chat", said)])

    items, _ = session.shown(plan(session.stored, WindowRequest(shape=Shape.RESPONSES), Policy()))

    assert items[1:] == [
        {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": SQL},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "7"},
    ]


@pytest.mark.proves("W3", "C19")
def test_a_long_text_is_shortened_as_text() -> None:
    long = words(900)
    body = calling(custom("c1", long))
    session = history([user("write it"), body, tool("c1", "done"), user("and now?")])
    asked = WindowRequest(
        budget_tokens=700, aside_tokens=ASIDE_TOKENS, aside_messages=ASIDE_MESSAGES
    )
    made = plan(session.stored, asked, Policy(keep_tool_blocks=5))

    shortened = parsed(session.rendered(made))[1]
    shape = to_anthropic(made, session.rendered(made))

    shown = shortened["tool_calls"][0]["custom"]["input"]
    kept, mark, _ = shown.partition("[TRUNCATED original~")
    assert mark
    assert len(kept) > 100
    assert long.startswith(kept)
    assert json.loads(shape.messages[1])["content"][0]["input"] == {"input": shown}


@pytest.mark.proves("W3")
def test_the_library_shortens_it_without_touching_the_input() -> None:
    listed = [user("go"), calling(custom("c1", words(900))), tool("c1", "ok"), user("and?")]
    before = json.dumps(listed)

    shortened = LadderCompressor(counter()).compress(listed, 600)

    assert json.dumps(listed) == before
    assert "[TRUNCATED" in shortened.messages[1]["tool_calls"][0]["custom"]["input"]


@pytest.mark.proves("I4")
def test_a_custom_shell_that_only_looks_is_low() -> None:
    looking, writing = custom("c1", "ls -la src", "shell"), custom("c2", "rm -r src", "shell")

    assert classify(calling(looking)) is Priority.LOW
    assert classify(calling(writing)) is Priority.NORMAL
    assert classify(tool("c1", "app.py"), call=looking) is Priority.LOW


@pytest.mark.proves("W9", "S2", "S6", "F2")
def test_digests_summaries_searches_and_recall_tell_it() -> None:
    session = history([calling(custom("c1", SQL), custom("c2", PATCH, "apply_patch"))])
    (message,) = session.stored.messages
    text = session.bodies[message.position]

    told = [item.text for item in named_calls(message)]
    (source,) = sources_of([(message, text, False)])
    recalled = RecalledMessage(message, 0, "2026-11-20 10:00", json.loads(text))
    block = write_block(RecallMaterial([recalled]), 900)

    assert told[0].startswith("sql(select count(*)")
    assert told[1].startswith("apply_patch(*** Begin Patch")
    assert [json.loads(arguments)["input"] for _, arguments in source.calls] == [SQL, PATCH]
    assert [change.path for change in file_changes(None, [source])] == ["src/app.py"]
    assert SQL in searched_text(json.loads(text))
    assert block is not None
    assert "ORD-77120" in block.text
    assert counter()(block.text) <= block.tokens
