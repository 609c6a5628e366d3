"""Reports of usage through bus and HTTP, from an agent to its next window."""

from pathlib import Path

import pytest

from tests.running_system import eventually, serving_parts

MODEL = "acme/small-1"
REPORT = "a long report with many details about a subsystem. " * 110


@pytest.mark.proves("R5", "E1", "C65")
async def test_an_overflow_is_followed_by_a_summary_and_windows_of_the_right_size(
    tmp_path: Path,
) -> None:
    async with serving_parts(tmp_path) as (parts, client), parts.http("/v1/agents/ada") as http:
        session = client.session("ada", "s-1")
        for number in range(20):
            question = {"role": "user", "content": f"Step {number}: {REPORT}"}
            answer = {"role": "assistant", "content": f"It was part {number}."}
            await session.turn_completed([question, answer], model=MODEL)

        await session.usage_reported(MODEL, limit_tokens=16_000, is_overflow=True)
        await session.context(max_tokens=12_000, wait_ms=5_000)
        await eventually(session.summaries, told=parts.words)
        window = await session.context(max_tokens=12_000, recall=False)

        assert window.raw["window"]["model_window"] == 16_000
        assert window.summary is not None
        assert window.account.shown >= 10
        phases = [(row["phase"], row["reason"]) for row in await session.audit()]
        assert phases[:2] == [("window", "overflow"), ("evicted", None)]

        event = {
            "type": "usage.reported",
            "event_id": "r",
            "agent_id": "ada",
            "session_id": "s-1",
            "model": MODEL,
            "limit_tokens": 8_000,
        }
        posted = await http.post("/sessions/s-1/events", json=event)
        refused = await http.post("/sessions/s-1/events", json=event | {"limit_tokens": 0})
        seq = posted.json()["seq"]
        later = await http.get("/sessions/s-1/context", params={"after": seq, "wait_ms": 5_000})

        assert (posted.status_code, refused.status_code) == (200, 400)
        assert later.json()["window"]["model_window"] == 8_000
