"""The plain library: a list of chat messages is made to fit without any service."""

import copy
import subprocess
import sys
from typing import Any

import pytest

from tests.histories import counter, tool, user, words
from turnfold import CannotFit, Compressed, LadderCompressor, assemble, preset_named
from turnfold.core.history.validation import validation_errors
from turnfold.core.recovery.compressor import estimated
from turnfold.core.window.forms import STAND_IN
from turnfold.errors import BadRequest

Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "You are brief."}


def calling(call_id: str, name: str = "look_up") -> Json:
    function = {"name": name, "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def long_list(rounds: int = 40) -> list[Json]:
    messages: list[Json] = [SYSTEM]
    for number in range(rounds):
        messages += [
            user(f"request {number}"),
            calling("again"),
            tool("again", words(300)),
            {"role": "assistant", "content": words(60)},
        ]
    return [*messages, user("the newest request")]


@pytest.fixture
def compressor() -> LadderCompressor:
    return LadderCompressor(counter())


@pytest.mark.proves("W8")
def test_a_list_that_fits_comes_back_as_it_is(compressor: LadderCompressor) -> None:
    messages = [
        SYSTEM,
        user("hello"),
        calling("c1"),
        tool("c1", "found") | {"unknown": 1},
        {"role": "system", "content": "Later."},
    ]

    compressed = compressor.compress(messages, 10_000)

    assert compressed == Compressed(messages, compressor.tokens(messages))


@pytest.mark.proves("W8")
@pytest.mark.parametrize(
    "said", [{"role": "assistant", "content": None}, {"role": "user", "content": None, "name": "a"}]
)
def test_what_is_shown_whole_in_a_trimmed_list_is_to_the_letter_what_was_given(
    compressor: LadderCompressor, said: Json
) -> None:
    messages = [*long_list(), said, user("and now?")]

    compressed = compressor.compress(messages, 2_000)

    assert not compressed.is_whole
    assert compressed.messages[-2:] == [said, user("and now?")]


@pytest.mark.proves("W8", "I2", "L5")
@pytest.mark.parametrize("place", [10, 1_023])
def test_a_result_that_waits_takes_no_call_that_the_list_answers(
    compressor: LadderCompressor, place: int
) -> None:
    """However many messages stand before the call, although those of an event are limited."""
    rest = [user(f"request {number}") for number in range(place - 1)]
    messages = [tool("again", "of an earlier call"), *rest, calling("again"), tool("again", "own")]

    compressed = compressor.compress([*messages, user("and now?")], 100_000)

    assert compressed.messages[-3:] == [*messages[-2:], user("and now?")]


@pytest.mark.proves("W8", "L5", "L6")
@pytest.mark.parametrize("budget", [500, 2_000, 8_000])
@pytest.mark.parametrize("is_emergency", [False, True])
def test_a_long_list_becomes_one_that_fits_and_may_be_sent(
    compressor: LadderCompressor, budget: int, is_emergency: bool
) -> None:
    messages = long_list()
    before = copy.deepcopy(messages)

    compressed = compressor.compress(messages, budget, is_emergency=is_emergency)

    cap = budget * 3 // 5 if is_emergency else budget
    assert compressor.tokens(compressed.messages) <= compressed.tokens <= cap
    assert validation_errors(compressed.messages) == []
    assert (compressed.messages[0], compressed.messages[-1]) == (SYSTEM, messages[-1])
    assert compressed.omitted == len(messages) - sum(
        body.get("content") != STAND_IN for body in compressed.messages
    )
    assert messages == before


@pytest.mark.proves("W8")
def test_a_preset_says_how_a_list_is_shortened() -> None:
    messages = long_list(20)

    shown = (
        LadderCompressor(counter(), preset_named("adaptive")).compress(messages, 1_000_000).messages
    )

    assert len(shown) <= 51
    assert validation_errors(shown) == []
    assert (shown[0], shown[-1]) == (SYSTEM, messages[-1])


@pytest.mark.proves("W8", "L6")
def test_what_cannot_fit_is_refused_with_what_would(compressor: LadderCompressor) -> None:
    messages = [SYSTEM | {"content": words(200)}, user(words(900))]

    for is_emergency in (False, True):
        with pytest.raises(CannotFit) as caught:
            compressor.compress(messages, 100, is_emergency=is_emergency)
        needed = caught.value.needed_tokens or 0
        assert compressor.compress(messages, needed, is_emergency=is_emergency).tokens <= needed


@pytest.mark.proves("W8", "L5")
def test_a_list_that_may_not_be_sent_is_mended_however_much_room_there_is(
    compressor: LadderCompressor,
) -> None:
    messages = [
        user("look"),
        calling("c1"),
        user("and?"),
        tool("c1", "found"),
        tool("nobody", "lost"),
        calling("c2"),
    ]

    mended = compressor.compress(messages, 10_000)

    assert validation_errors(mended.messages) == []
    assert [body.get("content") for body in mended.messages] == [
        "look",
        None,
        "found",
        "and?",
        None,
        STAND_IN,
    ]
    assert mended.omitted == 1


@pytest.mark.proves("W8")
def test_the_system_messages_it_begins_with_stay_and_later_ones_keep_their_place(
    compressor: LadderCompressor,
) -> None:
    notes = [{"role": "system", "content": f"note {number}"} for number in range(2)]
    start = [SYSTEM, {"role": "developer", "content": "Be kind."}]
    messages = [*start, user(words(400)), notes[0], user(words(20)), notes[1], user("now")]

    compressed = compressor.compress(messages, 250)

    assert compressed.messages[:2] == start
    assert compressed.messages[-3:] == [user(words(20)), notes[1], user("now")]
    assert user(words(400)) not in compressed.messages


@pytest.mark.proves("W8")
def test_media_and_unknown_roles_are_weighed_or_refused(compressor: LadderCompressor) -> None:
    image = user(
        [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 90_000}},
        ]
    )

    assert compressor.compress([image], 2_000).messages == [image]
    with pytest.raises(BadRequest, match="message 0 has the role 'narrator'"):
        compressor.compress([{"role": "narrator", "content": "Meanwhile"}], 1_000)


@pytest.mark.proves("W8", "T3")
def test_without_a_tokenizer_it_counts_rather_too_much() -> None:
    messages = long_list(10)

    compressed = LadderCompressor().compress(messages, 2_000)

    assert sum(counter()(str(body.get("content") or "")) for body in compressed.messages) <= 2_000
    assert estimated(words(500)) >= counter()(words(500))


@pytest.mark.proves("W8")
def test_the_system_text_stands_first_and_what_is_said_now_last() -> None:
    history = [
        {"role": "system", "content": "old"},
        user("before"),
        {"role": "assistant", "content": "yes"},
    ]

    assert assemble("new", history, "now") == [
        {"role": "system", "content": "new"},
        *history[1:],
        user("now"),
    ]
    assert assemble(None, history, None) == history


@pytest.mark.proves("W8")
def test_the_plain_library_needs_neither_bus_nor_database_nor_model() -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] in {'nats', 'sqlalchemy', 'litellm', 'toktok', 'faststream'}: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from turnfold import LadderCompressor, ContextRecovery, assemble, counter\n"
        "compressor = LadderCompressor(counter())\n"
        "history = compressor.compress([{'role': 'user', 'content': 'word ' * 9000}, {'role': 'user', 'content': 'hi'}], 500)\n"
        "print(history.tokens <= 500, len(assemble('Be brief.', history.messages, None)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split()[:1] == ["True"], done.stderr


@pytest.mark.proves("W12", "C68")
@pytest.mark.parametrize(
    "reminder",
    [
        user("Reflect on the results.") | {"is_meta": True},
        user("Reflect on the results and decide next steps."),
    ],
)
@pytest.mark.parametrize("budget", [700, 1_500, 3_000, 6_000, 9_000])
def test_a_message_that_a_program_wrote_is_not_the_request(
    compressor: LadderCompressor, budget: int, reminder: Json
) -> None:
    request = user("Fix the bug in the parser")
    messages = long_list()
    messages[-1] = request
    for number in range(6):
        messages += [calling(f"r{number}"), tool(f"r{number}", words(300))]
        messages.append(reminder)

    compressed = compressor.compress(messages, budget)

    assert request in compressed.messages
    assert not any("is_meta" in body for body in compressed.messages)


@pytest.mark.proves("W12")
def test_where_no_person_asked_the_newest_message_of_a_program_counts(
    compressor: LadderCompressor,
) -> None:
    first, newest = user("First. " + words(200)), user("Go on.")
    messages = [body | {"is_meta": True} for body in (first, newest)]

    assert compressor.compress(messages, 60).messages == [newest]
    assert compressor.compress(messages, 900) == Compressed(
        [first, newest], compressor.tokens([first, newest])
    )
