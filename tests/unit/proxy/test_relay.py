"""Answers that pass by are read for the session, whatever their chunks, up to a limit."""

import copy
import json
from codecs import BOM_UTF8
from typing import Any

import httpx
import pytest

from tests.costs.measuring import Case, Work, growth_of
from turnfold_proxy import relay
from turnfold_proxy.apis.api import AnswerReader, ModelAnswer
from turnfold_proxy.apis.chat import ChatApi, ChatReader
from turnfold_proxy.apis.messages import MessagesReader
from turnfold_proxy.apis.responses import ResponsesReader
from turnfold_proxy.relay import AnswerTap
from turnfold_proxy.sse import SseDecoder
from turnfold_proxy.upstream import Upstream


def event(**delta: Any) -> bytes:
    choices = [{"index": 0, "delta": {"role": "assistant", **delta}}]
    return b"data: " + json.dumps({"choices": choices}).encode()


@pytest.mark.proves("G10")
@pytest.mark.parametrize("mark", [b"", BOM_UTF8])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_chunks_may_divide_events_anywhere(mark: bytes, end: bytes, size: int) -> None:
    first, second = event(content="Hal").split(b", ", 1)
    lines = [
        first + b",",
        b"data:" + second,
        b"",
        event(content="lo"),
        b"",
        b"data: [DONE] ",
        b"",
        b"",
    ]
    stream = mark + end.join(lines)
    tap = AnswerTap(ChatApi().reader())

    for start in range(0, len(stream), size):
        tap.feed(stream[start : start + size])

    [element] = tap.answer().elements
    assert element["content"] == "Hallo"


@pytest.mark.proves("G10")
@pytest.mark.parametrize("ping", [b"data:", b"data: ", b":", b"event: ping"])
def test_an_event_without_data_is_no_part_of_an_answer(ping: bytes) -> None:
    tap = AnswerTap(ChatApi().reader())

    tap.feed(b"\n\n".join([event(content="Hal"), ping, event(content="lo"), b""]))

    [element] = tap.answer().elements
    assert element["content"] == "Hallo"


@pytest.mark.proves("G10")
def test_an_answer_is_read_up_to_data_that_is_no_json() -> None:
    """The client stops there, and has what came before it."""
    tap = AnswerTap(ChatApi().reader())

    tap.feed(b"\n\n".join([event(content="Hal"), b"data: {", event(content="lo"), b""]))

    assert tap.answer() == ModelAnswer([{"role": "assistant", "content": "Hal"}], has_failed=True)


@pytest.mark.proves("C79")
@pytest.mark.parametrize(
    ("call", "is_cut"),
    [
        ({"type": "custom", "custom": {"name": "patch", "input": "*** Beg"}}, True),
        ({"type": "function", "function": {"name": "write", "arguments": ""}}, True),
        ({"type": "function", "function": {"name": "write", "arguments": '{"a'}}, True),
        ({"type": "function", "function": {"name": "write", "arguments": '{"a": 1}'}}, False),
    ],
)
@pytest.mark.parametrize("ended", [None, "", "length", "content_filter", "error"])
def test_a_call_that_may_have_been_cut_off_is_left_out(
    call: dict[str, Any], is_cut: bool, ended: str | None
) -> None:
    """The rest of its arguments, or all of them, may be missing."""
    tap = AnswerTap(ChatApi().reader())

    tap.feed(event(content="I write.", tool_calls=[{"index": 0, "id": "c1", **call}]) + b"\n\n")
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": ended}]}
    tap.feed(b"data: " + json.dumps(last).encode() + b"\n\n")

    [element] = tap.answer().elements
    assert ("tool_calls" not in element) == is_cut


@pytest.mark.proves("G10")
@pytest.mark.parametrize("call", [{"type": "custom", "custom": {"name": "patch", "input": "a"}},
                                  {"type": "function", "function": {"name": "list", "arguments": ""}}])  # fmt: skip
def test_a_call_of_free_text_or_without_arguments_is_complete_at_the_end(
    call: dict[str, Any],
) -> None:
    tap = AnswerTap(ChatApi().reader())

    tap.feed(event(tool_calls=[{"index": 0, "id": "c1", **call}]) + b"\n\n")
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    tap.feed(b"data: " + json.dumps(last).encode() + b"\n\n")

    [element] = tap.answer().elements
    assert element["tool_calls"] == [{"id": "c1", **call}]


def piece(call_id: str | None, name: str | None, arguments: str, **place: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **place}


@pytest.mark.proves("G10")
@pytest.mark.parametrize(
    "place",
    [{"index": 0}, {"index": "0"}, {"index": None}, {}],
    ids=["same", "text", "null", "none"],
)
def test_calls_of_one_answer_are_told_apart_without_an_index_of_their_own(
    place: dict[str, Any],
) -> None:
    """Some providers number none of them; a later piece belongs to the call that was begun last."""
    tap = AnswerTap(ChatApi().reader())

    for more in (
        [piece("c1", "read", '{"path": ', **place)],
        [piece("", None, '"a"}', **place)],
        [piece("c2", "read", "", **place)],
        [piece("c2", None, '{"path": "b"}', **place), piece("c3", "list", "{}", **place)],
    ):
        tap.feed(event(tool_calls=more) + b"\n\n")

    [element] = tap.answer().elements
    assert element["tool_calls"] == [
        piece("c1", "read", '{"path": "a"}'),
        piece("c2", "read", '{"path": "b"}'),
        piece("c3", "list", "{}"),
    ]


@pytest.mark.proves("G10")
@pytest.mark.parametrize(
    ("reader", "event", "has_failed"),
    [
        (ChatReader, {"error": {"message": "Overloaded"}}, True),
        (ChatReader, {"choices": [], "error": None}, False),
        (ChatReader, {"choices": [{"finish_reason": "error"}], "error": {"code": 502}}, True),
        (ChatReader, {"choices": [{"finish_reason": "stop"}], "error": {"code": 0}}, False),
        (MessagesReader, {"type": "error", "error": {"type": "overloaded_error"}}, True),
        (MessagesReader, {"type": "message_stop"}, False),
        (ResponsesReader, {"type": "error", "code": "server_error"}, True),
        (ResponsesReader, {"type": "response.failed", "response": {"error": {"code": "x"}}}, True),
        (ResponsesReader, {"type": "response.completed", "response": {"error": None}}, False),
    ],
)
def test_an_error_within_a_stream_is_known(
    reader: type[AnswerReader], event: dict[str, Any], *, has_failed: bool
) -> None:
    tap = AnswerTap(reader())

    tap.feed(b"data: " + json.dumps(event).encode() + b"\n\n")

    assert tap.answer().has_failed == has_failed


ITEM = {"type": "function_call", "call_id": "c1", "name": "write", "arguments": '{"a'}
CUSTOM_ITEM = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Beg"}


@pytest.mark.proves("C79")
@pytest.mark.parametrize("call", [ITEM, CUSTOM_ITEM])
@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_a_call_of_a_response_that_ends_within_it_is_left_out(
    call: dict[str, Any], status: str
) -> None:
    """At the limit of an answer, the provider ends such an item like any other."""
    items = [{"type": "message", "role": "assistant", "content": []}, {**call, "status": status}]
    response = {"status": "incomplete", "output": items}
    streamed, whole = ResponsesReader(), ResponsesReader()

    for place, item in enumerate(items):
        event = {"type": "response.output_item.done", "output_index": place, "item": item}
        streamed.add(event)
    streamed.add({"type": "response.incomplete", "response": response})
    whole.add(response)

    assert streamed.answer().elements == whole.answer().elements == items[:1]


@pytest.mark.proves("C79")
@pytest.mark.parametrize(("stop_reason", "is_cut"), [("max_tokens", True), ("tool_use", False)])
def test_a_call_of_a_message_that_ends_before_its_arguments_is_left_out(
    stop_reason: str, is_cut: bool
) -> None:
    call = {"type": "tool_use", "id": "c1", "name": "write", "input": {}}
    reader = MessagesReader()

    for added in (
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop_reason}},
    ):
        reader.add(added)

    assert (reader.answer().elements == []) == is_cut


@pytest.mark.proves("G10", "I2")
def test_a_text_in_a_field_of_one_provider_is_read_whole() -> None:
    """Its client sends all of it back, and the form that was seen first is stored."""
    tap = AnswerTap(ChatApi().reader())

    for delta in ({"reasoning_text": "So the "}, {"reasoning_text": "order."}, {"content": "Hi."}):
        tap.feed(event(**delta) + b"\n\n")

    [element] = tap.answer().elements
    assert element == {"role": "assistant", "reasoning_text": "So the order.", "content": "Hi."}


@pytest.mark.proves("G10", "I2")
@pytest.mark.parametrize(("index", "odd"), [(0, {"response": "It"}), (None, {})])
def test_a_field_of_another_api_or_of_null_hides_no_answer(index: object, odd: Any) -> None:
    tap = AnswerTap(ChatApi().reader())

    choices = [{"index": index, "delta": {"content": "It left Ghent."}}]
    tap.feed(b"data: %b\n\n" % json.dumps({"choices": choices, **odd}).encode())

    assert [one["content"] for one in tap.answer().elements] == ["It left Ghent."]


@pytest.mark.proves("G10", "I2")
def test_a_label_that_each_piece_repeats_is_no_text_in_pieces() -> None:
    """OpenAI's client keeps the last `type`, too."""
    tap = AnswerTap(ChatApi().reader())

    for text in ("It left ", "Ghent."):
        tap.feed(event(type="text", channel="final", content=text) + b"\n\n")

    [element] = tap.answer().elements
    labels = {"type": "text", "channel": "final"}
    assert element == {"role": "assistant", "content": "It left Ghent.", **labels}


@pytest.mark.proves("G10", "I2")
def test_a_compaction_of_the_provider_is_read_with_its_summary() -> None:
    reader = MessagesReader()
    block = {"type": "compaction", "content": None, "signature": "c2ln"}
    written = {"content": "Order 7341 left Ghent.", "encrypted_content": "c2Vj"}

    for added in (
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", **written}},
        {"type": "content_block_stop", "index": 0},
    ):  # fmt: skip
        reader.add(added)

    [message] = reader.answer().elements
    assert message["content"] == [block | written]


AUDIO = {"id": "audio_1", "data": "UklGRg==", "transcript": "It left Ghent.", "expires_at": 1}
IMAGES = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]


@pytest.mark.proves("G10")
@pytest.mark.parametrize(
    ("said", "pieces"),
    [
        ({"audio": AUDIO}, [{"audio": {"id": "audio_1", "transcript": "It left "}},
                            {"audio": {"data": "UklG"}}, {"audio": {"data": "Rg=="}},
                            {"audio": {"transcript": "Ghent."}}, {"audio": {"expires_at": 1}}]),
        ({"content": "", "images": IMAGES}, [{"content": ""}, {"images": IMAGES}]),
    ],
    ids=["audio", "images"],
)  # fmt: skip
def test_an_answer_without_words_is_an_answer(said: dict[str, Any], pieces: list[Any]) -> None:
    whole, streamed = AnswerTap(ChatApi().reader()), AnswerTap(ChatApi().reader())
    message = {"role": "assistant", **said}

    whole.feed(json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
    for delta in ({"role": "assistant"}, *pieces):
        streamed.feed(event(**delta) + b"\n\n")

    assert whole.answer().elements == streamed.answer().elements == [message]


@pytest.mark.proves("G10", "X6")
@pytest.mark.parametrize(
    "unit",
    [b"x", b"{", event(content="x" * 1_000) + b"\n\n"],
    ids=["one line", "one body", "events"],
)
def test_of_a_stream_without_end_no_more_is_kept_than_of_a_long_answer(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "READ_BYTES", most := 1_000_000)
    reader = ChatReader()
    tap = AnswerTap(reader)
    chunk = unit * (100_000 // len(unit))

    for _ in range(3 * most // len(chunk)):
        tap.feed(chunk)

    said = sum(len(text.getvalue()) for text in reader._texts.values())
    assert len(tap._events._rest) + len(tap._body) + said <= most
    assert tap.answer().elements == []


@pytest.mark.proves("X6")
def test_a_line_in_many_chunks_costs_no_more_than_its_length() -> None:
    """Each chunk used to copy all of the line that came before it."""

    def build(size: int) -> Work:
        chunks = [b"x" * 16] * (size // 16)

        def read() -> list[bytes]:
            decoder = SseDecoder()
            return [data for chunk in chunks for data in decoder.feed(chunk)]

        return read

    growth = growth_of(Case("a line in chunks", build, 1 << 22), least_seconds=0.004)

    assert growth is not None
    assert not growth.is_too_fast, growth


@pytest.mark.proves("G10")
async def test_a_caller_may_wait_longer_for_a_silent_provider_than_clients_do_by_default() -> None:
    """These wait for ten minutes, and for fifteen where a provider works when it has time."""
    upstream, waits = Upstream("http://127.0.0.1:9"), list[float]()

    async def note(request: httpx.Request) -> None:
        waits.append(request.extensions["timeout"]["read"])

    upstream._client.event_hooks = {"request": [note]}
    with pytest.raises(httpx.ConnectError):
        await upstream.send("POST", "/v1/responses", [], b"{}", is_plain=True)
    await upstream.close()

    assert waits[0] > 15 * 60


def chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def block(kind: str, **delta: Any) -> list[dict[str, Any]]:
    started = {"type": "content_block_start", "index": 0, "content_block": {"type": kind}}
    return [started, {"type": "content_block_delta", "index": 0, "delta": delta}]


PIECE = "x" * 1_000
INPUT = {"index": 0, "function": {"name": "write", "arguments": PIECE}}


@pytest.mark.proves("X6")
@pytest.mark.parametrize(
    ("reader", "events"),
    [
        (ChatReader, [chat(content=PIECE)]),
        (ChatReader, [chat(tool_calls=[INPUT])]),
        (ChatReader, [chat(reasoning_details=[{"text": PIECE}])]),
        (MessagesReader, block("text", type="text_delta", text=PIECE)),
        (MessagesReader, block("tool_use", type="input_json_delta", partial_json=PIECE)),
        (MessagesReader, block("text", type="citations_delta", citation={"cited_text": PIECE})),
        (ResponsesReader, [{"type": "response.output_text.delta", "delta": PIECE}]),
    ],
    ids=["content", "arguments", "list", "text", "input", "citations", "output"],
)
def test_an_answer_in_many_pieces_costs_no_more_than_its_length(
    reader: type[AnswerReader], events: list[dict[str, Any]]
) -> None:
    """Each piece used to copy all of the text that came before it."""

    def build(size: int) -> Work:
        # Lists of events are read once: a reader keeps what it is given.
        *first, piece = events
        pieces = [*copy.deepcopy(first), *(copy.deepcopy(piece) for _ in range(size))]

        def read() -> ModelAnswer:
            reading = reader()
            for event in pieces:
                reading.add(event)
            return reading.answer()

        return read

    growth = growth_of(Case("an answer in pieces", build, 1 << 16), least_seconds=0.001)

    assert growth is not None
    assert not growth.is_too_fast, growth
