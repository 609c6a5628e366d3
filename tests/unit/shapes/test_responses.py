"""Chat messages as items of the Responses API."""

import json
from typing import Any

import pytest

from tests.histories import plan
from tests.shaped import decoded, shaped_session
from turnfold.core.policy.presets import PRESETS
from turnfold.core.shapes.responses import chat_views, items_of
from turnfold.core.text.tokens import text_of
from turnfold.core.window.window import WindowRequest
from turnfold.messages import Shape
from turnfold.shapes import responses_from_chat

URL = "https://example.com/a.png"
PNG = "data:image/png;base64," + "iVBORw0K" * 10_000


@pytest.mark.parametrize(
    ("part", "item"),
    [
        ({"type": "text", "text": "Hi."}, {"type": "input_text", "text": "Hi."}),
        ({"text": "Hi."}, {"type": "input_text", "text": "Hi."}),
        (
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "input_image", "image_url": URL, "detail": "auto"},
        ),
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            {"type": "input_image", "image_url": URL, "detail": "low"},
        ),
        (
            {"type": "file", "file": {"file_id": "f1"}},
            {"type": "input_file", "file_id": "f1"},
        ),
    ],
)
@pytest.mark.proves("G1")
def test_a_part_of_a_user_message_is_a_part_of_an_item(
    part: dict[str, Any], item: dict[str, Any]
) -> None:
    (message,) = items_of({"role": "user", "content": [part]})

    assert (message["role"], message["content"]) == ("user", [item])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "output_text", "text": "It is 8443.", "annotations": []}], "It is 8443."),
        ([{"type": "text", "text": "It is 8443."}], "It is 8443."),
        ([{"type": "refusal", "refusal": "I cannot."}], "I cannot."),
        (["It is 8443."], "It is 8443."),
        ("It is 8443.", "It is 8443."),
        ([{"type": "new", "n": 1}], '{"type":"new","n":1}'),
    ],
)
@pytest.mark.proves("G1")
def test_what_a_model_said_is_its_words_and_of_an_unknown_part_its_json(
    content: Any, said: str
) -> None:
    item = {"type": "message", "role": "assistant", "content": content}

    (view,) = chat_views([item], [json.dumps(item)])

    assert text_of(view.message) == said


@pytest.mark.proves("G1")
def test_an_image_that_a_model_made_is_told_without_its_bytes() -> None:
    item = {"type": "image_generation_call", "id": "i1", "result": "iVBORw0K" * 10_000}

    (view,) = chat_views([item], [json.dumps(item)])

    assert len(text_of(view.message) + view.extra) < 100
    assert view.text == json.dumps(item)


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "code_interpreter_call", "id": "ci_1", "code": "plot()", "container_id": "c",
            "outputs": [{"type": "logs", "logs": "Done."}, {"type": "image", "url": PNG}],
        },
        {"type": "message", "role": "user", "content": [{"type": "computer_screenshot", "image_url": PNG}]},
        {"type": "screen_recorded", "role": "user", "frame": PNG},
        {"type": "message", "role": "user", "content": [{"type": "input_video", "video_url": PNG}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_image", "image_url": PNG}]},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_video", "video_url": PNG}]},
        {"type": "screen_recorded", "role": "user", "frame": PNG.replace("base64", "BASE64")},
        {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "data": PNG[22:]}]},
    ],
)  # fmt: skip
@pytest.mark.proves("S2", "T2", "L6")
def test_an_image_within_an_item_costs_what_an_image_costs_and_is_no_text(
    item: dict[str, Any],
) -> None:
    (message,) = decoded(1, [item], "responses").messages

    assert 1_200 < message.tokens < 1_300
    assert PNG[22:] not in text_of(json.loads(message.body))
    assert PNG[22:] in (message.original or message.body)


@pytest.mark.parametrize("kind", ["image", "audio", "video", "video_url", "audio_url"])
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
@pytest.mark.proves("L6", "G1")
def test_media_that_items_do_not_have_cost_no_more_than_they_are_counted(
    kind: str, role: str
) -> None:
    part = {"type": kind, kind: {"url": "data:video/mp4;base64," + "QUJD" * 20_000}}
    message = {"role": role, "tool_call_id": "c1", "content": [part, {"type": "text", "text": "x"}]}

    (item,) = responses_from_chat([message])

    assert "QUJD" not in json.dumps(item)
    assert f"[{kind} left out]" in json.dumps(item)


@pytest.mark.proves("W2", "L6")
@pytest.mark.parametrize(
    "said",
    [{}, {"content": "Wait."}, {"refusal": "No."}, {"audio": {"id": "a", "transcript": "Wait."}}],
)
def test_an_answer_with_calls_is_counted_as_the_items_that_it_becomes(said: dict[str, Any]) -> None:
    function = {"name": "track", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ("c1", "c2")]
    turn = [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": None, "tool_calls": calls, **said},
        *({"role": "tool", "tool_call_id": one["id"], "content": "Ghent"} for one in calls),
    ]
    session = shaped_session([("chat", turn)] * 4)
    over = set()

    for most in range(6, 24):
        asked = WindowRequest(shape=Shape.RESPONSES, max_messages=most)
        items, _ = session.shown(plan(session.stored, asked, PRESETS["balanced"]))
        over.add(len(items) - most)

    assert max(over) == 0
