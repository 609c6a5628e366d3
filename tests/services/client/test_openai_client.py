"""The loop with the plain client of OpenAI, against a real system and a scripted provider."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.model_server import running_model_server
from tests.running_system import running_parts

EXAMPLE = Path(__file__).parents[3] / "examples" / "agents" / "openai_client.py"


async def test_the_example_sends_windows_and_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE.name, "exec"), names)

    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.running("worker"),
        running_model_server() as provider,
        openai.AsyncOpenAI(base_url=provider.url, api_key="none") as client,
    ):
        monkeypatch.setenv("TURNFOLD_NATS_URL", parts.server.url)
        provider.script = ["prose", "prose"]
        for question in ("Where is order 7341?", "And when does it arrive?"):
            await names["chat"]([question], "user-42", client)

    said = "The retry queue was implemented and exponential backoff was chosen."
    assert capsys.readouterr().out == f"{said}\n{said}\n"
    assert [message["content"] for message in provider.requests[-1]["messages"]] == [
        "Answer in one sentence.",
        "Where is order 7341?",
        said,
        "And when does it arrive?",
    ]
