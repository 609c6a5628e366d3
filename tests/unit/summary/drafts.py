"""Drafts of the summary without a model, from invented messages."""

import json
from typing import Any

from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob

UUID = "3f2a8c1e-9b7d-4e55-8a10-6c2f0d9e7b31"


def count(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // 3 + 1


def user(text: str, number: int = 0) -> Source:
    return Source(f"e{number}#0", "user", text)


def assistant(text: str, number: int = 0, *calls: tuple[str, str]) -> Source:
    return Source(f"e{number}#1", "assistant", text, calls)


def tool(text: str, number: int = 0, *, is_error: bool = False) -> Source:
    return Source(f"e{number}#2", "tool", text, tool_name="bash", is_error=is_error)


def drafted(
    *sources: Source,
    previous: Draft | None = None,
    newest_request: str | None = None,
    ledger_max_tokens: int = 2_000,
    **more: Any,
) -> Draft:
    before = (
        None
        if previous is None
        else PreviousSummary(previous.text, previous.sections, previous.ledger)
    )
    job = SummaryJob(
        sources=sources,
        previous=before,
        newest_request=newest_request,
        ledger_max_tokens=ledger_max_tokens,
        **more,
    )
    return extract(job, count=count)


def reading(*paths: str) -> Source:
    """Return an answer that reads these files."""
    return assistant("", 9, *[("read", json.dumps({"path": path})) for path in paths])
