"""What the service tells and what the agent has beyond it become one list."""

from typing import Any

import pytest

from tests.histories import counter
from turnfold import LadderCompressor, assemble
from turnfold.client import merge
from turnfold.client.merge import merge_history
from turnfold.client.provider import History
from turnfold.core.recall.block import HEADING as RECALL_HEADING
from turnfold.core.window.framing import DIGEST_TITLE, HEADING

Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "Be brief."}
NOTE = {"role": "user", "content": f"{HEADING}\n<turnfold-summary>\nThey met.\n</turnfold-summary>"}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def calling(call_id: str) -> Json:
    call = {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(call_id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def together(
    own: list[Json], told: list[Json], *, synthesised: frozenset[int] = frozenset()
) -> list[Json]:
    merged = merge_history(own, History(told, 0, synthesised))
    return assemble(merged.systems, merged.provided, merged.newer)


@pytest.mark.proves("R1")
def test_what_was_not_published_yet_follows_what_was() -> None:
    published = [user("one"), said("two")]

    assert together([SYSTEM, *published, user("three")], [NOTE, *published]) == [
        SYSTEM,
        NOTE,
        *published,
        user("three"),
    ]


@pytest.mark.proves("R1")
def test_a_list_that_holds_only_what_is_new_follows_all_that_was_told() -> None:
    assert together([SYSTEM, user("new")], [user("one"), said("two")]) == [
        SYSTEM,
        user("one"),
        said("two"),
        user("new"),
    ]


@pytest.mark.proves("R1")
def test_a_word_said_again_is_not_taken_for_the_other_time() -> None:
    published = [user("go on"), said("done"), user("go on"), said("done")]

    assert together([*published, user("go on"), said("done"), user("go on")], published) == [
        *published,
        user("go on"),
        said("done"),
        user("go on"),
    ]


@pytest.mark.proves("R1")
def test_a_request_that_was_made_before_in_the_same_words_is_made_again() -> None:
    published = [user("go on"), said("done")]

    assert together([SYSTEM, user("go on")], published) == [SYSTEM, *published, user("go on")]


@pytest.mark.proves("R1")
def test_a_result_that_is_not_published_yet_takes_the_place_of_its_stand_in() -> None:
    told = [user("look"), calling("c1"), result("c1", "[No result of this call is known.]")]

    own = [user("look"), calling("c1"), result("c1", "found")]

    assert together(own, told, synthesised=frozenset({2})) == own


@pytest.mark.parametrize("differs", ["", "another "], ids=["equal", "other texts"])
def test_an_id_that_every_call_has_costs_no_comparison_of_each_message_with_each(
    monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    listed = [user("Read them all."), *[body for number in range(300) for body in reading(number)]]
    told = [listed[0], *[{**body, "content": f"{differs}{body['content']}"} for body in listed[1:]]]
    compared, is_same = [], merge._is_same

    def noted(*both: Any) -> bool:
        compared.append(both)
        return is_same(*both)

    monkeypatch.setattr(merge, "_is_same", noted)

    assert together(listed, told) == told

    assert len(compared) < 4 * len(listed)


@pytest.mark.proves("R1", "L2")
def test_results_that_the_agent_has_as_they_came_hide_nothing_that_was_published() -> None:
    """A window has them in the order of their calls, so the two lists differ."""

    def step(number: int) -> list[Json]:
        ids = [f"{number}a", f"{number}b"]
        calls = [calling(call_id)["tool_calls"][0] for call_id in ids]
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            *[result(call_id, f"Text {call_id}") for call_id in ids],
            user("Reflect on the results."),
        ]

    def as_they_came(told: list[Json]) -> list[Json]:
        return [told[0], told[2], told[1], told[3]]

    published = [user("Read them all."), *step(1), *step(2)]
    own = [published[0], *as_they_came(step(1)), *as_they_came(step(2)), said("Read.")]

    assert together(own, published) == [*published, said("Read.")]
    assert together(own, [published[0], *step(2)]) == [published[0], *step(2), said("Read.")]


@pytest.mark.proves("R1")
def test_results_of_calls_that_share_an_id_stay_in_their_order() -> None:
    """Some hosts use the tool's name for the id of a call, also of several calls at once."""
    call = calling("read")["tool_calls"][0]
    own = [user("Read both."), {"role": "assistant", "content": None, "tool_calls": [call, call]}]
    own += [result("read", "Text a"), result("read", "Text b")]

    assert together(own, [own[0]]) == own


@pytest.mark.proves("R1")
def test_the_agents_own_system_message_stands_for_the_published_one() -> None:
    published = [{"role": "system", "content": "Be kind."}, user("one")]

    assert together([SYSTEM, user("one")], published) == [SYSTEM, user("one")]
    assert together([user("one")], published) == published


@pytest.mark.proves("R1")
def test_the_summary_of_an_earlier_window_makes_room_for_the_newest() -> None:
    newest = NOTE | {"content": NOTE["content"].replace("met", "met again")}

    assert together([SYSTEM, NOTE, user("one"), user("two")], [newest, user("one")]) == [
        SYSTEM,
        newest,
        user("one"),
        user("two"),
    ]


@pytest.mark.proves("R1")
def test_messages_shortened_in_the_window_are_known_by_the_ids_of_their_calls() -> None:
    shortened = [
        user("look"),
        calling("c1"),
        result("c1", "[look_up: 900 tokens left out, original: e#2]"),
    ]

    assert together(
        [user("look"), calling("c1"), result("c1", "long " * 900), user("and?")], shortened
    ) == [*shortened, user("and?")]


LIST = said("Here is the list.\n" + "\n".join(f"line {n}, value {n * 37}" for n in range(900)))


def cut(message: Json, budget_tokens: int) -> Json:
    """A long answer as a window of this budget shows it."""
    shown = LadderCompressor(counter()).compress(
        [user("A list."), message, user("Go on.")], budget_tokens
    )
    assert shown.messages[1] != message
    return shown.messages[1]


def reading(number: int) -> list[Json]:
    """A call and its result. Hosts of models that give calls no ids use the tool's name for one."""
    function = {"name": "read", "arguments": f'{{"path": "{number}.txt"}}'}
    call = {"id": "read", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        result("read", f"Text {number}"),
    ]


LINE = result("read", "[read 4.txt: 900 tokens left out, original: e4#0]")


@pytest.mark.proves("R1", "I1")
@pytest.mark.parametrize(
    ("told", "own"),
    [
        # Steps between the request and the window's newest have been evicted.
        (reading(4), range(1, 7)),
        ([reading(4)[0], LINE], range(1, 7)),
        # The agent goes on with what an emergency window left it.
        ([*reading(3), *reading(4)], range(4, 7)),
        ([*reading(3), reading(4)[0], LINE], range(4, 7)),
        ([reading(3)[0], LINE, *reading(4)], range(4, 6)),
    ],
    ids=["evicted", "evicted, a line", "after an overflow", "then a line", "before a line"],
)
def test_an_id_that_every_call_has_hides_and_repeats_no_step(told: list[Json], own: range) -> None:
    request = user("Read them all.")
    listed = [request, *[body for number in own for body in reading(number)]]

    sent = together(listed, [request, *told])

    assert sent == [request, *told, *listed[listed.index(reading(5)[0]) :]]


@pytest.mark.proves("R1", "L2")
def test_a_long_answer_that_the_window_has_cut_is_not_sent_whole_as_well() -> None:
    told = [user("A list."), cut(LIST, 900)]

    assert together([user("A list."), LIST, user("Shorter.")], told) == [*told, user("Shorter.")]


@pytest.mark.proves("R1", "L2")
@pytest.mark.parametrize("told", [LIST, cut(LIST, 900)], ids=["whole", "cut otherwise"])
def test_an_answer_that_was_cut_in_the_agents_list_is_known_in_the_window(told: Json) -> None:
    own = [user("A list."), cut(LIST, 1_500), user("Shorter.")]

    assert together(own, [user("A list."), told]) == [user("A list."), told, user("Shorter.")]


@pytest.mark.proves("R1", "L1")
def test_another_message_is_not_taken_for_the_one_that_was_cut() -> None:
    other = LIST | {"content": "No list. " + str(LIST["content"])}

    assert together([user("Again."), other, user("Why?")], [cut(LIST, 900)]) == [
        cut(LIST, 900),
        user("Again."),
        other,
        user("Why?"),
    ]


@pytest.mark.proves("R1", "L5")
def test_a_new_request_of_the_same_template_as_a_cut_one_is_sent() -> None:
    def request(name: str) -> Json:
        rules = "Read each line, and name the part that failed. " * 40
        return user(rules + f"The log of {name}. " * 400 + rules)

    told = (
        LadderCompressor(counter()).compress([request("hall 1"), said("The pump.")], 500).messages
    )
    assert told[0] != request("hall 1")
    own = [request("hall 2"), calling("c2"), result("c2", "ok")]

    assert together(own, list(told)) == [*told, *own]


@pytest.mark.proves("R1", "L1")
@pytest.mark.parametrize("told", [[user("one"), said("two")], []])
@pytest.mark.parametrize("heading", [HEADING, DIGEST_TITLE, RECALL_HEADING])
def test_a_request_that_begins_like_a_note_is_sent(heading: str, told: list[Json]) -> None:
    own = [NOTE, user("one"), said("two"), user(f"{heading}\nSo says your page. Why?")]

    assert together(own, [NOTE, *told])[-1] == own[-1]
    assert together(own, [NOTE, *own[1:]]) == own


@pytest.mark.proves("R1")
def test_a_recall_block_is_no_message_that_the_agent_lacks() -> None:
    block = user(f"{RECALL_HEADING}\n<turnfold-recall>\nuser: old\n</turnfold-recall>")
    own = [part for at in range(6) for part in (user("continue"), said(f"Step {at}."))]
    own.append(user("continue"))
    told = [NOTE, *own[8:12], block, own[-1]]

    assert together(own, told) == told
    assert together([*own[:-1], block, own[-1]], told) == told


@pytest.mark.proves("R1", "L2")
@pytest.mark.parametrize("missing", [{"c1"}, {"c2"}, {"c1", "c2"}])
def test_results_that_only_the_agent_has_stand_where_the_window_had_none(missing: set[str]) -> None:
    calls = [calling(one)["tool_calls"][0] for one in ("c1", "c2")]
    both = {"role": "assistant", "content": None, "tool_calls": calls}
    own = [user("Look."), both, result("c1", "one"), result("c2", "two")]
    unknown = [result(one, "[No result]") for one in ("c1", "c2")]
    told = [
        own[0],
        both,
        *(
            fake if fake["tool_call_id"] in missing else real
            for fake, real in zip(unknown, own[2:], strict=True)
        ),
    ]
    synthesised = frozenset(
        place for place, body in enumerate(told) if body.get("content") == "[No result]"
    )

    assert together(own, told, synthesised=synthesised) == own


@pytest.mark.proves("R1")
def test_an_id_that_occurs_twice_does_not_tell_which_result_is_meant() -> None:
    own = [user("A"), calling("c"), result("c", "first"), calling("c"), result("c", "second")]
    told = [user("A"), calling("c"), result("c", "[No result]")]

    assert result("c", "[No result]") not in together(own, told, synthesised=frozenset({2}))
