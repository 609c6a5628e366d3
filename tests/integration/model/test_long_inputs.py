"""Inputs longer than a model reads, written in parts."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.model.desk import LONG_SECONDS, MINUTE_MS, TEN_MINUTES_MS, Desk
from tests.model_server import ModelServer
from tests.store_fixtures import KEY, assistant, tool, user
from turnfold.operations.compact.compact import Committed, Retry

pytestmark = pytest.mark.asyncio(loop_scope="module")


LONG = (
    "The retry queue was looked at once more, and what was found there was written down in full. "
    * 12
)


def asked_numbers(model: ModelServer) -> list[str]:
    """The parts that the requests were, as `1 of 3`."""
    asked = (request["messages"][1]["content"].partition("\n")[0] for request in model.requests)
    return [line.partition(" are part ")[2].partition(" of what")[0] for line in asked]


def shown_messages(request: dict[str, Any]) -> list[dict[str, Any]]:
    lines = request["messages"][1]["content"].split("\n")
    first = next(index for index, line in enumerate(lines) if line.startswith("<messages-"))
    last = next(index for index, line in enumerate(lines) if line.startswith("</messages-"))
    return [json.loads(line) for line in lines[first + 1 : last]]


async def long_desk(desk: Desk) -> None:
    """A session whose evicted messages are several times what a call may show."""
    desk.writing = replace(desk.writing, window=lambda _: 8_000)
    said = [
        one
        for number in range(10)
        for one in (
            user(f"Part {number}. {LONG}"),
            assistant(None, f"c{number}"),
            tool(f"c{number}", LONG),
        )
    ]
    await desk.evict(*said)


@pytest.mark.proves("S2", "C39")
async def test_what_is_too_long_is_written_in_parts_in_order_and_all_of_it_is_shown(
    desk: Desk, model: ModelServer
) -> None:
    await long_desk(desk)

    assert await desk.finish() == Committed(1, None)

    total = len(model.requests)
    assert total >= 4
    assert asked_numbers(model) == [f"{number} of {total}" for number in range(1, total + 1)]
    shown = [message for request in model.requests for message in shown_messages(request)]
    assert [
        message["text"][:7]
        for message in shown
        if message["role"] == "user" and "Part" in message["text"]
    ] == [f"Part {number}." for number in range(10)]
    assert all(shown_messages(request)[0]["role"] != "tool" for request in model.requests)
    assert all(
        "Exponential backoff was chosen." in request["messages"][1]["content"]
        for request in model.requests[1:]
    )
    assert desk.rows("SELECT count(*) FROM chunk_summaries") == [(0,)]
    ((covered,),) = desk.rows("SELECT messages_covered FROM summaries_view")
    assert covered == (await desk.stores.history.counts(KEY)).messages_covered


@pytest.mark.proves("S2", "C39", "C49")
async def test_parts_that_were_written_are_not_asked_for_again(
    desk: Desk, model: ModelServer
) -> None:
    model.script = ["answer", "answer", "500"]
    await long_desk(desk)

    first = await desk.attempt()
    assert isinstance(first, Retry)
    assert desk.rows("SELECT count(*) FROM chunk_summaries") == [(2,)]
    asked = len(model.requests)
    await desk.evict()
    await desk.finish()

    numbers = asked_numbers(model)
    assert [number.partition(" ")[0] for number in numbers[:asked]] == ["1", "2", "3"]
    assert numbers[asked].startswith("3 of ")
    ((prompt_tokens,),) = desk.rows(
        "SELECT json_extract(details, '$.prompt_tokens') FROM audit_view WHERE phase = 'summary_done' ORDER BY audit_id DESC LIMIT 1"
    )
    assert prompt_tokens == 321 * (len(numbers) - 1)


@pytest.mark.proves("S2", "C39")
async def test_parts_of_another_question_are_never_used(desk: Desk, model: ModelServer) -> None:
    model.script = ["answer", "answer", "500"]
    await long_desk(desk)
    await desk.attempt()
    asked = len(model.requests)

    desk.writing = replace(desk.writing, model="openai/y")
    await desk.finish()

    assert asked_numbers(model)[asked].startswith("1 of ")


@pytest.mark.proves("S2", "C39")
async def test_a_model_that_reads_less_than_expected_is_asked_in_smaller_parts_and_that_is_remembered(
    desk: Desk, model: ModelServer
) -> None:
    model.fault, model.largest_characters = "small", 9_000
    model.script = []
    said = [user(f"Part {number}. {LONG}") for number in range(12)]
    await desk.evict(*said)
    desk.writing = replace(desk.writing, job_timeout_seconds=30)

    assert await desk.finish() == Committed(1, None)

    assert 4 <= len(model.requests) <= 14
    assert (await desk.version()).kind == "llm"


@pytest.mark.proves("S2")
async def test_what_was_too_large_once_is_not_sent_again_by_the_next_attempt(
    desk: Desk, model: ModelServer
) -> None:
    model.script = ["overflow", "500"]
    await desk.evict(*(user(f"Part {number}. {LONG}") for number in range(12)))
    await desk.attempt()
    whole = len(model.requests[0]["messages"][1]["content"])

    await desk.finish()

    assert all(len(request["messages"][1]["content"]) < whole for request in model.requests[1:])


@pytest.mark.proves("S7")
async def test_halving_ends_where_no_part_is_small_enough(desk: Desk, model: ModelServer) -> None:
    model.fault = "overflow"
    await desk.evict(*(user(f"Part {number}. {LONG}") for number in range(12)))

    assert await desk.finish() == Committed(1, "context_overflow")

    assert len(model.requests) <= 8
    assert (await desk.version()).kind == "extractive"


@pytest.mark.proves("S2", "C40")
async def test_one_huge_message_is_noted_and_the_small_ones_are_shown_whole(
    desk: Desk, model: ModelServer
) -> None:
    desk.writing = replace(desk.writing, window=lambda _: 6_000)
    await desk.evict(
        user("Please keep the port at 8443."),
        user("字" * 60_000),
        user("And the host is db.example.org."),
    )

    assert await desk.finish() == Committed(1, None)

    shown = [message["text"] for request in model.requests for message in shown_messages(request)]
    assert "Please keep the port at 8443." in shown
    assert "And the host is db.example.org." in shown
    (huge,) = [text for text in shown if "字" in text]
    assert huge.startswith("[oversize message]")
    assert "characters left out" in huge


@pytest.mark.proves("S7")
async def test_a_job_that_takes_too_long_ends_its_attempt_and_keeps_its_parts(
    desk: Desk, model: ModelServer
) -> None:
    model.script = ["answer", "answer", "hang"]
    await long_desk(desk)
    desk.writing = replace(desk.writing, job_timeout_seconds=2)

    assert await desk.attempt() == Retry("timeout")

    assert desk.rows("SELECT count(*) FROM chunk_summaries") == [(2,)]
    desk.writing = replace(desk.writing, job_timeout_seconds=60)
    assert await desk.finish() == Committed(1, None)


@pytest.mark.proves("S1", "S2", "C49")
async def test_a_worker_that_dies_amid_a_long_job_costs_one_call(
    desk: Desk, model: ModelServer
) -> None:
    model.script = ["answer", "answer", "hang"]
    await long_desk(desk)
    dying = asyncio.create_task(desk.attempt())
    await asyncio.wait_for(model.is_hanging.wait(), LONG_SECONDS)
    dying.cancel()
    await asyncio.wait([dying])
    lost = len(model.requests)

    desk.now_ms += TEN_MINUTES_MS
    assert await desk.finish() == Committed(1, None)

    numbers = [number.partition(" ")[0] for number in asked_numbers(model)]
    assert numbers[:lost] == ["1", "2", "3"]
    assert numbers[lost:] == [str(number) for number in range(3, len(numbers))]


@pytest.mark.proves("S1", "C49")
async def test_a_part_of_a_job_that_somebody_else_has_by_now_is_not_kept(
    desk: Desk, model: ModelServer
) -> None:
    await long_desk(desk)
    desk.now_ms += MINUTE_MS
    (lost,) = await desk.stores.claim(desk.now_ms)
    (job,) = await desk.stores.claim(desk.now_ms + 2 * MINUTE_MS)

    outcome = await desk.work_on(lost)

    assert type(outcome).__name__ == "Discarded"
    assert len(model.requests) == 1
    assert desk.rows("SELECT count(*) FROM chunk_summaries") == [(0,)]
    assert job.fence > lost.fence
