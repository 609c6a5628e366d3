"""The tools with which a model looks things up in its session, in every store."""

import json
import re
from typing import Any

import pytest

from tests.contract.query.test_search import indexed
from tests.store_fixtures import KEY, Stores, assistant, picture, retracted, turn, user
from turnfold.contracts.requests import ToolRequest
from turnfold.messages import position_of
from turnfold.operations.query import tools
from turnfold.operations.query.tools import ToolStores, run_tool


async def told(stores: Stores, name: str, **arguments: Any) -> str:
    """The content that a tool returns to the model."""
    request = ToolRequest(name=name, arguments=arguments)
    answer = await run_tool(KEY, request, ToolStores(stores.history, stores.search, stores.recall))
    content: str = json.loads(answer)["content"]
    return content


@pytest.mark.proves("F2", "F4")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *((word, word) for word in ("broker", "foundation", "founder", "thoughts", "rod", "many")),
        ("thinking", "thought"),
        ("gone", "go"),
        ("पानी", "पानी लाओ"),
        ("गाड़ी", "नई गाड़ियाँ, पुरानी गाड़ी"),
        ("ทะเล", "ฉันแพ้อาหารทะเล"),
        ("ısparta", "ISPARTA gülü"),
    ],
)
async def test_a_word_is_found_by_itself_and_by_the_forms_of_its_verb(
    stores: Stores, asked: str, said: str
) -> None:
    await stores.ingest(turn(1, user(f"Wednesday: {said}."), assistant("Noted.")))
    await indexed(stores)

    found = await told(stores, "search_history", query=f"Which {asked}?")

    assert f"Wednesday: {said}." in found


@pytest.mark.proves("F4")
@pytest.mark.parametrize("asked", ["R", "who am I", "you and me?"])
async def test_a_search_for_nothing_but_letters_and_function_words_finds_them(
    stores: Stores, asked: str
) -> None:
    await stores.ingest(turn(1, user("Plot it in R."), user("Who am I to you and me?")))
    await stores.ingest(*[turn(seq, user(f"Go on, day {seq}.")) for seq in range(2, 20)])
    await indexed(stores)

    found = await told(stores, "search_history", query=asked)

    assert ("Plot it in R." if asked == "R" else "Who am I to you and me?") in found


@pytest.mark.proves("F4")
async def test_a_match_that_is_too_large_to_be_shown_is_named_by_its_position(
    stores: Stores,
) -> None:
    log = "\n".join(f"line {number}: calm weather" for number in range(1_500))
    await stores.ingest(
        turn(1, user(f"Zebra valve.\n{log}")),
        turn(2, user("Which valve?"), assistant("The zebra's.")),
    )
    await indexed(stores)
    position = position_of(1, 0)
    named = f"[matches too large to be shown here; read_messages from position: {position}]"

    found = await told(stores, "search_history", query="zebra valve")
    await stores.ingest(retracted(3, "e2#0", "e2#1"))
    only = await told(stores, "search_history", query="zebra valve")

    assert "The zebra's." in found
    assert found.endswith(f"\n{named}")
    assert only == named
    assert "Zebra valve." in await told(stores, "read_messages", position=position, count=1)


@pytest.mark.proves("F4")
async def test_messages_after_large_images_are_read_or_said_to_follow(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in range(1, 5):
        content = [{"type": "text", "text": f"Picture {seq}."}, picture(1_200_000)]
        await stores.ingest(turn(seq, user(content), assistant(f"Cat {seq}.")))

    read = await told(stores, "read_messages", position=0, count=7)
    monkeypatch.setattr(tools, "MOST_READ", 2_000_000)
    begun = await told(stores, "read_messages", position=0, count=8)
    rest = await told(stores, "read_messages", position=position_of(3, 0), count=8)

    assert re.findall(r"(?:Picture|Cat) \d", read) == [
        *(f"{name} {seq}" for seq in range(1, 4) for name in ("Picture", "Cat")),
        "Picture 4",
    ]
    assert "follow" not in read
    assert re.findall(r"(?:Picture|Cat) \d", begun)[-2:] == ["Picture 2", "Cat 2"]
    assert f"read_messages from position: {position_of(2, 1) + 1}]" in begun
    assert re.findall(r"(?:Picture|Cat) \d", rest)[0] == "Picture 3"
    assert "follow" not in rest


@pytest.mark.proves("F4")
async def test_a_model_is_told_to_read_on_from_the_first_message_that_it_was_not_shown(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in range(1, 8):
        said = {"type": "text", "text": f"Report {seq}. {'word ' * 2_000}"}
        await stores.ingest(turn(seq, user([said, picture(1_200_000)])))
    monkeypatch.setattr(tools, "MOST_READ", 3_000_000)

    read = await told(stores, "read_messages", position=0, count=7)

    assert re.findall(r"Report \d", read) == ["Report 1", "Report 2"]
    assert re.findall(r"position: (\d+)", read) == [str(position_of(3, 0))]


@pytest.mark.proves("F4")
async def test_a_model_reads_a_refusal_and_a_transcript_of_speech(stores: Stores) -> None:
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "In Ghent."}}
    refused = {"role": "assistant", "content": None, "refusal": "I cannot open it."}
    await stores.ingest(turn(1, user("Where is it?"), spoken, user("Open it."), refused))

    read = await told(stores, "read_messages", position=0, count=4)

    assert "assistant: In Ghent." in read
    assert "assistant: I cannot open it." in read
