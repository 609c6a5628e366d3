"""Windows that grow by the elements of a call."""

import json
from typing import Any

import pytest

from turnfold.client import Window
from turnfold.client.mirrored_list import EventRun
from turnfold_proxy.apis import APIS
from turnfold_proxy.continuing import (
    GrownWindow,
    KnownWindow,
    ListBytes,
    grown,
    own_elements,
    parts_of,
)

Json = dict[str, Any]

pytestmark = pytest.mark.proves("G10")

CHAT = APIS["/v1/chat/completions"]
USER: Json = {"role": "user", "content": "Where is 7341?"}
SUMMARY: Json = {"role": "user", "content": "A summary."}
SPOKEN: Json = {"role": "assistant", "content": "In Ghent."}
FUNCTION = {"name": "track", "arguments": "{}"}
CALL: Json = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}],
}
RESULT: Json = {"role": "tool", "tool_call_id": "c1", "content": "Ghent"}
OLD = [USER, SPOKEN, USER]


def continued(
    new: list[Json],
    *,
    window: list[Json] | None = None,
    budget_tokens: int = 1_000,
    factor: float | None = 1.0,
) -> GrownWindow | None:
    """The window of `OLD` and what is new; `window` is that of `OLD`, or None if it was whole."""
    known = KnownWindow(
        listed=ListBytes(OLD).digest,
        asked="m",
        beside_tokens=10,
        parts=None if window is None else parts_of(window, OLD),
        tokens=500,
        budget_tokens=budget_tokens,
        version=3,
        factor=factor,
    )
    # As the next request brings them: equal, and other objects.
    own = json.loads(json.dumps([*OLD, *new]))
    return grown(known, CHAT, own, ListBytes(own), asked="m", beside_tokens=10, count=len)


def test_the_results_of_calls_stand_after_the_window_of_the_list_before() -> None:
    window = continued([CALL, RESULT], window=[SUMMARY, OLD[2]])

    assert window is not None
    assert window.elements == [SUMMARY, USER, CALL, RESULT]
    assert window.version == 3
    assert window.tokens > 500


def test_a_list_that_was_sent_whole_goes_on_whole() -> None:
    window = continued([SPOKEN, USER])

    assert window is not None
    assert window.elements is None


@pytest.mark.parametrize(
    "new",
    [
        pytest.param([SPOKEN, USER], id="a new request decides what is recalled"),
        pytest.param([CALL], id="a call without its result"),
        pytest.param([RESULT], id="a result without its call"),
        pytest.param([CALL, SPOKEN, RESULT], id="something between a call and its result"),
        pytest.param([CALL, RESULT, {"role": "system", "content": "Be brief."}], id="instructions"),
        pytest.param([], id="the same list again"),
    ],
)
def test_anything_else_is_left_to_the_services(new: list[Json]) -> None:
    assert continued(new, window=[SUMMARY, OLD[2]]) is None


@pytest.mark.proves("T5")
@pytest.mark.parametrize("window", [None, [SUMMARY, OLD[2]]])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "document", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ],
)
def test_media_are_not_counted_as_text(window: list[Json] | None, part: Json) -> None:
    """A screenshot would count as hundreds of thousands of tokens, which takes a second."""
    assert continued([CALL, RESULT | {"content": [part]}], window=window) is None


@pytest.mark.proves("T5")
def test_spoken_answers_are_not_counted_as_text() -> None:
    spoken = {"role": "assistant", "audio": {"id": "audio_1"}}

    assert continued([spoken, USER]) is None


def test_a_window_never_grows_beyond_its_budget() -> None:
    result = RESULT | {"content": "Ghent " * 100}

    assert continued([CALL, result], window=[SUMMARY, OLD[2]], budget_tokens=900) is None
    assert continued([CALL, result], window=[SUMMARY, OLD[2]], budget_tokens=2_000) is not None


@pytest.mark.proves("T5", "L6")
def test_new_elements_count_as_the_model_counts_them() -> None:
    result = RESULT | {"content": "Ghent " * 50}
    plain = continued([CALL, result], window=[SUMMARY, OLD[2]], budget_tokens=2_000)
    billed = continued([CALL, result], window=[SUMMARY, OLD[2]], budget_tokens=2_000, factor=1.25)

    assert plain is not None
    assert billed is not None
    assert billed.tokens - 500 >= 1.25 * (plain.tokens - 500)
    room = plain.tokens
    assert continued([CALL, result], window=[SUMMARY, OLD[2]], budget_tokens=room) is not None
    assert (
        continued([CALL, result], window=[SUMMARY, OLD[2]], budget_tokens=room, factor=1.25) is None
    )


def test_a_window_is_not_continued_before_the_factor_of_its_model_is_known() -> None:
    assert continued([CALL, RESULT], window=[SUMMARY, OLD[2]], factor=None) is None


def test_an_edited_list_is_left_to_the_services() -> None:
    edited = ListBytes([USER, SPOKEN, SPOKEN]).digest
    known = KnownWindow(edited, "m", 0, None, 1, 1_000, 0, 1.0)
    own = [*OLD, USER]

    window = grown(known, CHAT, own, ListBytes(own), asked="m", beside_tokens=0, count=len)

    assert window is None


def test_a_list_is_known_by_equal_elements_and_not_by_the_same_objects() -> None:
    own = [*OLD, CALL, RESULT | {"content": "\ud83d Gänt"}, USER]
    again = json.loads(json.dumps(own))

    for length in range(len(own)):
        known = ListBytes(own[:length]).digest
        assert ListBytes(again).begins_with(known)
        assert ListBytes(again[:length]).digest == known
        assert ListBytes(again[: length + 1]).digest != known
        edited = [*again[:length], RESULT]
        assert not ListBytes(edited).begins_with(ListBytes(own[: length + 1]).digest)


def test_a_list_that_is_nested_too_deeply_is_an_error() -> None:
    nested: Json = {}
    for _ in range(10_000):
        nested = {"a": nested}

    with pytest.raises(RecursionError):
        ListBytes([nested])


def test_marks_of_a_cache_are_no_edit_and_results_of_anthropic_are_no_request() -> None:
    api = APIS["/v1/messages"]
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "Where?"}
    use = {"type": "tool_use", "id": "t1", "name": "track", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Ghent", **mark}
    before = [{"role": "user", "content": [text | mark]}]
    own: list[Json] = [
        {"role": "user", "content": [text]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    known = KnownWindow(ListBytes(before).digest, "m", 0, [SUMMARY, 0], 1, 1_000, 1, 1.0)

    window = grown(known, api, own, ListBytes(own), asked="m", beside_tokens=0, count=len)

    assert window is not None
    assert window.elements == [SUMMARY, *own]


@pytest.mark.proves("L5")
@pytest.mark.parametrize("is_paused", [False, True])
def test_what_the_provider_found_is_shown_only_with_its_call(is_paused: bool) -> None:
    """The call is in an earlier message if the turn was paused, and that may have been shortened."""
    api = APIS["/v1/messages"]
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    use = {"type": "tool_use", "id": "t1", "name": "track", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Ghent"}
    before: list[Json] = [USER, {"role": "assistant", "content": [search] if is_paused else "Yes?"}]
    blocks = [found, use] if is_paused else [search, found, use]
    new: list[Json] = [
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result]},
    ]
    window: list[int | Json] = [0, {"role": "assistant", "content": "[shortened]"}]
    known = KnownWindow(ListBytes(before).digest, "m", 0, window, 1, 1_000, 1, 1.0)
    own = [*before, *new]

    continued_window = grown(known, api, own, ListBytes(own), asked="m", beside_tokens=0, count=len)

    assert (continued_window is None) == is_paused


def mirror_id(place: int, view: int = 0) -> str:
    """The id of a message of the element at this place, which is an event of its own."""
    return f"mirror-{place + 1}-1-{'0' * 32}-0#{view}"


def window_of(
    messages: list[Json | None], ids: list[Any], without: dict[int, list[str]] | None = None
) -> Window:
    """A window as the query service answers it; `without` names what places are shown without."""
    entries = [
        {"id": one, "form": "cut", "without": (without or {}).get(place, [])}
        for place, one in enumerate(ids)
    ]
    answer = {"agent_id": "a", "session_id": "s", "messages": messages, "message_ids": ids}
    return Window.of(answer | {"entries": entries})


LONG = {"name": "track", "arguments": '{"order":"7341 7341"}'}
SHORT = {"name": "track", "arguments": '{"order": "73[TRUNCATED]"}'}
THOUGHT = {"reasoning_content": "Hm.", "reasoning": "Hm."}


def called(function: Json, **fields: Any) -> Json:
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call | fields]}


@pytest.mark.proves("C78")
@pytest.mark.parametrize(
    ("own", "shown", "sent"),
    [
        pytest.param(
            {"role": "assistant", "content": "In Ghent, of course.", "name": "ada"},
            {"role": "assistant", "content": "In [TRUNCATED]", **THOUGHT},
            {"role": "assistant", "content": "In [TRUNCATED]", "name": "ada"},
            id="text",
        ),
        pytest.param(
            called(LONG),
            called(SHORT, index=0) | THOUGHT | {"annotations": []},
            called(SHORT),
            id="arguments",
        ),
        pytest.param(
            {name: value for name, value in called(LONG).items() if name != "content"},
            called(SHORT) | THOUGHT,
            {name: value for name, value in called(SHORT).items() if name != "content"},
            id="no content",
        ),
        pytest.param(
            called(LONG) | {"refusal": None},
            {"role": "assistant", "content": "", **THOUGHT},
            {"role": "assistant", "content": "", "refusal": None},
            id="a call that cannot be sent",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "c1", "content": "Ghent", "name": "track"},
            {"role": "tool", "tool_call_id": "c1", "content": "[TRUNCATED]"},
            {"role": "tool", "tool_call_id": "c1", "content": "[TRUNCATED]", "name": "track"},
            id="a result in one line",
        ),
    ],
)
def test_a_shortened_message_has_the_fields_that_the_caller_sent(
    own: Json, shown: Json, sent: Json
) -> None:
    """The stored one has what the provider answered first, and refuses to read again."""
    window = window_of([shown, None], [mirror_id(0), mirror_id(1)])

    assert own_elements(CHAT, window, [own, USER]) == [sent, USER]


@pytest.mark.proves("C78")
def test_reasoning_that_a_window_leaves_out_stays_out() -> None:
    own = called(LONG) | THOUGHT
    ids = [mirror_id(0)]

    assert own_elements(CHAT, window_of([called(SHORT) | THOUGHT], ids), [own]) == [
        called(SHORT) | THOUGHT
    ]
    left = window_of([called(LONG)], ids, {0: ["reasoning"]})
    assert own_elements(CHAT, left, [own]) == [called(LONG)]


@pytest.mark.proves("C78")
def test_a_shortened_item_has_no_id_that_the_caller_left_out() -> None:
    own = {"type": "function_call", "call_id": "c1", **LONG}
    window = window_of([own | SHORT | {"id": "fc_1", "status": "completed"}], [mirror_id(0)])

    assert own_elements(APIS["/v1/responses"], window, [own]) == [own | SHORT]


@pytest.mark.proves("C78")
def test_an_item_that_a_window_shows_as_another_kind_keeps_no_id_of_its_own() -> None:
    own: Json = {"type": "shell_call", "id": "sh_1", "call_id": "c1", "action": {"commands": []}}
    shown = {"type": "function_call", "call_id": "c1", "name": "shell_call", "arguments": "{}"}

    assert own_elements(APIS["/v1/responses"], window_of([shown], [mirror_id(0)]), [own]) == [shown]


@pytest.mark.proves("C78")
def test_lists_that_arrive_in_pieces_are_joined() -> None:
    reader = CHAT.reader()
    for piece in ("A", "B", "signature"):
        delta = {"content": piece, "reasoning_details": [{"text": piece}]}
        reader.add({"choices": [{"index": 0, "delta": delta}]})

    (message,) = reader.answer().elements

    assert [one["text"] for one in message["reasoning_details"]] == ["A", "B", "signature"]


MESSAGES = APIS["/v1/messages"]
MARK = {"cache_control": {"type": "ephemeral"}}


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def result_block(call_id: str) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "Ghent"}


@pytest.mark.proves("C78", "L1")
def test_a_result_whose_call_has_left_the_window_is_not_sent_with_the_text_beside_it() -> None:
    """The results and the text of one message are several messages of a session."""
    own: list[Json] = [
        {"role": "user", "content": [result_block("t1"), text_block("And 7342?") | MARK]},
        {"role": "user", "content": [result_block("t2")]},
    ]

    shown = own_elements(MESSAGES, window_of([None], [mirror_id(0, 1)]), own)
    assert shown == [{"role": "user", "content": [text_block("And 7342?") | MARK]}]
    shown = own_elements(MESSAGES, window_of([None, None], [mirror_id(0), mirror_id(1)]), own)
    assert shown == [{"role": "user", "content": [result_block("t1")]}, own[1]]
    assert shown[1] is own[1]


@pytest.mark.proves("C78", "C79")
def test_neighbors_of_one_role_that_are_shown_whole_are_sent_as_they_came() -> None:
    """The window has one message in their place. One that lacks a part of them is sent itself."""
    own: list[Json] = [
        {"role": "user", "content": [result_block("t1"), text_block("Both?") | MARK]},
        {"role": "user", "content": "And 7342?"},
        {"role": "assistant", "content": "In Ghent."},
    ]
    blocks = [result_block("t1"), text_block("Both?"), text_block("And 7342?")]
    ids = [mirror_id(0), mirror_id(0, 1), mirror_id(1)]

    whole = window_of([{"role": "user", "content": blocks}, None], [ids, mirror_id(2)])
    shown = own_elements(MESSAGES, whole, own)
    assert all(mine is one for mine, one in zip(own, shown, strict=True))
    recalled = text_block("Recalled")
    for content, these in ((blocks[1:], ids[1:]), ([recalled, *blocks], [None, *ids])):
        part = {"role": "user", "content": content}
        assert own_elements(MESSAGES, window_of([part], [these]), own) == [part]


RESPONSES = APIS["/v1/responses"]


@pytest.mark.proves("C78")
def test_reasoning_stands_before_its_own_item_if_the_caller_sends_it() -> None:
    """Its places in the session and in the list differ: the session may have more of it."""
    items: list[Json] = [
        {"role": "user", "content": "Where is 7341?"},
        {"type": "function_call", "call_id": "c1", **LONG},
        {"type": "function_call_output", "call_id": "c1", "output": "Ghent"},
    ]
    thoughts = [{"type": "reasoning", "id": f"rs_{number}", "summary": []} for number in range(3)]
    event = EventRun(1, 2, "0" * 32, "0", uncounted=0b11).event_id
    ids = [f"{event}#0", f"{event}#1", f"{event}#2", mirror_id(2)]
    short = items[1] | SHORT | {"id": "fc_1"}

    for own, beside in ((items, []), ([items[0], *thoughts[:1], *items[1:]], thoughts[:1])):
        window = window_of([None] * 5, [mirror_id(0), *ids])
        shown = own_elements(RESPONSES, window, own)
        assert all(mine is one for mine, one in zip(own, shown, strict=True))
        shown = own_elements(RESPONSES, window_of([None, None, short, None], ids), own)
        assert shown == [*beside, items[1] | SHORT, items[2]]
        assert own_elements(RESPONSES, window_of([None], ids[3:]), own) == items[2:]
    ends = [*items, thoughts[2]]
    whole = window_of([None] * 5, [mirror_id(0), *ids])
    assert own_elements(RESPONSES, whole, ends) == ends


@pytest.mark.proves("C78")
def test_thoughts_that_the_caller_leaves_out_are_not_sent() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    said: Json = {"role": "assistant", "content": [text_block("In Ghent.")]}
    cut = {"role": "assistant", "content": [thinking, text_block("In [TRUNCATED]")]}
    ids = [mirror_id(0)]

    assert own_elements(MESSAGES, window_of([cut], ids), [said]) == [
        cut | {"content": cut["content"][1:]}
    ]
    kept: Json = {"role": "assistant", "content": [thinking, *said["content"]]}
    assert own_elements(MESSAGES, window_of([cut], ids), [kept]) == [cut]
    both = window_of([{"role": "assistant", "content": [*kept["content"], *said["content"]]}],
                     [[mirror_id(0), mirror_id(1)]])  # fmt: skip
    assert own_elements(MESSAGES, both, [said, said]) == [said, said]


@pytest.mark.proves("C78", "L1")
def test_messages_that_are_neighbors_in_the_window_alone_are_one_message() -> None:
    """The message between them has left the window; a provider may want the roles in turns."""
    own: list[Json] = [
        {"role": "user", "content": [result_block("t1")]},
        {"role": "assistant", "content": "In Ghent."},
        {"role": "user", "content": "And 7342?"},
    ]
    merged = {"role": "user", "content": [result_block("t1"), text_block("And 7342?")]}
    window = window_of([merged], [[mirror_id(0), mirror_id(2)]])

    assert own_elements(MESSAGES, window, own) == [merged]
