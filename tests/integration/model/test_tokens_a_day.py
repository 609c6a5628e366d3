"""The tokens that summaries may take in a day."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.histories import counter
from tests.integration.model.desk import DAY_MS, SHORT_SECONDS, TEN_MINUTES_MS, Desk, desk_with
from tests.model_server import SUMMARY, ModelServer
from tests.store_fixtures import KEY, SMALL
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.policy.presets import Commit
from turnfold.models import ChildSummarizer
from turnfold.operations.compact.compact import Committed, Retry

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("S7")
async def test_a_spent_budget_leaves_the_model_alone_until_the_next_day(
    summarizer: ChildSummarizer, model: ModelServer, tmp_path: Path
) -> None:
    async for desk in desk_with(
        summarizer, model, tmp_path, replace(SMALL, summary_tokens_per_day=400)
    ):
        with capture_logs() as logs:
            for _ in range(3):
                await desk.evict()
                await desk.finish()
                desk.now_ms += TEN_MINUTES_MS

        assert [
            entry["limit_tokens"] for entry in logs if entry["event"] == "token_quota.exceeded"
        ] == [400]
        # 366 tokens were within the budget, the next 366 went over it.
        assert len(model.requests) == 2
        assert desk.outcomes[-1] == Committed(3, "rate_limited")
        assert desk.rows("SELECT agent_id, tokens FROM summary_token_usage") == [("ada", 732)]
        desk.now_ms += DAY_MS
        await desk.evict()
        await desk.finish()
        assert (await desk.version()).kind == "llm"


@pytest.mark.proves("A6", "X7")
async def test_an_agent_that_erases_itself_has_spent_what_it_spent_that_day(
    summarizer: ChildSummarizer, model: ModelServer, tmp_path: Path
) -> None:
    async for desk in desk_with(
        summarizer, model, tmp_path, replace(SMALL, summary_tokens_per_day=1)
    ):
        await desk.evict()
        await desk.finish()

        await desk.stores.changes.erase(KEY.agent_id, last_seq=desk.seq - 1, now_ms=desk.now_ms)
        await desk.evict()
        assert await desk.finish() == Committed(1, "rate_limited")
        assert len(model.requests) == 1

        desk.now_ms += DAY_MS
        await desk.stores.changes.erase(KEY.agent_id, last_seq=desk.seq - 1, now_ms=desk.now_ms)
        assert desk.rows("SELECT tokens FROM summary_token_usage") == []


@pytest.mark.proves("S4", "S7")
async def test_what_was_only_extracted_waits_for_the_next_day_when_the_budget_is_spent(
    summarizer: ChildSummarizer, model: ModelServer, tmp_path: Path
) -> None:
    async for desk in desk_with(
        summarizer, model, tmp_path, replace(SMALL, summary_tokens_per_day=1)
    ):
        for _ in range(2):
            await desk.evict()
            await desk.finish()
        desk.now_ms += TEN_MINUTES_MS
        assert await desk.attempt() == Retry("rate_limited")

        due_ms = await desk.stores.jobs.next_due_ms()

        assert due_ms is not None
        assert due_ms % DAY_MS == 0
        assert 0 < due_ms - desk.now_ms <= DAY_MS
        assert len(model.requests) == 1


@pytest.mark.parametrize("chosen", [KEY, KEY.agent_id], ids=["session", "agent"])
@pytest.mark.parametrize("commit", [Commit.IMMEDIATE, Commit.ON_SUMMARY])
@pytest.mark.proves("S7")
async def test_a_policy_with_a_larger_budget_or_without_a_model_ends_the_waiting(
    summarizer: ChildSummarizer, model: ModelServer, tmp_path: Path, chosen: Any, commit: Commit
) -> None:
    policy = replace(SMALL, summary_tokens_per_day=1, commit=commit)
    async for desk in desk_with(summarizer, model, tmp_path, policy):
        for _ in range(2):
            await desk.evict()
            await desk.attempt()
        desk.now_ms += TEN_MINUTES_MS
        if commit is Commit.IMMEDIATE:
            assert await desk.attempt() == Retry("rate_limited")
        assert desk.outcomes[-1] == Retry("rate_limited")

        await desk.stores.changes.set_policy(
            chosen, PolicyRequest(overrides={"summary_tokens_per_day": 0}),
            installation=desk.stores.installation, now_ms=desk.now_ms,
        )  # fmt: skip

        assert type(await desk.attempt()).__name__ == "Committed"
        assert (await desk.version()).kind == "llm"


@pytest.mark.proves("S7")
async def test_attempts_that_fail_are_counted_too(desk: Desk, model: ModelServer) -> None:
    model.script = ["broken", "answer"]
    await desk.evict()

    await desk.finish()

    assert desk.rows("SELECT tokens FROM summary_token_usage") == [(732,)]


@pytest.mark.parametrize("fault", ["unbilled", "negative bill", "endless bill", "hang"])
@pytest.mark.proves("S7")
async def test_tokens_are_counted_here_where_no_provider_reports_them(
    desk: Desk, model: ModelServer, fault: str
) -> None:
    if fault == "hang":
        desk.writing = replace(desk.writing, call_timeout_seconds=SHORT_SECONDS)
    model.fault = fault
    await desk.evict()

    await desk.attempt()

    ((tokens,),) = desk.rows("SELECT tokens FROM summary_token_usage")
    texts = [message["content"] for message in model.requests[0]["messages"]]
    answers = [] if fault == "hang" else [json.dumps(SUMMARY)]
    assert tokens == sum(counter()(text) for text in [*texts, *answers])
