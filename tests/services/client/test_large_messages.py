"""Messages of few tokens and many bytes in integrations, with a real bus and services."""

from pathlib import Path
from typing import Any

import pytest

import turnfold
from tests.nats_server import nats_server
from tests.services.client.test_mirror import working
from turnfold.bus import connect, ensure_streams
from turnfold.client import turn_event
from turnfold.client.events import session_key
from turnfold.errors import TooLarge
from turnfold.integrations.clients import EVENT_BYTES, event_parts, fitting_window
from turnfold.settings import Settings
from turnfold.shapes import divide_responses

Json = dict[str, Any]
IMAGE = f"data:image/png;base64,{'A' * 1_300_000}"


@pytest.mark.proves("G8", "W1")
async def test_a_window_of_many_images_has_fewer_messages(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": IMAGE}}
    async with working(tmp_path) as (_, client):
        session = client.session("ada", "images")
        for number in range(9):
            text = {"type": "text", "text": f"What is on picture {number}?"}
            said: list[Json] = [
                {"role": "user", "content": [text, image]},
                {"role": "assistant", "content": "?"},
            ]
            await session.turn_completed(said)
        options: dict[str, Any] = {"max_tokens": 100_000, "recall": False, "wait_ms": 5_000}

        with pytest.raises(TooLarge):
            await session.context(**options)
        window = await fitting_window(session, **options)

    assert window.messages[-2]["content"][0]["text"] == "What is on picture 8?"
    assert window.account.total == 18


@pytest.mark.proves("G8", "L2")
def test_what_is_published_at_once_is_divided_by_size_and_responses_stay_whole() -> None:
    def item(kind: str, size: int) -> Json:
        return {"type": kind, "id": "r", "text": "x" * size}

    items = [
        part
        for _ in range(6)
        for part in (
            item("reasoning", 600_000),
            item("function_call", 600_000),
            item("function_call_output", 900_000),
        )
    ]

    parts = list(event_parts(divide_responses(items)))

    assert [one for part in parts for one in part] == items
    assert all(sum(len(one["text"]) for one in part) <= EVENT_BYTES for part in parts)
    assert all(part[0]["type"] != "function_call" for part in parts)
    for part in parts:
        turn_event(session_key("ada", "s"), part, shape="responses")


@pytest.mark.proves("G8")
def test_a_response_that_no_event_can_hold_is_divided_too() -> None:
    items = [{"type": "function_call", "id": str(number)} for number in range(2_500)]

    parts = list(event_parts(divide_responses(items)))

    assert [len(part) for part in parts] == [999, 999, 502]


@pytest.mark.proves("I5", "O7")
async def test_an_event_that_its_headers_make_too_large_is_refused_and_the_client_goes_on(
    tmp_path: Path,
) -> None:
    limit = 4 * 1024 * 1024
    with nats_server(tmp_path, more=f"max_payload: {limit}") as server:
        bus = await connect(Settings(nats_url=server.url), name="test")
        await ensure_streams(bus, first_seq=1)
        async with turnfold.connect(server.url, environ={}) as client:
            key = session_key("ada", "s")
            small = turn_event(key, [{"role": "user", "content": "small"}])
            empty = turn_event(key, [{"role": "user", "content": ""}])
            text = "x" * (limit - len(empty.payload) - 10)
            large = turn_event(key, [{"role": "user", "content": text}])
            assert len(large.payload) < limit

            with pytest.raises(TooLarge):
                await client.publish(large)

            assert (await client.publish(small)).seq == 1
        await bus.close()
