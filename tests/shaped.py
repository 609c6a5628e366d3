"""Elements of the Responses and Anthropic APIs for tests: generated, judged, and stored as sessions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.histories import answered, counter, short_body
from turnfold.core.shapes.packing import unpack
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.rendering.shaped import render_shaped
from turnfold.core.window.window import WindowInput, WindowPlan
from turnfold.messages import ELEMENTS, EventId, Ids, Message, Priority, Role, position_of
from turnfold.operations.ingest.decode import Delivery, decode_event
from turnfold.ports.ingest import DecodedEvent

Json = dict[str, Any]
OF_MODEL = frozenset(
    {"reasoning", "function_call", "custom_tool_call", "computer_call", "web_search_call"}
)


def decoded(seq: int, messages: Sequence[Json], shape: str) -> DecodedEvent:
    """An event of this shape as intake decodes it."""
    event = {
        "event_id": f"e{seq}",
        "agent_id": "a",
        "session_id": "s",
        "messages": list(messages),
        "shape": shape,
    }
    delivery = Delivery("turn.completed", json.dumps(event).encode(), seq, 0)
    return decode_event(delivery, count=counter())


@dataclass(frozen=True)
class ShapedSession:
    """Events of several shapes as rows: what the rules see, chat views, and elements."""

    stored: WindowInput
    bodies: dict[int, str]
    elements: dict[int, str]

    def shown(self, plan: WindowPlan) -> tuple[list[Json], list[Ids]]:
        """The messages of a plan in its shape, and their ids."""
        texts = {
            position: (self.elements if position in plan.elements else self.bodies)[position]
            for position in plan.positions
        }
        rendered = render_shaped(plan, texts, digests={})
        if plan.shape != "anthropic":
            return list(map(json.loads, rendered.messages)), list(rendered.message_ids)
        window = to_anthropic(plan, rendered)
        return list(map(json.loads, window.messages)), list(window.message_ids)


def shaped_session(events: Sequence[tuple[str, Sequence[Json]]]) -> ShapedSession:
    """A session of these events: a shape and its elements each."""
    rows: list[Message] = []
    bodies: dict[int, str] = {}
    elements: dict[int, str] = {}
    for seq, (shape, said) in enumerate(events, start=1):
        for index, row in enumerate(decoded(seq, said, shape).messages):
            position = position_of(seq, index)
            bodies[position] = row.body
            elements[position] = unpack(row.original, row.body)
            rows.append(
                Message(
                    position,
                    EventId(f"e{seq}"),
                    index,
                    Role(row.role),
                    row.tokens,
                    row.content_tokens,
                    row.reasoning_tokens,
                    row.characters,
                    row.lines,
                    Priority(row.priority),
                    row.calls,
                    is_meta=row.is_meta,
                    is_irregular=row.is_irregular,
                    cuts=row.cuts,
                    gist=row.gist,
                    short_body=short_body(row.role, row.characters, row.gist, row.body),
                    element=ELEMENTS[row.element],
                )
            )
    paired = answered(rows, [json.loads(bodies[row.position]) for row in rows])
    return ShapedSession(WindowInput(messages=paired, total=len(paired)), bodies, elements)


def evicted(session: ShapedSession, positions: set[int]) -> ShapedSession:
    """The session after these messages were summarized."""
    left = tuple(one for one in session.stored.messages if one.position not in positions)
    stored = replace(session.stored, messages=left, covered=len(positions))
    return replace(session, stored=stored)


def responses_faults(items: Sequence[Json]) -> list[str]:
    """Why the Responses API would refuse this input; empty if it would not."""
    faults: list[str] = []
    open_calls: list[tuple[str, str]] = []
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        follower = items[place + 1] if place + 1 < len(items) else {}
        if kind == "reasoning" and not (
            follower.get("type") in OF_MODEL or follower.get("role") == "assistant"
        ):
            faults.append(f"item {place}: reasoning is followed by {follower}")
        if kind in ("function_call", "custom_tool_call", "computer_call"):
            if not isinstance(item.get("call_id"), str) or not isinstance(
                item.get("arguments", item.get("input", item.get("action"))), str | dict
            ):
                faults.append(f"item {place}: {item}")
            open_calls.append((kind, str(item.get("call_id"))))
        elif kind.endswith("_output"):
            call = (kind.removesuffix("_output"), str(item.get("call_id")))
            if call in open_calls:
                open_calls.remove(call)
            else:
                faults.append(f"item {place}: an output for {call}, of {open_calls}")
        elif kind == "message" and item.get("role") not in (
            "user",
            "assistant",
            "system",
            "developer",
        ):
            faults.append(f"item {place}: {item}")
    return faults + [f"no output for {call}" for call in open_calls]


# --- generated

texts = st.sampled_from(
    ["", "Hi.", "Look at /src/main.py and 42.", "value = 1\n" * 60, "数据 " * 40]
)
Numbered = Callable[[], str]


@st.composite
def responses_turns(draw: st.DrawFn) -> list[Json]:
    """A turn: a request, and responses with their outputs in any order."""
    turn: list[Json] = [_request(draw)]
    for number in range(draw(st.integers(0, 3))):
        calls = [
            _call(draw, f"{draw(st.integers(0, 99))}_{number}_{n}")
            for n in range(draw(st.integers(0, 3)))
        ]
        said = [{"type": "message", "role": "assistant", "content": _said(draw)}]
        other = {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"q": "x"},
        }
        thought = {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [{"type": "summary_text", "text": draw(texts)}],
            "encrypted_content": "gAAA" * draw(st.integers(0, 90)),
        }
        turn += [thought] * draw(st.integers(0, 1)) + [other] * draw(st.integers(0, 1))
        turn += calls
        turn += said if not calls or draw(st.booleans()) else []
        answers = [_output(draw, call) for call in calls if draw(st.integers(0, 5))]
        turn += draw(st.permutations(answers))
    return _instructed(draw, turn)


def _instructed(draw: st.DrawFn, turn: list[Json]) -> list[Json]:
    """The turn with an instruction at its beginning or end, or without any."""
    instruction = {"role": "system", "content": "From now on: French."}
    first, last = draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 1)]))
    return [instruction] * first + turn + [instruction] * last


def _request(draw: st.DrawFn) -> Json:
    text = draw(texts)
    parts = [
        {"type": "input_text", "text": text},
        {"type": "input_image", "image_url": "https://example.com/a.png"},
    ]
    content = draw(st.sampled_from([text, parts[:1], parts]))
    return draw(st.sampled_from([{"type": "message"}, {}])) | {"role": "user", "content": content}


def _said(draw: st.DrawFn) -> Any:
    part = {"type": "output_text", "text": draw(texts), "annotations": []}
    refusal = {"type": "refusal", "refusal": "No."}
    return draw(st.sampled_from([draw(texts), [part], [part, part], [refusal]]))


def _call(draw: st.DrawFn, call_id: str) -> Json:
    arguments = json.dumps({"path": "/a.py", "text": draw(texts)})
    kinds: list[Json] = [
        {"type": "function_call", "id": f"fc_{call_id}", "name": "read", "arguments": arguments},
        {"type": "custom_tool_call", "name": "sql", "input": draw(texts)},
        {"type": "computer_call", "id": f"cu_{call_id}", "action": {"type": "click", "x": 1}},
    ]
    return draw(st.sampled_from(kinds)) | {"call_id": f"call_{call_id}"}


def _output(draw: st.DrawFn, call: Json) -> Json:
    output: Any = draw(texts)
    if call["type"] == "computer_call":
        output = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}


@st.composite
def anthropic_turns(draw: st.DrawFn) -> list[Json]:
    """A turn: a request, answers with thinking and calls, and their results."""
    turn: list[Json] = [
        {"role": "user", "content": draw(st.sampled_from([draw(texts), [_block(draw)]]))}
    ]
    for number in range(draw(st.integers(0, 2))):
        calls = [
            {
                "type": "tool_use",
                "id": f"toolu_{draw(st.integers(0, 99))}_{number}_{n}",
                "name": "read",
                "input": {"path": "/a.py", "text": draw(texts)},
            }
            for n in range(draw(st.integers(0, 3)))
        ]
        thinking = {"type": "thinking", "thinking": draw(texts), "signature": "c2ln"}
        search = [
            {
                "type": "server_tool_use",
                "id": "srv_1",
                "name": "web_search",
                "input": {"q": "x"},
            },
            {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
        ]
        blocks = (
            [thinking] * draw(st.integers(0, 1))
            + [_block(draw)] * draw(st.integers(0, 1))
            + search * draw(st.integers(0, 1))
        )
        turn.append({"role": "assistant", "content": [*blocks, *calls] or [_block(draw)]})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": draw(st.sampled_from([draw(texts), [_block(draw)]])),
                "is_error": draw(st.booleans()),
            }
            for call in calls
            if draw(st.integers(0, 5))
        ]
        rest = [_block(draw)] * draw(st.integers(0, 1))
        if results or rest:
            turn.append({"role": "user", "content": [*draw(st.permutations(results)), *rest]})
    return _instructed(draw, turn)


def _block(draw: st.DrawFn) -> Json:
    return draw(
        st.sampled_from(
            [
                {"type": "text", "text": draw(texts) or "."},
                {"type": "text", "text": "cached", "cache_control": {"type": "ephemeral"}},
            ]
        )
    )


@st.composite
def chat_turns(draw: st.DrawFn) -> list[Json]:
    """A turn of chat messages."""
    turn: list[Json] = [{"role": "user", "content": draw(texts)}]
    for number in range(draw(st.integers(0, 2))):
        calls = [
            {
                "id": f"c{draw(st.integers(0, 99))}_{number}_{n}",
                "type": "function",
                "function": {"name": "read", "arguments": json.dumps({"text": draw(texts)})},
            }
            for n in range(draw(st.integers(0, 3)))
        ]
        turn.append(
            {
                "role": "assistant",
                "content": draw(texts),
                **({"tool_calls": calls} if calls else {}),
            }
        )
        turn += [
            {"role": "tool", "tool_call_id": call["id"], "content": draw(texts)}
            for call in calls
            if draw(st.integers(0, 5))
        ]
    return _instructed(draw, turn)


turns_by_shape = {
    "chat": chat_turns(),
    "responses": responses_turns(),
    "anthropic": anthropic_turns(),
}
any_events = st.lists(
    st.sampled_from(sorted(turns_by_shape)).flatmap(
        lambda shape: st.tuples(st.just(shape), turns_by_shape[shape])
    ),
    min_size=1,
    max_size=6,
)
