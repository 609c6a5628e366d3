"""Sessions of several shapes: every window is sendable in every format, and nothing stored is lost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import counter, plan
from tests.shaped import (
    Json,
    ShapedSession,
    anthropic_turns,
    any_events,
    chat_turns,
    decoded,
    evicted,
    responses_faults,
    responses_turns,
    shaped_session,
)
from turnfold import shapes
from turnfold.core.eviction.choose import decide_eviction
from turnfold.core.eviction.triggers import Trigger
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.presets import PRESETS
from turnfold.core.shapes.packing import pack, unpack
from turnfold.core.window.window import WindowPlan, WindowRequest
from turnfold.errors import CannotFit
from turnfold.messages import Element, Role, Shape

FULL = 1 << 30
budgets = st.sampled_from([150, 300, 600, 1_200, 2_400, 5_000, FULL])


def block_faults(messages: Sequence[Json]) -> list[str]:
    """Why the Messages API would refuse these: each call is answered in the next message."""
    faults = [] if messages and messages[0]["role"] == "user" else ["no user speaks first"]
    owed: list[str] = []
    seen: set[str] = set()
    for place, message in enumerate(messages):
        if place and message["role"] == messages[place - 1]["role"]:
            faults.append(f"two messages of {message['role']}")
        blocks = message["content"]
        results = [one["tool_use_id"] for one in blocks if one["type"] == "tool_result"]
        if sorted(results) != sorted(owed) or any(
            one["type"] != "tool_result" for one in blocks[: len(results)]
        ):
            faults.append(f"message {place} answers {results} instead of {owed}")
        owed = [one["id"] for one in blocks if one["type"] == "tool_use"]
        if seen & set(owed) or len(set(owed)) < len(owed):
            faults.append(f"message {place} repeats an id of {owed}")
        seen |= set(owed)
        if any(one["type"] == "text" and not one["text"].strip() for one in blocks):
            faults.append(f"message {place} holds empty text")
    return [*faults, f"{owed} are not answered"] if owed else faults


FAULTS = {
    Shape.CHAT: validation_errors,
    Shape.RESPONSES: responses_faults,
    Shape.ANTHROPIC: block_faults,
}


def flat(ids: Sequence[Any]) -> list[str]:
    return [
        one
        for entry in ids
        for one in (entry if isinstance(entry, tuple) else [entry])
        if one is not None
    ]


def faults_of_account(made: WindowPlan) -> list[str]:
    account = made.account
    parts = (
        account.shown,
        account.folded,
        account.covered,
        account.pending_shown,
        account.pending_digested,
    )
    counts = [getattr(account, name) for name in account.__slots__]
    is_sound = sum(parts) == account.total and min(counts) >= 0
    return [] if is_sound and account.trimmed <= account.shown else [f"{account}"]


@pytest.mark.proves("G1", "L5", "L6", "L7")
@given(any_events, budgets, st.sampled_from(Shape), st.booleans(), st.sampled_from(sorted(PRESETS)))
def test_every_window_of_any_shapes_is_sendable_in_every_format(
    events: list[tuple[str, list[Json]]],
    budget: int,
    shape: Shape,
    is_emergency: bool,
    preset: str,
) -> None:
    """C76: calls are answered, reasoning has its item, and the window takes what it says."""
    session = shaped_session(events)
    asked = WindowRequest(budget_tokens=budget, shape=shape, is_emergency=is_emergency)
    try:
        made = plan(session.stored, asked, PRESETS[preset])
    except CannotFit:
        assert budget < FULL
        return

    messages, ids = session.shown(made)

    assert FAULTS[shape](messages) == []
    assert len(messages) == len(ids)
    assert faults_of_account(made) == []
    assert sum(counter()(text) for text in _strings(messages)) <= made.tokens <= budget
    assert len(set(flat(ids))) == len(flat(ids)) or shape is Shape.RESPONSES


@pytest.mark.proves("G1")
@given(st.lists(responses_turns(), min_size=1, max_size=6), budgets)
def test_the_items_of_a_response_stay_or_leave_together(
    turns: list[list[Json]], budget: int
) -> None:
    session = shaped_session([("responses", turn) for turn in turns])
    asked = WindowRequest(budget_tokens=budget, shape=Shape.RESPONSES)
    try:
        made = plan(session.stored, asked, PRESETS["balanced"])
    except CannotFit:
        return

    shown = set(flat(session.shown(made)[1]))

    for items in _responses(session):
        # Whoever is shown takes along what the response needs: its reasoning, and all its calls.
        needed = [message_id for message_id, item in items if _is_needed(item)]
        if items[-1][1]["type"] != "reasoning":
            assert {message_id in shown for message_id in needed} != {True, False}


def _responses(session: ShapedSession) -> list[list[tuple[str, Json]]]:
    responses: list[list[tuple[str, Json]]] = []
    for message in session.stored.messages:
        item = {"type": "message"} | json.loads(session.elements[message.position])
        if message.element is not Element.JOINED:
            responses.append([])
        responses[-1].append((message.message_id, item))
    return responses


def _is_needed(item: Json) -> bool:
    return item["type"] == "reasoning" or (
        (item["type"] + "?").endswith("_call?") and "call_id" in item
    )


def _head_of(messages: Sequence[Any], joined: Any) -> Any:
    before = [one for one in messages if one.position < joined.position]
    return next(one for one in reversed(before) if one.element is not Element.JOINED)


@pytest.mark.proves("G1", "L1")
@given(st.lists(responses_turns(), min_size=1, max_size=4))
def test_items_come_back_to_the_letter(turns: list[list[Json]]) -> None:
    session = shaped_session([("responses", turn) for turn in turns])

    for stored, item in zip(
        session.elements.values(), [item for turn in turns for item in turn], strict=True
    ):
        assert json.loads(stored) == item


@pytest.mark.proves("G1")
@given(st.lists(anthropic_turns(), min_size=1, max_size=4))
def test_blocks_come_back_to_the_letter(turns: list[list[Json]]) -> None:
    session = shaped_session([("anthropic", turn) for turn in turns])
    made = plan(
        session.stored,
        WindowRequest(budget_tokens=FULL, shape=Shape.ANTHROPIC),
        PRESETS["balanced"],
    )
    said = [block for turn in turns for message in turn for block in _blocks(message)]
    shown = [block for message in session.shown(made)[0] for block in message["content"]]
    added = [block for block in shown if block not in said]

    # Only stand-ins of missing results, ids that would repeat, an opening, and instructions.
    assert all(
        block["type"] in ("tool_result", "tool_use")
        or block["text"].startswith(("[", "<system-reminder>"))
        for block in added
    )
    ids = [block["id"] for block in said if block["type"] == "tool_use"]
    if len(ids) == len(set(ids)):
        missing = [block for block in said if block not in shown and block["type"] != "text"]
        # The API rejects an error without content.
        assert [one for one in missing if one.get("content") or not one.get("is_error")] == []


def _blocks(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@pytest.mark.proves("G1")
@given(any_events, st.sampled_from([0, 1, 3, 8]))
def test_an_eviction_takes_whole_responses(events: list[tuple[str, list[Json]]], keep: int) -> None:
    session = shaped_session(events)
    policy = replace(PRESETS["balanced"], keep_messages=keep, keep_tokens=0, min_gain_tokens=0)

    leaving = decide_eviction(session.stored.messages, policy, Trigger.REQUEST, now_ms=1 << 50)

    if leaving:
        gone = {message.position for message in leaving}
        for one in session.stored.messages:
            if one.element is Element.JOINED:
                head = _head_of(session.stored.messages, one)
                assert (head.position in gone) == (one.position in gone)
        left = evicted(session, gone)
        for shape in Shape:
            made = plan(left.stored, WindowRequest(shape=shape), policy)
            assert FAULTS[shape](left.shown(made)[0]) in ([], ["no user speaks first"])


@pytest.mark.proves("G1")
@given(st.lists(chat_turns(), min_size=1, max_size=4))
def test_chat_messages_survive_the_way_to_items_and_back(turns: list[list[Json]]) -> None:
    messages = [message for turn in turns for message in turn]

    items = shapes.responses_from_chat(messages)
    back = shapes.chat_from_responses(items)

    assert _text(back) == _text(messages)
    assert _calls(back) == _calls(messages)
    assert [one for one in back if one["role"] == "tool"] == [
        one for one in messages if one["role"] == "tool"
    ]


@pytest.mark.proves("G1")
@given(st.lists(responses_turns(), min_size=1, max_size=3))
def test_items_survive_the_way_to_chat_and_back(turns: list[list[Json]]) -> None:
    items = [item for turn in turns for item in turn]

    back = shapes.responses_from_chat(shapes.chat_from_responses(items))

    assert _call_ids(back) == _call_ids(items)
    known = ("message", "function_call", "function_call_output")
    told = "".join(json.dumps(item) for item in back)
    for item in items:
        if item.get("type", "message") in known[1:]:
            assert item["call_id"] in told


@pytest.mark.proves("G1")
@given(st.lists(anthropic_turns(), min_size=1, max_size=3))
def test_anthropic_messages_survive_the_way_to_chat_and_back(turns: list[list[Json]]) -> None:
    messages = [message for turn in turns for message in turn]
    chat = shapes.chat_from_anthropic(messages, system="Be brief.")

    assert chat[0] == {"role": "system", "content": "Be brief."}
    if any(message["role"] == "tool" for message in chat) and not _all_answered(chat):
        return
    system, back = shapes.anthropic_from_chat(chat)

    assert (system or "").startswith("Be brief.")
    thoughts = [
        block for message in messages for block in _blocks(message) if block["type"] == "thinking"
    ]
    assert [
        block for message in back for block in message["content"] if block["type"] == "thinking"
    ] == thoughts
    inputs = [
        block["input"]
        for message in messages
        for block in _blocks(message)
        if block["type"] == "tool_use"
    ]
    assert [
        block["input"]
        for message in back
        for block in message["content"]
        if block["type"] == "tool_use"
    ] == inputs


def _all_answered(chat: list[Json]) -> bool:
    ids: set[str] = set()
    for message in chat:
        if message["role"] == "assistant":
            ids = {call["id"] for call in message.get("tool_calls") or ()}
        elif message["role"] == "tool" and message["tool_call_id"] not in ids:
            return False
    return True


def _text(messages: list[Json]) -> str:
    said = [message["content"] for message in messages if message["role"] != "tool"]
    texts = [
        part if isinstance(part, str) else part["text"]
        for content in said
        for part in (content if isinstance(content, list) else [content or ""])
    ]
    return "".join(texts)


def _calls(messages: list[Json]) -> list[Any]:
    return [call for message in messages for call in message.get("tool_calls") or ()]


def _call_ids(items: list[Json]) -> list[Any]:
    return [
        item["call_id"]
        for item in items
        if item.get("type", "").endswith("_call") and "call_id" in item
    ]


@pytest.mark.proves("G1", "L6")
@given(any_events)
def test_every_text_of_an_element_is_counted(events: list[tuple[str, list[Json]]]) -> None:
    """I3: also reasoning that is encrypted, and items of unknown types."""
    for seq, (shape, said) in enumerate(events, start=1):
        event = decoded(seq, said, shape)
        said_tokens = sum(counter()(text) for one in said for text in _strings(one))
        assert sum(one.tokens for one in event.messages) >= said_tokens * 0.8 - 8 * len(said)


def _strings(value: Any, key: str = "") -> list[str]:
    skipped = ("type", "id", "role", "status", "call_id", "tool_use_id", "image_url", "signature")
    if isinstance(value, dict):
        return [
            text
            for name, one in value.items()
            if name not in skipped
            for text in _strings(one, name)
        ]
    if isinstance(value, list):
        return [text for one in value for text in _strings(one, key)]
    return [value] if isinstance(value, str) and key != "cache_control" else []


@given(st.text(min_size=1), st.text(), st.text(), st.booleans())
def test_what_is_packed_is_unpacked_to_the_letter(
    text: str, before: str, after: str, is_ascii: bool
) -> None:
    literal = json.dumps(text * 200, ensure_ascii=is_ascii)
    element = f'{{"a": {json.dumps(before)}, "b": {literal}, "c": {json.dumps(after)}}}'
    body = f'{{"content": {literal}}}'

    packed = pack(element, body, literal)

    assert unpack(packed, body) == element
    assert packed is not None
    assert len(packed) < len(element)
    assert unpack(pack(body, body, literal), body) == body


def test_a_response_is_one_chat_message() -> None:
    """C76: the items of one response are one message of the assistant, and reasoning is no text."""
    items: list[Json] = [
        {"role": "user", "content": "Check it."},
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAA"},
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]

    user, answer, *results = shapes.chat_from_responses(items)

    assert user == {"role": "user", "content": "Check it."}
    assert [call["id"] for call in answer["tool_calls"]] == ["a", "b"]
    assert answer["content"] is None
    assert [result["content"] for result in results] == ["2", "1"]
    assert Role(results[0]["role"]) is Role.TOOL


@pytest.mark.proves("L5")
def test_a_call_that_is_shown_as_a_function_has_the_output_of_one() -> None:
    """The arguments of a patch are shortened as those of a function; its output stays whole."""
    patch = {"type": "update_file", "path": "a.py", "diff": "+line of it\n" * 900}
    session = shaped_session(
        [
            (
                "responses",
                [
                    {"role": "user", "content": "Mend it."},
                    {"type": "apply_patch_call", "call_id": "c1", "operation": patch},
                    {"type": "apply_patch_call_output", "call_id": "c1", "output": "Done."},
                    {"role": "user", "content": "And now?"},
                ],
            )
        ]
    )
    asked = WindowRequest(budget_tokens=1_000, shape=Shape.RESPONSES)

    shown, _ = session.shown(plan(session.stored, asked, PRESETS["balanced"]))

    assert [item.get("type") for item in shown[1:3]] == ["function_call", "function_call_output"]
    assert shown[2]["output"] == "Done."


@pytest.mark.proves("L5")
def test_an_output_of_another_type_answers_its_call_as_one_of_its_own() -> None:
    screenshot = {"type": "computer_screenshot", "image_url": "https://example.com/a.png"}
    session = shaped_session(
        [
            (
                "chat",
                [
                    {"role": "user", "content": "Look."},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": "c1",
                                "type": "function",
                                "function": {"name": "computer", "arguments": "{}"},
                            }
                        ],
                    },
                ],
            ),
            (
                "responses",
                [{"type": "computer_call_output", "call_id": "c1", "output": screenshot}],
            ),
        ]
    )

    shown, _ = session.shown(
        plan(session.stored, WindowRequest(shape=Shape.RESPONSES), PRESETS["balanced"])
    )

    image = {"type": "input_image", "image_url": screenshot["image_url"], "detail": "auto"}
    assert shown[2] == {"type": "function_call_output", "call_id": "c1", "output": [image]}


@pytest.mark.proves("L5")
def test_a_call_that_is_answered_as_a_function_is_shown_as_one() -> None:
    session = shaped_session(
        [
            (
                "responses",
                [
                    {"role": "user", "content": "Look."},
                    {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
                    {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
                ],
            )
        ]
    )

    shown, _ = session.shown(
        plan(session.stored, WindowRequest(shape=Shape.RESPONSES), PRESETS["balanced"])
    )

    assert responses_faults(shown) == []
    assert [item.get("type") for item in shown[1:]] == ["function_call", "function_call_output"]


@pytest.mark.proves("L5")
def test_a_call_whose_output_is_cut_is_shown_as_one_of_a_function() -> None:
    call = {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}}
    output = {"type": "local_shell_call_output", "id": "c1", "output": "a.py " * 3_000}
    session = shaped_session([("responses", [{"role": "user", "content": "Look."}, call, output])])

    asked = WindowRequest(shape=Shape.RESPONSES, budget_tokens=600)
    shown, _ = session.shown(plan(session.stored, asked, PRESETS["balanced"]))

    assert responses_faults(shown) == []
    assert [item.get("type") for item in shown[1:]] == ["function_call", "function_call_output"]


@pytest.mark.proves("L5")
def test_the_id_of_an_output_of_a_local_shell_is_that_of_its_call() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        {"type": "local_shell_call", "id": "l1", "call_id": "c1", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c1", "output": "a.py"},
    ]
    session = shaped_session([("responses", items[:2]), ("responses", items[2:])])

    shown, _ = session.shown(
        plan(session.stored, WindowRequest(shape=Shape.RESPONSES), PRESETS["balanced"])
    )

    assert shown == items


@pytest.mark.proves("L5", "G1")
@pytest.mark.parametrize("budget", [600, 1_500, 4_000, FULL])
def test_an_answer_to_a_request_for_approval_is_shown_with_it_or_as_a_message(budget: int) -> None:
    """The API knows no request by its id alone; of a response of its own, the request may leave."""
    question = {"role": "user", "content": "Roll. " + "word " * 60}
    said = {"type": "message", "role": "assistant", "content": "said " * 40}
    events: list[tuple[str, list[Json]]] = [("responses", [question])]
    for number in range(12):
        name, arguments = f"mcpr_{number}", json.dumps({"dice": "2d6 " * 60})
        request = {"type": "mcp_approval_request", "id": name, "arguments": arguments}
        answer = {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}
        call = {"type": "mcp_call", "id": f"m{number}", "arguments": "{}", "output": "7 " * 100}
        events += [("responses", items) for items in ([request], [answer], [call, said])]
    session = shaped_session(events)
    asked = WindowRequest(budget_tokens=budget, shape=Shape.RESPONSES)

    shown, _ = session.shown(plan(session.stored, asked, PRESETS["balanced"]))

    requested: list[Any] = []
    for item in shown:
        if item.get("type") == "mcp_approval_request":
            requested.append(item["id"])
        if item.get("type") == "mcp_approval_response":
            assert item["approval_request_id"] in requested
    assert "mcpr_11" in str([item for item in shown if item.get("role") != "assistant"])


@pytest.mark.proves("L5", "G1")
def test_a_call_that_the_provider_ran_has_its_result_also_if_the_turn_was_paused_between() -> None:
    """Then they come in two answers, of which a window may show one. The newest still runs."""
    said = {"type": "text", "text": "said " * 40}
    events: list[tuple[str, list[Json]]] = []
    for number in range(12):
        use = {"type": "server_tool_use", "name": "web_search", "input": {"query": "y " * 40}}
        pages = [{"type": "web_search_result", "encrypted_content": "c " * 130}]
        result = {"type": "web_search_tool_result", "content": pages}
        call = {**use, "id": f"srv_{number}"}
        answers = [[said, call], [{**result, "tool_use_id": call["id"]}, said]]
        question = {"role": "user", "content": f"Question {number}? " + "word " * 60}
        events += [
            ("anthropic", [question]),
            *[("anthropic", [{"role": "assistant", "content": blocks}]) for blocks in answers],
        ]
    session = shaped_session(events[:-1])

    for budget in range(400, 6_000, 50):
        asked = WindowRequest(budget_tokens=budget, shape=Shape.ANTHROPIC)
        shown, _ = session.shown(plan(session.stored, asked, PRESETS["balanced"]))

        blocks = [block for message in shown for block in message["content"]]
        used = [one["id"] for one in blocks if one["type"] == "server_tool_use"]
        found = [one["tool_use_id"] for one in blocks if one["type"] == "web_search_tool_result"]
        # The newest answer may be cut as well.
        assert used in (found, [*found, "srv_11"])


@pytest.mark.proves("L5", "L1")
@pytest.mark.parametrize("one", [["a"], {"a": 1}, None])
def test_ids_of_calls_that_a_provider_runs_may_be_any_json(one: Any) -> None:
    asked = {"role": "user", "content": "Roll."}
    blocks = [{"type": "mcp_tool_use", "id": one}, {"type": "mcp_tool_result", "tool_use_id": one}]
    items: list[Json] = [
        {"type": "mcp_approval_request", "id": one},
        {"type": "mcp_approval_response", "approval_request_id": one, "approve": True},
    ]
    answer = {"role": "assistant", "content": blocks}
    session = shaped_session([("anthropic", [asked, answer])])
    shown, _ = session.shown(
        plan(session.stored, WindowRequest(shape=Shape.ANTHROPIC), PRESETS["balanced"])
    )
    assert shown[1] == answer

    session = shaped_session([("responses", [asked, *items])])
    shown, _ = session.shown(
        plan(session.stored, WindowRequest(shape=Shape.RESPONSES), PRESETS["balanced"])
    )
    assert shown[1:] == items


@pytest.mark.proves("W6", "L5")
@pytest.mark.parametrize("budget", [300, 600, FULL])
@pytest.mark.parametrize("name", ["read", ""])
def test_a_window_as_of_an_item_in_mid_response_lacks_the_calls_after_it(
    budget: int, name: str
) -> None:
    """Also if it shortens arguments, or leaves out a call without a name."""
    calls = [
        {
            "type": "function_call",
            "call_id": f"c{number}",
            "name": name if number == 0 else "read",
            "arguments": json.dumps({"text": "value = 1\n" * 400 * number}),
        }
        for number in range(3)
    ]
    session = shaped_session([("responses", [{"role": "user", "content": "Read."}, *calls])])
    then = replace(session.stored, messages=session.stored.messages[:3], total=3)
    asked = WindowRequest(budget_tokens=budget, shape=Shape.RESPONSES)

    shown, _ = session.shown(plan(then, asked, PRESETS["balanced"]))

    assert responses_faults(shown) == []
    assert _call_ids(shown) == [call["call_id"] for call in calls[:2] if call["name"]]
