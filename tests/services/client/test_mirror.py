"""Hosts that send their whole list each time, with a real bus, worker and query server."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import turnfold
from tests.running_system import serving_parts
from turnfold.client import Client, Session, connect
from turnfold.client.mirror import mirror_longer
from turnfold.client.replies import StoredMessage
from turnfold.errors import BadRequest, Unavailable

Json = dict[str, Any]


@asynccontextmanager
async def working(folder: Path) -> AsyncGenerator[tuple[str, Client]]:
    """The address of a running system, and a client of it."""
    async with serving_parts(folder) as (parts, client):
        yield parts.server.url, client


def talk(turns: int, **edits: str) -> list[Json]:
    """A conversation with instructions; `edits` say something else at a place, as `at_3="..."`."""
    messages: list[Json] = [{"role": "system", "content": "Be brief."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}?"})
        messages.append({"role": "assistant", "content": f"Answer {number}."})
    for place, text in edits.items():
        number = int(place.removeprefix("at_"))
        messages[number] = {**messages[number], "content": text}
    return messages


async def stored_messages(session: Session) -> list[Json]:
    """The messages of the session, when all of them are stored."""
    await session.history(newest=1, after="latest", wait_ms=5_000)
    return [one.message async for one in session.originals()]


async def sent(
    session: Session, *lists: Sequence[Json], **more: Any
) -> list[tuple[int, int, bool]]:
    """Send lists one after the other: how much each kept and published, and if it was an edit."""
    receipts = [await turnfold.mirror(session, messages, **more) for messages in lists]
    return [(one.kept, one.published, one.is_edited) for one in receipts]


@pytest.mark.proves("G2", "C78", "L2")
async def test_a_growing_list_is_published_once_also_after_a_restart_of_the_host(
    tmp_path: Path,
) -> None:
    """C78: the same list again and again."""
    async with working(tmp_path) as (url, client):
        session = client.session("support", "user-42")

        done = await sent(session, talk(1), talk(1), talk(3))
        async with connect(url, environ={}) as restarted:
            again = restarted.session("support", "user-42")
            done += await sent(again, talk(3), talk(4), carry=None)
            window = await again.context(wait_ms=5_000)
        held = await stored_messages(session)

    assert done == [
        (0, 3, False), (3, 0, False), (3, 4, False), (7, 0, False), (7, 2, False),
    ]  # fmt: skip
    assert held == window.messages == talk(4)


@pytest.mark.proves("G2", "C78", "L1")
async def test_what_followed_an_edit_is_retracted_and_the_new_branch_stands(tmp_path: Path) -> None:
    """C78: an edit at message 5, and back again, also from a host that was restarted between."""
    edited = talk(4, at_5="Another question?")
    async with working(tmp_path) as (url, client):
        session = client.session("support", "user-42")
        done = await sent(session, talk(4), edited)
        branch = await stored_messages(session)
        async with connect(url, environ={}) as restarted:
            again = restarted.session("support", "user-42")
            done += await sent(again, edited, talk(4), talk(5), edited, [])
        done += await sent(session, talk(1))
        held = await stored_messages(session)
        everything = await session.history(include_retracted=True, limit=1_000)

    assert done == [
        (0, 9, False), (5, 4, True),
        (9, 0, False), (5, 4, True), (9, 2, False), (5, 4, True), (0, 0, True),
        (0, 3, False),
    ]  # fmt: skip
    assert (branch, held) == (edited, talk(1))
    assert len({one.message_id for one in everything.messages}) == 9 + 4 + 4 + 2 + 4 + 3


@pytest.mark.proves("G2", "C78")
async def test_what_others_changed_is_mended(tmp_path: Path) -> None:
    """G2: a pop, and a message that is not in the list."""
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        await sent(session, talk(3))

        await session.pop(2)
        done = await sent(session, talk(3))
        await session.turn_completed([{"role": "user", "content": "Stranger."}])
        done += await sent(session, talk(3), talk(2), talk(3))
        held = await stored_messages(session)

    assert done == [(5, 2, False), (7, 0, True), (5, 0, True), (5, 2, False)]
    assert held == talk(3)


@pytest.mark.proves("G2", "A6", "L12")
async def test_an_erased_list_that_grew_is_stored_again_by_one_call(tmp_path: Path) -> None:
    """G2: under other ids, because no erased event is stored again under its own."""
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        await sent(session, talk(3))
        await session.history(newest=1, after="latest", wait_ms=5_000)
        await session.erase()

        same = await sent(session, talk(3), talk(2))
        listed = [one async for one in client.sessions("support")]
        grown = await sent(session, talk(4), talk(4))
        held = await stored_messages(session)

    assert (same, listed) == ([(0, 0, False)] * 2, [])
    assert grown == [(0, 9, True), (9, 0, False)]
    assert held == talk(4)


@pytest.mark.proves("G2", "A6", "L12")
async def test_an_erased_session_with_a_policy_begins_again_too(tmp_path: Path) -> None:
    """G2: nothing of a list that cannot be stored is published, and a policy is no message."""
    deep: Json = {"role": "user", "content": []}
    for _ in range(200):
        deep = {"role": "user", "content": [deep]}
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        await sent(session, talk(3))
        await session.history(newest=1, after="latest", wait_ms=5_000)
        await session.erase()
        await session.policy(mode="off")

        with pytest.raises(BadRequest):
            await sent(session, [*talk(3), deep, *talk(1)])
        same = await sent(session, talk(3))
        grown = await sent(session, talk(4))
        held = await stored_messages(session)

    assert (same, grown) == ([(0, 0, False)], [(0, 9, True)])
    assert held == talk(4)


@pytest.mark.proves("G2", "A6")
async def test_an_erasure_during_a_comparison_asks_for_the_list_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: the comparison ends with an error that is safe to retry, and the retry stores the list."""
    read = Session.originals

    async def erased_first(session: Session) -> AsyncGenerator[StoredMessage]:
        await session.erase()
        async for one in read(session):
            yield one

    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        await sent(session, talk(3))
        with monkeypatch.context() as patched:
            patched.setattr(Session, "originals", erased_first)
            with pytest.raises(Unavailable, match="erased meanwhile"):
                await sent(session, talk(4, at_3="Another question?"))
        again = await sent(session, talk(4, at_3="Another question?"))
        held = await stored_messages(session)

    assert again == [(0, 9, True)]
    assert held == talk(4, at_3="Another question?")


@pytest.mark.proves("G2", "X6")
async def test_many_conversations_may_begin_at_once(tmp_path: Path) -> None:
    """G2: the first call of each looks up two events, which is no search."""
    async with working(tmp_path) as (_, client):
        sessions = [client.session("support", f"user-{number}") for number in range(40)]
        done = await asyncio.gather(*(sent(one, talk(2)) for one in sessions))

    assert done == [[(0, 5, False)]] * 40


@asynccontextmanager
async def three_replicas(folder: Path) -> AsyncGenerator[list[Session]]:
    """One session as three replicas of a host see it, each with a client of its own."""
    async with (
        working(folder) as (url, client),
        connect(url, environ={}) as second,
        connect(url, environ={}) as third,
    ):
        yield [one.session("support", "user-42") for one in (client, second, third)]


@pytest.mark.proves("G2", "C78", "L2", "L3")
async def test_replicas_that_send_one_list_at_once_publish_it_once(tmp_path: Path) -> None:
    async with three_replicas(tmp_path) as sessions:
        for turns in range(1, 8):
            await asyncio.gather(*[sent(one, talk(turns)) for one in sessions])
        held = await stored_messages(sessions[0])
        total = (await sessions[0].status())["messages_total"]

    assert held == talk(7)
    assert total == len(held)


@pytest.mark.proves("G2", "C78", "L3")
@pytest.mark.parametrize(
    "lists",
    [[talk(5), talk(6), talk(7)], [talk(7, at_6=f"Branch {number}.") for number in range(3)]],
    ids=["of three lengths", "of three branches"],
)
async def test_replicas_that_send_different_lists_at_once_agree_with_the_next_call(
    tmp_path: Path, lists: Sequence[Sequence[Json]]
) -> None:
    """A list that is shorter than the session is an edit, whoever sends it."""
    async with three_replicas(tmp_path) as sessions:
        await sent(sessions[0], talk(6))
        await asyncio.gather(*map(sent, sessions, lists))
        settled = []
        for session, messages in zip(sessions, lists, strict=True):
            await sent(session, messages)
            settled.append(await stored_messages(session))

    assert settled == lists


@pytest.mark.proves("G2")
async def test_instructions_in_mid_conversation_keep_their_place(tmp_path: Path) -> None:
    """G2: also if the message before them was published already."""
    changed = [*talk(2), {"role": "system", "content": "Be kind."}]
    longer = [*changed, {"role": "user", "content": "So?"}]
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        await sent(session, talk(2), changed, longer)
        window = await session.context(wait_ms=5_000)

    assert window.messages == longer


@pytest.mark.proves("G2", "G1")
@pytest.mark.parametrize("shape", ["responses", "anthropic"])
async def test_elements_of_other_shapes_are_mirrored_too(tmp_path: Path, shape: str) -> None:
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        lists = _elements(shape)
        done = await sent(session, *lists, lists[0], shape=shape)
        done += await sent(session, lists[-1], shape=shape, carry=list(range(len(lists[-1]))))
        named: Any = shape
        window = await session.context(format=named, entries=True, wait_ms=5_000)

    assert window.messages == lists[-1]
    assert [kept for kept, _, _ in done[:2]] == [0, len(lists[0])]
    assert done[2] == (len(lists[0]), 0, True)
    values = [entry.get("carry") for entry in window.entries or ()]
    firsts = [one[0] if isinstance(one, list) else one for one in values]
    assert firsts[len(lists[0]) :] == list(range(len(lists[0]), len(lists[-1])))


@pytest.mark.proves("G10", "C78", "L2")
@pytest.mark.parametrize("shape", ["chat", "responses", "anthropic"])
async def test_a_longer_list_is_published_as_if_the_session_had_been_asked(
    tmp_path: Path, shape: str
) -> None:
    """Event by event, so that a later comparison finds all of it."""
    short, longer = [talk(1), talk(4)] if shape == "chat" else _elements(shape)
    named: Any = shape
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        first = (await turnfold.mirror(session, short, shape=named)).mirrored
        rest = longer[len(short) - 1 :]
        receipt = await mirror_longer(session, first, rest, stored=first, shape=named)
        assert receipt is not None
        same = await mirror_longer(session, first, rest, stored=receipt.mirrored, shape=named)
        compared = await turnfold.mirror(session, longer, shape=named)

    assert (receipt.kept, receipt.published) == (len(short), len(longer) - len(short))
    assert same is not None
    assert (same.kept, same.published) == (len(longer), 0)
    assert (compared.kept, compared.published) == (len(longer), 0)
    assert receipt.mirrored == same.mirrored == compared.mirrored


@pytest.mark.proves("G10", "C78")
async def test_a_list_that_does_not_continue_the_stored_one_publishes_nothing(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        first = (await turnfold.mirror(session, talk(1))).mirrored
        stored = (await turnfold.mirror(session, talk(2))).mirrored
        branch = [talk(1)[-1], {"role": "user", "content": "Something else?"}]
        told = [talk(2)[-1], {"role": "system", "content": "Be brief."}]

        edited = await mirror_longer(session, first, branch, stored=stored)
        joined = await mirror_longer(session, stored, told, stored=stored)
        held = await stored_messages(session)

    assert edited is None
    assert joined is None
    assert held == talk(2)


@pytest.mark.proves("G10", "C78", "L11")
async def test_a_response_of_as_many_items_as_an_event_may_have_is_published_once(
    tmp_path: Path,
) -> None:
    """Reasoning before each call, as many as fit: the list is known again also without it."""
    items: list[Json] = [{"role": "user", "content": "Go."}]
    for number in range(500):
        items.append({"type": "reasoning", "id": f"rs_{number}", "summary": []})
        call = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        items.append(call)

    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        short = [item for item in items if item.get("type") != "reasoning"]
        lists = (items, items, short)
        done = await sent(session, *lists, shape="responses", identity=_without_reasoning)

    assert done == [(0, 501, False), (501, 0, False), (501, 0, False)]


def _without_reasoning(element: Json) -> Json | None:
    return None if element.get("type") == "reasoning" else element


def _elements(shape: str) -> list[list[Json]]:
    """A list, and a longer one."""
    if shape == "responses":
        items: list[Json] = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "42"},
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAB"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "It is 42.", "annotations": []}],
            },
        ]
        return [items[:4], items]
    calls = [{"type": "tool_use", "id": id, "name": "read", "input": {}} for id in "ab"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": "42"} for id in "ab"]
    messages: list[Json] = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 42."}]},
    ]
    return [messages[:3], messages]


@pytest.mark.proves("G2")
async def test_a_list_of_values_to_carry_has_one_for_each_message(tmp_path: Path) -> None:
    async with working(tmp_path) as (_, client):
        session = client.session("support", "user-42")
        with pytest.raises(BadRequest, match="carry has 1 values for 3 messages"):
            await turnfold.mirror(session, talk(1), carry=[1])
        assert not await session.exists()
