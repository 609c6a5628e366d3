"""A budget that is too small, from the agent's windows to the summary that follows."""

import json
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.running_system import command, eventually, running_parts, serving_parts

REPORT = "a long report with many details about a subsystem. " * 140
DEAF = {"TURNFOLD_POLICY__FOLLOW_BUDGET": "false"}
ASKED = "SELECT session_id FROM sessions WHERE asked_budgets IS NOT NULL"
RECORDING = Path(__file__).parents[3] / "examples" / "support-chat.jsonl"
TRIGGERS = "SELECT trigger FROM compactions_view WHERE session_id = ? AND messages_evicted > 0"


def turn(number: int) -> list[dict[str, Any]]:
    opening = f"Step {number}: " if number else "My name is Ana Quiroga. "
    answer = f"Answer {number}: the cause was component {number * 7}."
    return [
        {"role": "user", "content": opening + REPORT},
        {"role": "assistant", "content": answer},
    ]


@pytest.mark.proves("C64", "E8", "W9")
async def test_a_small_budget_at_every_turn_leaves_nothing_untold(tmp_path: Path) -> None:
    async with serving_parts(tmp_path) as (parts, client):
        session = client.session("ada", "s-1")
        untold, is_known = [], []
        for number in range(20):
            await session.turn_completed(turn(number))
            window = await session.context(max_tokens=8_000, wait_ms=5_000)
            untold.append(window.raw["account"]["untold"])
            is_known.append("Ana" in json.dumps([window.messages, window.raw["summary"]]))
            assert window.raw["window"]["tokens"] <= 8_000

        assert untold == [0] * 20
        assert is_known == [True] * 20
        await eventually(session.summaries, told=parts.words)
        triggers = await parts.rows(TRIGGERS, "s-1")
        assert {row["trigger"] for row in triggers} == {"budget"}


@pytest.mark.proves("E8", "V1")
async def test_looking_at_a_session_evicts_nothing(tmp_path: Path) -> None:
    """Windows of the console, of comparisons and of commands do not count as budgets of the agent."""
    async with serving_parts(tmp_path) as (parts, client), parts.http() as http:
        looked_at, asked = client.session("ada", "s-1"), client.session("ada", "s-2")
        for session in (looked_at, asked):
            for number in range(20):
                await session.turn_completed(turn(number))
        window = await looked_at.context(max_tokens=8_000, wait_ms=5_000, follow_budget=False)
        assert window.account.folded > 20
        params = {"max_tokens": "8000", "before": "2020-01-01T00:00:00Z"}
        for page in ("/console{}/window", "/v1{}/context/difference"):
            seen = await http.get(page.format("/agents/ada/sessions/s-1"), params=params)
            assert seen.status_code == 200
        environ = {"TURNFOLD_NATS_URL": parts.server.url}
        ended = await command("context", "ada", "s-1", "--max-tokens", "8000", environ=environ)
        assert ended.status == 0
        ended = await command("replay", str(RECORDING), environ=environ)
        assert ended.status == 0

        # Hints of both sessions would go the same way.
        await asked.context(max_tokens=8_000, wait_ms=5_000)
        await eventually(asked.summaries, told=parts.words)
        assert not await parts.rows(TRIGGERS, "s-1")
        assert [row["session_id"] for row in await parts.rows(ASKED)] == ["s-2"]


@pytest.mark.proves("E8")
async def test_the_readme_call_ends_with_a_summary(tmp_path: Path) -> None:
    """Over HTTP, and with a window that was cached and one that did not change."""
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.client() as client,
        parts.http("/v1/agents/ada") as http,
    ):
        session = client.session("ada", "s-1")
        async with parts.running("worker", environ=parts.environ | DEAF):
            for number in range(20):
                await session.turn_completed(turn(number))
            first = await session.context(max_tokens=8_000, wait_ms=5_000)
            assert first.account.folded > 20
        assert not await parts.rows(TRIGGERS, "s-1")

        # The first hints were lost; windows repeat them.
        async with parts.running("worker"):

            async def is_shorter() -> bool:
                params = {"max_tokens": 8_000, "etag": first.raw["etag"]}
                answer = await http.get("/sessions/s-1/context", params=params)
                return answer.status_code == 200

            await eventually(is_shorter, told=parts.words)
            await eventually(session.summaries, told=parts.words)

        assert [row["trigger"] for row in await parts.rows(TRIGGERS, "s-1")] == ["budget"]


@pytest.mark.proves("E8", "O7", "I5")
async def test_what_is_no_hint_harms_nobody(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker") as worker,
        parts.client() as client,
    ):
        bus = await nats.connect(parts.server.url)
        session = client.session("ada", "s-1")
        for number in range(12):
            await session.turn_completed(turn(number))
        await parts.caught_up()

        for payload in (b"", b"\xff", b"[" * 100_000, b'{"budget_tokens": -1}', b"{}"):
            for subject in ("turnfold.asked.ada.s-1", "turnfold.asked.%zz.s-1"):
                await bus.publish(subject, payload, reply="turn.completed.ada.s-1")
        for number in range(2_000):
            await bus.publish(f"turnfold.asked.eve.s-{number}", b'{"budget_tokens": 9}')
        await bus.publish("turnfold.asked.ada.s-1", b'{"budget_tokens": 9000, "folded": 1}')
        await bus.flush()

        async def is_evicted() -> object:
            return await parts.rows(TRIGGERS, "s-1")

        assert not await parts.rows("SELECT 1 FROM sessions WHERE agent_id = 'eve'")
        await eventually(is_evicted, told=parts.words)
        await parts.settled()
        assert worker.is_alive
        await bus.close()
