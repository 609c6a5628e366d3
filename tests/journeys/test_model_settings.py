"""What an operator sets about the model holds in a running system, from the environment to what is sent."""

import json
from pathlib import Path

import pytest

import turnfold
from tests.model_server import running_model_server
from tests.running_system import eventually, rows, running_system


@pytest.mark.proves("S4", "S7", "X4", "O5")
async def test_a_task_patterns_and_a_model_of_its_own_reach_the_provider(tmp_path: Path) -> None:
    task, patterns = tmp_path / "task.txt", tmp_path / "patterns.txt"
    task.write_text("Sum it up for the night shift in {words} words.")
    patterns.write_text("# badges\nACME-\\d+\n")
    async with running_model_server() as model:
        environ = {
            "TURNFOLD_SUMMARY_MODEL": "openai/usual",
            "TURNFOLD_SUMMARY_MODELS": "openai/own",
            "TURNFOLD_SUMMARY_API_BASE": model.url,
            "TURNFOLD_SUMMARY_API_KEY": "none",
            "TURNFOLD_SUMMARY_PROMPT": str(task),
            "TURNFOLD_REDACT_PATTERNS": str(patterns),
            "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "12",
        }
        async with (
            running_system(tmp_path / "data", environ=environ) as system,
            turnfold.connect(system.nats_url, environ={}) as client,
        ):
            session = client.session("ada", "s-1")
            await session.policy(
                overrides={"summary_model": "openai/own", "keep_tokens": 0, "min_gain_tokens": 1}
            )
            for number in range(8):
                said = f"Badge ACME-4711 opens door {number}, and the port is 8443. " * 5
                await session.turn_completed(
                    [{"role": "user", "content": said}, {"role": "assistant", "content": "Noted."}]
                )

            async def written() -> bool:
                found = await session.context()
                return found.summary is not None and found.summary.kind == "llm"

            await eventually(written, seconds=60)
            spent = rows(system.database, "SELECT agent_id, tokens FROM summary_token_usage")
            stored = rows(system.database, "SELECT text, ledger, sections FROM summaries")

        sent = json.dumps(model.requests)
        assert {request["model"] for request in model.requests} == {"own"}
        assert model.requests[0]["messages"][0]["content"].startswith(
            "Sum it up for the night shift in 200 words.\n\nEverything between"
        )
        assert "8443" in sent
        assert "ACME-4711" not in sent + json.dumps([tuple(row) for row in stored])
        assert [tuple(row) for row in spent] == [("ada", 366 * len(model.requests))]
