"""Odd calls and arguments: stored as they came, summarized, and recalled."""

import json
from typing import Any

import pytest

from tests.contract.query.test_recall import Asker
from tests.contract.query.test_search import indexed
from tests.store_fixtures import NOON, Stores, assistant, tool, turn, turns, user, words
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import Draft, SummaryJob
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Committed, Outcome, compact

CALLS = {
    "bash": "command",
    "send_mail": "subject",
    "write_file": "path",
}


class Extractive:
    """The extractive summarizer without its process."""

    async def summarize(self, job: SummaryJob, *, keep: Any = None) -> Draft:  # noqa: ARG002
        return extract(job, count=words)


async def compacted(stores: Stores) -> Outcome:
    """Have the one job that is due written."""
    (job,) = await stores.claim()
    return await compact(
        job,
        store=stores.jobs,
        summarizer=Extractive(),
        config=SummaryConfig(),
        count=words,
        now_ms=lambda: NOON + 1_000,
    )


@pytest.mark.proves("I2", "S7", "L1")
@pytest.mark.parametrize("character", ["\ud83d", "\0", "\x1b[31m"])
@pytest.mark.parametrize("is_escaped", [True, False])
@pytest.mark.parametrize("name", CALLS)
async def test_half_a_character_in_arguments_loses_no_event_and_no_summary(
    stores: Stores, name: str, character: str, is_escaped: bool
) -> None:
    arguments = json.dumps({CALLS[name]: "/srv/party?.md"})
    shown = json.dumps(character)[1:-1] if is_escaped else character
    arguments = arguments.replace("?", shown)
    function = {"name": name, "arguments": arguments}
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    said = turn(1, user("Write it."), calling, tool("c1", "done"), assistant("It is done."))

    stored = await stores.intake.ingest([said], [], installation=stores.installation)
    await stores.ingest(*turns(2, 7))
    await compacted(stores)

    assert (stored.messages, stored.dead_letters) == (4, 0)
    facts = await stores.facts()
    assert facts.summary is not None
    assert character not in facts.summary.text


@pytest.mark.proves("I2", "S7", "F2")
@pytest.mark.parametrize("calls", [5, True, {"a": 1}, ["x"], [{"function": "f"}], "call"])
async def test_malformed_calls_are_summarized_and_recalled_as_text(
    stores: Stores, calls: Any
) -> None:
    odd = {"role": "assistant", "content": "The lantern is in store 1042.", "tool_calls": calls}
    await stores.ingest(turn(1, user("Where?"), odd), *turns(2, 6))
    await stores.ingest(turn(20, user("And where is the lantern now?"), odd))
    await stores.ingest(turn(21, user("Which store has the lantern?")))
    await indexed(stores)

    assert await compacted(stores) == Committed(1, None)
    for shape in ("openai", "anthropic", "responses"):
        for max_tokens in (100, 400, None):
            told = await Asker(stores).told(max_tokens=max_tokens, format=shape)
            assert "Which store has the lantern?" in json.dumps(told)
