"""Whatever a model does, from its HTTP to the stored version: real jobs in SQLite, the real child, real litellm."""

from dataclasses import replace
from typing import Any

import pytest

from tests.integration.model.desk import SHORT_SECONDS, TEN_MINUTES_MS, Desk
from tests.model_server import ModelServer
from tests.store_fixtures import turn
from turnfold.operations.compact.compact import Committed, Retry

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("fault", "reason", "requests"),
    [
        ("429", "rate_limited", 3),
        ("rate of Azure", "rate_limited", 3),
        ("rate of Gemini", "rate_limited", 3),
        ("500", "provider_error", 3),
        ("503", "provider_error", 3),
        ("html", "provider_error", 3),
        ("drop", "provider_error", 3),
        ("null", "content_none", 3),
        ("empty", "empty_summary", 3),
        ("thinking", "thinking_only_no_content", 3),
        ("length", "truncated", 3),
        ("refuse", "refused", 3),
        ("refuse in JSON", "refused", 3),
        ("end of a thought", "thinking_only_no_content", 3),
        ("tool_call", "tool_call", 3),
        ("long", "grew", 3),
        ("broken", "unparsable", 3),
        ("hang", "timeout", 3),
        ("trickle", "timeout", 3),
        ("quota", "rate_limited", 1),
        ("401", "provider_error", 1),
        ("404", "provider_error", 1),
    ],
)
@pytest.mark.proves("S4", "S5", "S7", "C36", "C38")
async def test_a_fault_leaves_the_version_in_force_until_the_stand_in_takes_over(
    desk: Desk, model: ModelServer, fault: str, reason: str, requests: int
) -> None:
    await desk.evict()
    assert isinstance(await desk.finish(), Committed)
    await desk.evict()
    model.fault, model.requests = fault, []
    if reason == "timeout":
        desk.writing = replace(desk.writing, call_timeout_seconds=SHORT_SECONDS)

    for _ in range(requests - 1):
        assert isinstance(await desk.attempt(), Retry)
        assert (await desk.version()).version == 1
    assert await desk.attempt() == Committed(2, reason)

    assert len(model.requests) == requests
    assert (await desk.version()).kind == "extractive"
    attempts = [row for row in desk.phases() if row[0] == "attempt_failed"]
    assert attempts == [("attempt_failed", reason)] * (requests - 1)
    assert desk.rows(
        "SELECT attempts, reason FROM compactions_view WHERE status = 'committed' AND reason IS NOT NULL"
    ) == [(requests, reason)]


@pytest.mark.proves("S4", "S7")
async def test_a_model_that_is_back_writes_the_next_version(desk: Desk, model: ModelServer) -> None:
    model.fault = "500"
    await desk.evict()
    await desk.finish()
    model.fault = "answer"
    desk.now_ms += TEN_MINUTES_MS

    await desk.evict()
    await desk.finish()

    assert (await desk.version()).kind == "llm"


@pytest.mark.proves("S4", "S7")
async def test_a_model_that_is_back_writes_again_what_was_only_extracted_without_a_new_turn(
    desk: Desk, model: ModelServer
) -> None:
    model.fault = "quota"
    await desk.evict()
    assert await desk.finish() == Committed(1, "rate_limited")
    desk.now_ms += TEN_MINUTES_MS
    assert type(await desk.attempt()).__name__ == "RolledBack"
    assert (await desk.version()).kind == "extractive"
    model.fault = "answer"
    desk.now_ms += TEN_MINUTES_MS

    assert await desk.finish() == Committed(2, None)

    assert len(model.requests) == 3
    assert (await desk.version()).kind == "llm"


@pytest.mark.proves("C37", "C38")
async def test_passing_trouble_twice_then_an_answer_is_one_version_after_three_calls(
    desk: Desk, model: ModelServer
) -> None:
    model.script = ["drop", "empty", "answer"]
    await desk.evict()

    assert await desk.finish() == Committed(1, None)

    assert len(model.requests) == 3
    assert desk.rows("SELECT attempts, reason FROM compactions_view") == [(3, None)]
    assert (await desk.version()).kind == "llm"


@pytest.mark.parametrize(
    "content",
    ["", " \n", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]],
)
@pytest.mark.proves("S5", "C32")
async def test_no_model_is_asked_about_messages_that_say_nothing(
    desk: Desk, model: ModelServer, content: Any
) -> None:
    for _ in range(13):
        await desk.stores.ingest(turn(desk.seq, {"role": "user", "content": content}))
        desk.seq += 1

    assert await desk.finish() == Committed(1, None)

    assert not model.requests
    assert (await desk.version()).text == ""


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("empty", "held no record"),
        ("thinking", "held no record"),
        ("length", "was cut off"),
        ("tool_call", "called a tool"),
        ("long", "Write much less"),
        ("broken", "no valid JSON"),
    ],
)
@pytest.mark.proves("S5")
async def test_the_next_attempt_names_what_was_wrong_with_the_last_answer(
    desk: Desk, model: ModelServer, fault: str, told: str
) -> None:
    model.script = [fault, "answer"]
    await desk.evict()

    await desk.finish()

    first, second = (request["messages"][0]["content"] for request in model.requests)
    assert told not in first
    assert told in second


@pytest.mark.proves("S7")
async def test_a_provider_that_asks_for_time_is_given_it(desk: Desk, model: ModelServer) -> None:
    model.fault = "retry later"
    await desk.evict()

    await desk.attempt()

    ((due_ms,),) = desk.rows("SELECT next_attempt_at_ms FROM compactions")
    assert 7_000 <= due_ms - desk.now_ms < 7_100


@pytest.mark.proves("S7")
async def test_no_provider_is_given_more_time_than_a_bound(desk: Desk, model: ModelServer) -> None:
    desk.writing = replace(desk.writing, retry_after_max_seconds=2)
    model.fault = "retry later"
    await desk.evict()

    await desk.attempt()

    ((due_ms,),) = desk.rows("SELECT next_attempt_at_ms FROM compactions")
    assert 2_000 <= due_ms - desk.now_ms < 2_100
