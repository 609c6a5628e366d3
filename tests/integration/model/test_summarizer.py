"""The summariser's child process, real litellm, and a model that misbehaves."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.model_server import ModelServer
from turnfold.core.summary.sources import ChunkSummary, Source, SummaryJob
from turnfold.errors import SummarizerError
from turnfold.models import ChildSummarizer
from turnfold.process.scheduling import is_load_low

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCES = tuple(
    source
    for number in range(12)
    for source in (
        Source(
            f"e{number}#0",
            "user",
            f"Please implement part {number} of the retry queue in /srv/app/part{number}.py and keep it simple.",
        ),
        Source(
            f"e{number}#1",
            "assistant",
            "",
            (("edit", f'{{"path": "/srv/app/part{number}.py", "newText": "x"}}'),),
        ),
        Source(
            f"e{number}#2",
            "assistant",
            f"Part {number} of the retry queue is implemented and its tests pass.",
        ),
    )
)


def job(
    model: ModelServer | None = None,
    *,
    style: str = "structured",
    timeout_seconds: float = 20,
    newest_request: str | None = None,
) -> SummaryJob:
    return SummaryJob(
        sources=SOURCES,
        style=style,
        newest_request=newest_request,
        model=None if model is None else "openai/x",
        api_base=None if model is None else model.url,
        api_key=None if model is None else "none-needed",
        timeout_seconds=timeout_seconds,
    )


def loaded_by(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def policies_of(pid: int) -> list[int]:
    """How each of its threads is scheduled."""
    return [
        os.sched_getscheduler(int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir()
    ]


def names_known_to(pid: int) -> set[str]:
    return {
        entry.split("=", 1)[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")
    }


def standard_error_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/fd/2").readlink()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.proves("S4")
async def test_extractive_work_needs_no_model() -> None:
    child = ChildSummarizer()

    draft = await child.summarize(job())
    pid = child.pid
    assert pid is not None
    assert os.SCHED_IDLE in policies_of(pid) or not is_load_low()
    loaded = loaded_by(pid)
    await child.close()

    assert draft.kind == "extractive"
    assert "modified /srv/app/part3.py" in draft.ledger
    assert not [
        name for name in ("sqlalchemy", "pydantic_core", "nats", "aiohttp") if f"/{name}/" in loaded
    ]
    assert child.pid is None


@pytest.mark.proves("S3", "S4", "S6", "C41")
async def test_model_writes_and_code_adds_files_and_values(
    summarizer: ChildSummarizer, model: ModelServer
) -> None:
    draft = await summarizer.summarize(job(model, newest_request="Now roll it back."))

    assert (draft.kind, draft.model, draft.prompt_tokens, draft.completion_tokens) == (
        "llm",
        "openai/x",
        321,
        45,
    )
    assert draft.sections["decisions"] == ["Exponential backoff was chosen."]
    assert {"path": "/srv/app/part3.py", "action": "modified"} in draft.sections["file_changes"]
    assert draft.ledger[0] == "request Now roll it back."
    assert "Exponential backoff was chosen." in draft.text
    assert "part11.py" in draft.text
    request = model.requests[0]
    assert request["model"] == "x"
    assert not {"tools", "functions", "tool_choice"} & set(request)


@pytest.mark.proves("S3")
async def test_narrative_answer_is_prose(summarizer: ChildSummarizer, model: ModelServer) -> None:
    model.fault = "prose"

    draft = await summarizer.summarize(job(model, style="narrative"))

    assert draft.text == "The retry queue was implemented and exponential backoff was chosen."


@pytest.mark.parametrize(
    ("fault", "reason", "is_transient"),
    [
        ("null", "content_none", True),
        ("empty", "empty_summary", True),
        ("length", "truncated", True),
        ("refuse", "refused", True),
        ("tool_call", "tool_call", True),
        ("thinking", "thinking_only_no_content", True),
        ("long", "grew", True),
        ("broken", "unparsable", True),
        ("429", "rate_limited", True),
        ("quota", "rate_limited", False),
        ("500", "provider_error", True),
        ("503", "provider_error", True),
        ("html", "provider_error", True),
        ("401", "provider_error", False),
        ("404", "provider_error", False),
    ],
)
@pytest.mark.proves("S5", "S7", "C36", "C38")
async def test_fault_gets_its_reason_after_exactly_one_request(
    summarizer: ChildSummarizer, model: ModelServer, fault: str, reason: str, is_transient: bool
) -> None:
    model.fault = fault

    with pytest.raises(SummarizerError) as caught:
        await summarizer.summarize(job(model))

    assert (str(caught.value.reason), caught.value.is_transient) == (reason, is_transient)
    assert len(model.requests) == 1
    assert "retry queue" not in str(caught.value)


@pytest.mark.parametrize("fault", ["overflow", "413"])
@pytest.mark.proves("S5", "S7")
async def test_input_that_is_too_large_is_halved_until_that_makes_no_sense(
    summarizer: ChildSummarizer, model: ModelServer, fault: str
) -> None:
    model.fault = fault

    with pytest.raises(SummarizerError) as caught:
        await summarizer.summarize(job(model))

    assert (str(caught.value.reason), caught.value.is_transient) == ("context_overflow", False)
    assert 2 <= len(model.requests) <= 4


@pytest.mark.proves("C37")
async def test_empty_answer_then_a_good_one(
    summarizer: ChildSummarizer, model: ModelServer
) -> None:
    model.script = ["empty", "answer"]

    with pytest.raises(SummarizerError):
        await summarizer.summarize(job(model))
    draft = await summarizer.summarize(job(model))

    assert draft.kind == "llm"
    assert len(model.requests) == 2


@pytest.mark.proves("S7", "L4")
async def test_hanging_model_times_out_and_holds_up_nobody(
    summarizer: ChildSummarizer, model: ModelServer
) -> None:
    model.fault = "hang"
    hanging = asyncio.create_task(summarizer.summarize(job(model, timeout_seconds=4.0)))
    await asyncio.wait_for(model.is_hanging.wait(), 60)

    draft = await summarizer.summarize(job())
    assert not hanging.done()
    with pytest.raises(SummarizerError) as caught:
        await hanging

    assert draft.kind == "extractive"
    assert (str(caught.value.reason), caught.value.is_transient) == ("timeout", True)


@pytest.mark.proves("C38")
async def test_given_up_job_leaves_the_connection(
    summarizer: ChildSummarizer, model: ModelServer
) -> None:
    model.fault = "hang"
    hanging = asyncio.create_task(summarizer.summarize(job(model)))
    await asyncio.wait_for(model.is_hanging.wait(), 60)

    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging

    assert (await summarizer.summarize(job())).kind == "extractive"


async def test_many_jobs_run_at_once(summarizer: ChildSummarizer, model: ModelServer) -> None:
    drafts = await asyncio.gather(
        *(summarizer.summarize(job(model) if number % 2 else job()) for number in range(16))
    )

    assert [draft.kind for draft in drafts] == ["extractive", "llm"] * 8


async def test_killed_child_fails_its_jobs_and_the_next_job_starts_another(
    model: ModelServer,
) -> None:
    child = ChildSummarizer()
    assert (await child.summarize(job())).kind == "extractive"
    first = child.pid
    assert first is not None
    model.fault = "hang"
    flying = asyncio.create_task(child.summarize(job(model)))
    await asyncio.sleep(0.2)

    os.kill(first, signal.SIGKILL)
    with pytest.raises(SummarizerError) as caught:
        await flying
    draft = await child.summarize(job())

    assert (str(caught.value.reason), caught.value.is_transient) == ("provider_error", True)
    assert draft.kind == "extractive"
    assert child.pid not in (None, first)
    await child.close()


async def test_child_that_hears_nothing_is_given_up_at_the_deadline() -> None:
    child = ChildSummarizer(start_seconds=0.2)
    await child.start()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)

    with pytest.raises(SummarizerError) as caught:
        await child.summarize(job(timeout_seconds=0.3))

    assert str(caught.value.reason) == "timeout"
    await child.close()


@pytest.mark.proves("O4", "X1")
async def test_child_knows_nothing_of_the_database_and_says_nothing() -> None:
    child = ChildSummarizer(
        environment={
            "PATH": os.environ["PATH"],
            "TURNFOLD_DATABASE_URL": "sqlite:///x",
            "NATS_URL": "x",
            "OPENAI_API_KEY": "k",
        }
    )
    await child.start()
    assert child.pid is not None

    names, standard_error = names_known_to(child.pid), standard_error_of(child.pid)
    await child.close()

    assert "OPENAI_API_KEY" in names
    assert not {"TURNFOLD_DATABASE_URL", "NATS_URL"} & names
    assert standard_error == Path(os.devnull)


@pytest.mark.proves("S7", "C38")
async def test_a_call_without_a_key_says_so_and_is_not_repeated() -> None:
    child = ChildSummarizer(environment={"PATH": os.environ["PATH"]})
    errors = []
    for model in ("openai/gpt-4.1-mini", "gemini/gemini-2.0-flash", "anthropic/claude-haiku-4-5"):
        with pytest.raises(SummarizerError) as caught:
            await child.summarize(replace(job(timeout_seconds=60), model=model))
        errors.append(caught.value)
    await child.close()

    assert [str(error).rpartition(", ")[2] for error in errors] == ["no key for the provider"] * 3
    assert not any(error.is_transient for error in errors)


async def test_child_ends_when_its_parent_closes_it(summarizer: ChildSummarizer) -> None:
    child = ChildSummarizer(preload=True)
    await child.start()
    pid = child.pid

    await child.close()

    assert pid is not None
    assert not is_alive(pid)
    with pytest.raises(SummarizerError):
        await child.summarize(job())


@pytest.mark.proves("S2", "C39")
async def test_each_attempt_cuts_where_the_last_one_did(
    summarizer: ChildSummarizer, model: ModelServer
) -> None:
    kept: list[ChunkSummary] = []

    async def keep(part: ChunkSummary) -> None:
        kept.append(part)

    many = replace(job(model), sources=SOURCES * 12, window_tokens=5_000)
    first = await summarizer.summarize(many, keep=keep)
    asked = len(model.requests)
    again = replace(
        many,
        parts={part.digest: part.answer for part in kept},
        last_reason="unparsable",
        newest_request="Something else.",
    )
    second = await summarizer.summarize(again, keep=keep)

    assert asked > 12
    assert len(model.requests) == asked
    assert sum(part.tokens for part in kept) == 366 * asked
    assert (second.text, second.prompt_tokens, second.unreported_tokens) == (
        first.text,
        321 * asked,
        0,
    )
    assert second.ledger[0] == "request Something else."
