"""Arguments of calls with characters that no store takes: stored as they came, and summarized."""

import json
from typing import Any

import pytest

from tests.store_fixtures import NOON, Stores, assistant, tool, turn, turns, user, words
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import Draft, SummaryJob
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import compact

CALLS = {
    "bash": "command",
    "send_mail": "subject",
    "write_file": "path",
}


class Extractive:
    """The extractive summarizer without its process."""

    async def summarize(self, job: SummaryJob, *, keep: Any = None) -> Draft:  # noqa: ARG002
        return extract(job, count=words)


@pytest.mark.proves("I2", "S7", "L1")
@pytest.mark.parametrize("character", ["\ud83d", "\0", "\x1b[31m"])
@pytest.mark.parametrize("name", CALLS)
async def test_half_a_character_in_arguments_loses_no_event_and_no_summary(
    stores: Stores, name: str, character: str
) -> None:
    arguments = json.dumps({CALLS[name]: f"/srv/party{character}.md"})
    function = {"name": name, "arguments": arguments}
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    said = turn(1, user("Write it."), calling, tool("c1", "done"), assistant("It is done."))

    stored = await stores.intake.ingest([said], [], installation=stores.installation)
    await stores.ingest(*turns(2, 7))
    (job,) = await stores.claim()
    await compact(
        job,
        store=stores.jobs,
        summarizer=Extractive(),
        writing=SummaryConfig(),
        count=words,
        now_ms=lambda: NOON + 1_000,
    )

    assert (stored.messages, stored.dead_letters) == (4, 0)
    facts = await stores.facts()
    assert facts.summary is not None
    assert character not in facts.summary.text
