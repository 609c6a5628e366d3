"""The client on a real bus, with answers made here."""

import asyncio
import inspect
import json
import re
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Bus
from nats.aio.msg import Msg

import turnfold
from tests.nats_server import NatsServer, nats_server, subscriptions_known
from turnfold.client import OutgoingEvent, Receipt, session_key, turn_event
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import CannotFit, Conflict, NotAllowed, StartError, TooLarge, Unavailable

Json = dict[str, Any]
USER = {"role": "user", "content": "Where is order 7341?"}
WINDOW: Json = {
    "agent_id": "support",
    "session_id": "user-42",
    "fresh": True,
    "etag": "e1",
    "summary": None,
    "messages": [USER],
    "message_ids": ["m#0"],
    "window": {"tokens": 12, "budget_tokens": 8000, "messages": 1},
    "account": {"total": 1, "shown": 1},
}
AGENT_ONLY = """
authorization {
  users: [
    {user: admin, password: admin}
    {user: support, password: secret, permissions: {
      publish: ["turn.completed.support.>", "context.get.support.>"], subscribe: ["_INBOX_support.>"]}}
  ]
}
"""


@pytest.fixture
def answers_match_their_models() -> None:
    """The answers are made here, and hold only what a test needs."""


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    """A bus with the stream of events, and nobody who answers."""
    await server.make_stream()
    connection = await nats.connect(server.url)
    yield connection
    await connection.close()


async def answering(bus: Bus, subject: str, answer: Callable[[Json], Json]) -> list[Json]:
    """Answer requests on a subject; the list fills with what was asked."""
    asked: list[Json] = []

    async def on_request(message: Msg) -> None:
        asked.append(json.loads(message.data))
        await message.respond(json.dumps(answer(asked[-1])).encode())

    await bus.subscribe(subject, cb=on_request)
    await subscriptions_known(bus)
    return asked


async def stored(bus: Bus) -> list[tuple[str, Json]]:
    """What the stream holds, in order."""
    stream = bus.jetstream()
    state = (await stream.stream_info(EVENTS_STREAM)).state
    messages = [
        await stream.get_msg(EVENTS_STREAM, seq)
        for seq in range(state.first_seq, state.last_seq + 1)
    ]
    return [(str(message.subject), json.loads(message.data or b"")) for message in messages]


# --- publishing


@pytest.mark.proves("I1", "W5")
async def test_events_of_both_kinds_are_in_the_stream_when_publishing_returns(
    server: NatsServer, bus: Bus
) -> None:
    async with turnfold.connect(server.url) as client:
        session = client.session("support", "user.42")
        first = await session.turn_completed([USER], model="gpt-4.1", usage={"total_tokens": 9})
        second = await session.tool_result("call_1", {"rows": 3}, name="search")

    (turn_subject, turn), (result_subject, result) = await stored(bus)
    assert (first.seq, second.seq) == (1, 2)
    assert (turn_subject, turn["messages"], turn["event_id"]) == (
        "turn.completed.support.user%2E42",
        [USER],
        first.event_id,
    )
    assert (result_subject, result["content"]) == ("tool.result.support.user%2E42", {"rows": 3})


@pytest.mark.proves("L2")
async def test_an_event_published_again_is_the_same_event(server: NatsServer, bus: Bus) -> None:
    async with turnfold.connect(server.url) as client:
        session = client.session("support", "user-42")
        first = await session.turn_completed([USER], event_id="mine")
        again = await session.turn_completed([USER], event_id="mine")

    assert (again.seq, again.is_duplicate) == (first.seq, True)
    assert len(await stored(bus)) == 1


@pytest.mark.proves("G1", "L2")
async def test_other_content_under_a_known_event_id_is_an_error_and_is_not_stored(
    server: NatsServer, bus: Bus
) -> None:
    """G1: it was acknowledged as a copy, and lost. Equal content in other JSON stays a copy."""
    async with turnfold.connect(server.url) as client:
        session, elsewhere = (client.session("support", name) for name in ("one", "two"))
        await session.turn_completed([USER], event_id="mine")
        await session.tool_result("call_1", {"a": 1, "b": 2}, event_id="result")
        reordered = {name: USER[name] for name in reversed(USER)}
        copy = await session.turn_completed([reordered], event_id="mine")
        with pytest.raises(Conflict, match="other content"):
            await session.turn_completed([USER, USER], event_id="mine")
        with pytest.raises(Conflict, match="another session"):
            await elsewhere.turn_completed([USER], event_id="mine")
        with pytest.raises(Conflict):
            await session.tool_result("call_1", {"a": 1, "b": 3}, event_id="result")
        with pytest.raises(Conflict):
            await session.tool_result("call_1", "text", event_id="mine")
        batch = [turn_event(session.key, [USER | {"n": n}], event_id="twice") for n in (1, 2)]
        with pytest.raises(Conflict):
            await client.publish_batch(batch)

    assert copy.is_duplicate
    assert len(await stored(bus)) == 2


@pytest.mark.proves("L12", "X1")
async def test_whoever_guesses_an_event_id_does_not_suppress_the_event(
    server: NatsServer, bus: Bus
) -> None:
    for guess in ("support.mine", "mine"):
        await bus.jetstream().publish(
            "turn.completed.other.s", b"{}", headers={"Nats-Msg-Id": guess}
        )

    async with turnfold.connect(server.url) as client, turnfold.connect(server.url) as another:
        await another.session("support", "user-42").turn_completed([USER], event_id="mine")
        receipt = await client.session("support", "user-42").turn_completed([USER], event_id="mine")

    assert (receipt.seq, receipt.is_duplicate) == (4, False)


@pytest.mark.proves("L1", "L2")
async def test_publishing_outlasts_a_restart_of_the_bus(server: NatsServer, bus: Bus) -> None:
    async with turnfold.connect(server.url, timeout_seconds=1, attempts=20) as client:
        session = client.session("support", "user-42")
        await session.turn_completed([USER])
        server.kill()
        waiting = asyncio.create_task(
            session.turn_completed([USER | {"content": "while it was down"}])
        )
        await asyncio.sleep(0.3)
        server.start()
        receipt = await asyncio.wait_for(waiting, 30)

    assert [event["messages"][0]["content"] for _, event in await stored(bus)] == [
        "Where is order 7341?",
        "while it was down",
    ]
    assert receipt.seq == 2


async def test_a_stream_that_is_not_there_is_told_with_the_event_to_publish_again(
    server: NatsServer,
) -> None:
    async with turnfold.connect(server.url, attempts=2) as client:
        with pytest.raises(Unavailable, match="event mine was not acknowledged"):
            await client.session("support", "user-42").turn_completed([USER], event_id="mine")


async def test_an_event_above_what_the_server_carries_is_refused(tmp_path: Path) -> None:
    with nats_server(tmp_path, more="max_payload: 1KB") as small:
        async with turnfold.connect(small.url) as client:
            with pytest.raises(TooLarge, match="larger than the NATS server accepts"):
                await client.session("support", "user-42").turn_completed(
                    [USER | {"content": "x" * 2_000}]
                )


@pytest.mark.proves("L3")
async def test_many_sessions_are_published_side_by_side_and_each_in_order(
    server: NatsServer, bus: Bus
) -> None:
    told: list[int] = []

    async def published(_: OutgoingEvent, receipt: Receipt) -> None:
        told.append(receipt.seq)

    def events(session: int) -> list[OutgoingEvent]:
        return [
            turn_event(session_key("support", f"s{session}"), [USER | {"content": str(number)}])
            for number in range(20)
        ]

    async with turnfold.connect(server.url) as client:
        count = await client.publish_sessions(
            map(events, range(10)), in_flight=4, published=published
        )

    by_session: dict[str, list[str]] = {}
    for _, event in await stored(bus):
        by_session.setdefault(event["session_id"], []).append(event["messages"][0]["content"])
    assert count == 200
    assert sorted(told) == list(range(1, 201))
    assert by_session == {
        f"s{session}": [str(number) for number in range(20)] for session in range(10)
    }


# --- asking


@pytest.mark.proves("W5")
async def test_a_query_carries_the_newest_acknowledged_sequence_of_its_session(
    server: NatsServer, bus: Bus
) -> None:
    asked = await answering(bus, "context.get.support.*", lambda _: WINDOW)

    async with turnfold.connect(server.url) as client:
        await client.session("support", "user-42").turn_completed([USER])
        await client.session("support", "user-42").turn_completed([USER])
        await client.session("support", "other").turn_completed([USER])
        await client.session("support", "user-42").context(max_tokens=8_000, model="gpt-4.1")
        await client.session("support", "never-written").context()
        await client.session("support", "user-42").context(after=1, as_of=3)

    assert asked == [
        {"max_tokens": 8_000, "model": "gpt-4.1", "after": 2},
        {},
        {"after": 1, "as_of": "3"},
    ]


@pytest.mark.proves("W6")
async def test_a_known_window_comes_back_itself_when_nothing_changed(
    server: NatsServer, bus: Bus
) -> None:
    def answer(asked: Json) -> Json:
        return {"not_modified": True, "etag": "e1"} if asked.get("etag") == "e1" else WINDOW

    await answering(bus, "context.get.support.user-42", answer)

    async with turnfold.connect(server.url) as client:
        session = client.session("support", "user-42")
        window = await session.context()

        assert await session.context(known=window) is window


@pytest.mark.proves("L6")
async def test_an_answer_that_is_an_error_is_raised(server: NatsServer, bus: Bus) -> None:
    told = {
        "error": {
            "code": "cannot_fit",
            "message": "nothing is as small as 10 tokens",
            "needed_tokens": 5120,
        }
    }
    await answering(bus, "context.get.support.user-42", lambda _: told)

    async with turnfold.connect(server.url) as client:
        with pytest.raises(CannotFit, match="as small as 10") as caught:
            await client.session("support", "user-42").context(max_tokens=10)

    assert caught.value.needed_tokens == 5120


async def test_originals_come_page_by_page_and_pages_shrink_where_they_are_too_large(
    server: NatsServer, bus: Bus
) -> None:
    entries = [
        {"message_id": f"e#{n}", "position": n, "state": "live", "message": USER}
        for n in range(1, 8)
    ]

    def answer(asked: Json) -> Json:
        if asked["limit"] > 3:
            return {"error": {"code": "too_large", "message": "ask for less"}}
        page = [entry for entry in entries if entry["position"] > asked.get("after_position", 0)][
            : asked["limit"]
        ]
        return {
            "messages": page,
            "next_position": page[-1]["position"] if page and page[-1] is not entries[-1] else None,
        }

    await answering(bus, "history.get.support.user-42", answer)

    async with turnfold.connect(server.url) as client:
        found = [
            stored.message_id async for stored in client.session("support", "user-42").originals()
        ]

    assert found == [entry["message_id"] for entry in entries]


@pytest.mark.proves("R3")
async def test_nobody_to_answer_is_told_at_once(server: NatsServer) -> None:
    async with turnfold.connect(server.url) as client:
        with pytest.raises(Unavailable, match="no service answers"):
            async with asyncio.timeout(3):
                await client.session("support", "user-42").context()


@pytest.mark.proves("R3")
async def test_no_server_is_told_in_time_and_without_the_password() -> None:
    with pytest.raises(Unavailable, match=r"nats://127\.0\.0\.1:1\b") as caught:
        async with turnfold.connect("nats://me:hunter2@127.0.0.1:1", timeout_seconds=0.5):
            pass

    assert "hunter2" not in str(caught.value)


# --- credentials


@pytest.mark.proves("X1", "L12")
async def test_what_an_agent_may_not_do_is_told_at_once(tmp_path: Path) -> None:
    with nats_server(tmp_path, more=AGENT_ONLY) as guarded:
        await guarded.make_stream(user="admin", password="admin")
        environ = {"TURNFOLD_NATS_USER": "support", "TURNFOLD_NATS_PASSWORD": "secret"}
        async with turnfold.connect(
            guarded.url, inbox_prefix="_INBOX_support", environ=environ
        ) as client:
            receipt = await client.session("support", "user-42").turn_completed([USER])
            async with asyncio.timeout(3):
                with pytest.raises(NotAllowed, match="other"):
                    await client.session("other", "user-42").turn_completed([USER])
                with pytest.raises(NotAllowed, match="other"):
                    await client.session("other", "user-42").context()

    assert receipt.seq == 1


@pytest.mark.proves("X1")
@pytest.mark.parametrize("scheme", ["nats://", ""])
async def test_wrong_credentials_are_told_as_such_and_not_repeated(
    tmp_path: Path, scheme: str
) -> None:
    with nats_server(tmp_path, more=AGENT_ONLY) as guarded:
        address = guarded.url.removeprefix("nats://")
        with pytest.raises(NotAllowed) as refused:
            async with turnfold.connect(f"{scheme}support:wrong@{address}", environ={}):
                pass

    assert str(refused.value).startswith(f"{scheme}{address} refuses these credentials")


@pytest.mark.proves("X1")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://[::1", "nats://[::1"),
        ("nats://support:secret@[::1", "nats://[::1"),
        ("nats://support:a/b@127.0.0.1:1", "nats://127.0.0.1:1"),
        ("support:a://b@127.0.0.1:1", "127.0.0.1:1"),
    ],
)
async def test_a_url_that_is_none_is_told_without_its_password(url: str, shown: str) -> None:
    with pytest.raises(StartError) as failed:
        async with turnfold.connect(url, environ={}, timeout_seconds=0.3):
            pass

    assert str(failed.value).startswith(f"{shown!r} is not a NATS address;")


# --- the manual


async def test_the_example_of_the_manual_runs(
    server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", server.url)
    asked = await answering(bus, "context.get.support.user-42", lambda _: WINDOW)

    async def ask_the_model(messages: list[Json]) -> str:
        return f"{len(messages)} messages"

    names: Json = {"ask_the_model": ask_the_model}
    exec(examples(turnfold)[0], names)
    reply = await names["answer"]("Where is order 7341?")

    assert reply == "1 messages"
    assert asked == [{"max_tokens": 8_000, "placement": "user", "after": 1}]
    assert [event["messages"][0]["role"] for _, event in await stored(bus)] == ["user", "assistant"]


async def test_the_example_of_connecting_runs(server: NatsServer, bus: Bus) -> None:
    await answering(bus, "context.get.support.user-42", lambda _: WINDOW)
    code = examples(turnfold.connect)[0].replace("nats://127.0.0.1:4222", server.url)
    names: Json = {"turnfold": turnfold}

    exec("async def example():\n" + textwrap.indent(code, "    ") + "\n    return window", names)
    window = await names["example"]()

    assert window.messages == [USER]


def examples(documented: object) -> list[str]:
    """The Python blocks of a docstring."""
    return re.findall(r"```python\n(.*?)```", inspect.getdoc(documented) or "", re.DOTALL)
