"""One version from one call of a model."""

import asyncio
import importlib
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any, Final

from turnfold.core.extractive import Evidence, evidence, readable, render, with_evidence
from turnfold.core.gate import Answer, Reason, check
from turnfold.core.prompt import build_prompt, fitted, parse_answer, prompt_data
from turnfold.core.sources import Draft, SummaryJob
from turnfold.errors import SummarizerError
from turnfold.summarizer.failures import failure_of

_ROOM_FOR_THOUGHT: Final = 512


def load_litellm() -> Any:
    """Import litellm, quiet and offline; 4 to 6 s, so call it in a thread."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.setdefault("LITELLM_LOG", "CRITICAL")
    litellm = importlib.import_module("litellm")
    logging.disable(logging.CRITICAL)
    for name, value in {"telemetry": False, "suppress_debug_info": True, "turn_off_message_logging": True, "drop_params": True}.items():
        setattr(litellm, name, value)
    return litellm


async def write_with_model(job: SummaryJob, *, litellm: Any, count: Callable[[str], int]) -> Draft:
    """Ask once, check what comes, and put files and exact values beside it.

    Raises:
        SummarizerError: the call failed, or its answer did not pass the gate.
    """
    boundary = secrets.token_hex(8)
    response = await _asked(job, litellm, boundary)
    answer = _answer_of(response)
    input_tokens = count(prompt_data(job, boundary=boundary))
    _refuse(check(answer, input_tokens=input_tokens, output_tokens=0))
    content = answer.content or ""
    whole, _ = parse_answer(content, job.style)
    _refuse(check(answer, input_tokens=input_tokens, output_tokens=count(whole)))
    found = evidence(job, readable(job.sources), count=count)
    text, sections = _with_known_files(*parse_answer(content, job.style, max_words=job.max_words), found)
    text, sections = fitted(text, sections, max_tokens=job.max_tokens, count=count)
    usage = getattr(response, "usage", None)
    draft = Draft(
        text=text,
        sections=sections,
        ledger=(),
        kind="llm",
        model=job.model,
        prompt_tokens=_number(getattr(usage, "prompt_tokens", None)),
        completion_tokens=_number(getattr(usage, "completion_tokens", None)),
        cost=_cost_of(response),
    )
    return with_evidence(draft, found)


async def _asked(job: SummaryJob, litellm: Any, boundary: str) -> Any:
    try:
        async with asyncio.timeout(job.timeout_seconds):
            return await litellm.acompletion(
                model=job.model,
                messages=build_prompt(job, boundary=boundary),
                max_tokens=job.max_tokens * 2 + _ROOM_FOR_THOUGHT,
                timeout=job.timeout_seconds,
                num_retries=0,
                max_retries=0,
                **{name: value for name, value in (("api_base", job.api_base), ("api_key", job.api_key)) if value},
            )
    except Exception as error:  # noqa: BLE001 - providers raise whatever they like; each becomes one of ours
        raise failure_of(error) from None


def _answer_of(response: Any) -> Answer:
    choices = getattr(response, "choices", None)
    if not choices:
        raise SummarizerError(Reason.PROVIDER_ERROR, "no choice in the answer")
    message = choices[0].message
    content = getattr(message, "content", None)
    return Answer(
        content=content if isinstance(content, str) else None,
        finish_reason=getattr(choices[0], "finish_reason", None),
        calls_tools=bool(getattr(message, "tool_calls", None) or getattr(message, "function_call", None)),
        has_reasoning=bool(getattr(message, "reasoning_content", None) or getattr(message, "thinking_blocks", None)),
        refusal=getattr(message, "refusal", None) or (getattr(message, "provider_specific_fields", None) or {}).get("refusal"),
    )


def _refuse(reason: Reason | None) -> None:
    if reason is not None:
        raise SummarizerError(reason, "the answer did not pass the gate")


def _with_known_files(text: str, sections: dict[str, Any], found: Evidence) -> tuple[str, dict[str, Any]]:
    """The version with the files that calls are known to have touched, whatever the model said of them."""
    if "file_changes" not in sections or not found.files:
        return text, sections
    sections = sections | {"file_changes": [change.as_json() for change in found.files]}
    return render(sections), sections


def _cost_of(response: Any) -> float | None:
    hidden = getattr(response, "_hidden_params", None)
    cost = hidden.get("response_cost") if isinstance(hidden, dict) else None
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
