"""One call of a model, its result, and the meaning of its errors."""

import asyncio
import importlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from turnfold.core.recovery.overflow import overflow_in
from turnfold.core.summary.gate import ModelResponse, Reason
from turnfold.core.summary.sources import SummaryJob
from turnfold.errors import SummarizerError
from turnfold.models.litellm_installed import missing_litellm
from turnfold.models.usage_meter import ModelUsage, UsageMeter

_ROOM_FOR_THOUGHT: Final = 512
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_CHANGE: Final = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "action": {"type": "string", "enum": ["modified", "read"]},
    },
    "required": ["path", "action"],
    "additionalProperties": False,
}
_FIELDS: Final[Mapping[str, Any]] = {
    "decisions": _TEXTS,
    "constraints": _TEXTS,
    "open_questions": _TEXTS,
    "resolved": _TEXTS,
    "file_changes": {"type": "array", "items": _CHANGE},
    "context": {"type": "string"},
}
_SCHEMA: Final = {
    "type": "json_schema",
    "json_schema": {
        "name": "record",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": _FIELDS,
            "required": list(_FIELDS),
            "additionalProperties": False,
        },
    },
}
_SCHEMA_FAILED: Final = frozenset(
    {Reason.TOOL_CALL, Reason.UNPARSABLE, Reason.CONTENT_NONE, Reason.PROVIDER_ERROR}
)
"""Some models reply to a schema with a tool call or nothing. The retry omits the schema."""

_OPENAI: Final = frozenset({"openai", "text-completion-openai"})
"""The providers that use OPENAI_API_KEY."""
_TOO_MANY: Final = 10**9
"""More tokens, or dollars, than any call takes: a report of so many is not believed."""
_without_schema: set[str] = set()
"""Models that have rejected the parameter in this process."""


def load_litellm() -> Any:
    """Import litellm, quiet and offline. This takes 4 to 6 s, so call it in a thread.

    Raises:
        StartError: it is not installed.
    """
    # litellm reads this when it is imported. Without it, the import downloads a price list.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.setdefault("LITELLM_LOG", "CRITICAL")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        raise missing_litellm() from error
    # litellm and the clients of its providers may log prompts.
    logging.disable(logging.CRITICAL)
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    litellm.drop_params = True
    return litellm


async def ask(
    job: SummaryJob,
    prompt: Sequence[Mapping[str, str]],
    *,
    litellm: Any,
    count: Callable[[str], int],
    meter: UsageMeter,
) -> tuple[ModelResponse, ModelUsage]:
    """Call a model once, with a deadline for the whole answer.

    The meter counts the tokens that the provider reports, or else our own counts. If no answer
    arrives in time, it counts the prompt, because the provider may have processed it.

    Raises:
        SummarizerError: there is no answer.
    """
    asked_tokens = sum(count(message["content"]) for message in prompt)
    # Before the call: a job that is cancelled meanwhile reports them as well.
    meter.unreported_tokens += asked_tokens
    try:
        async with asyncio.timeout(job.timeout_seconds):
            response = await _asked(job, prompt, litellm)
    except Exception as error:  # noqa: BLE001 - providers raise any exception
        failure = failure_of(error)
        if failure.reason != Reason.TIMEOUT:
            meter.unreported_tokens -= asked_tokens
        # The cause may quote the user, and a traceback would print it.
        raise failure from None
    usage = getattr(response, "usage", None)
    used = ModelUsage(
        _number(getattr(usage, "prompt_tokens", None)),
        _number(getattr(usage, "completion_tokens", None)),
        _cost_of(response),
    )
    meter.add(used)
    # The meter holds our count of the prompt already; only the difference is added.
    meter.unreported_tokens += (
        (used.prompt_tokens or asked_tokens) - asked_tokens + (used.completion_tokens or 0)
    )
    choices = getattr(response, "choices", None)
    if not choices:
        raise SummarizerError(Reason.PROVIDER_ERROR, "the answer has no choices")
    answer = _answer_of(choices[0])
    # litellm reports zero for a provider that reports nothing.
    if not used.completion_tokens:
        meter.unreported_tokens += count(answer.content or "")
    return answer, used


async def _asked(job: SummaryJob, prompt: Sequence[Mapping[str, str]], litellm: Any) -> Any:
    model = job.model or ""
    key = job.api_key or _no_key(model, litellm)
    ask = partial(
        litellm.acompletion,
        model=model,
        # JSON with all sections is longer than the text, and some models count their reasoning
        # here.
        max_tokens=job.max_tokens * 2 + _ROOM_FOR_THOUGHT,
        timeout=job.timeout_seconds,
        # Retries are a matter of jobs: each attempt is stored, and counts against the quota.
        num_retries=0,
        max_retries=0,
        **{name: value for name, value in (("api_base", job.api_base), ("api_key", key)) if value},
    )
    # With a schema there may be two calls. Both share the deadline of `ask`.
    if _takes_schema(job, model, litellm):
        try:
            return await ask(messages=list(prompt), response_format=_SCHEMA)
        except Exception as error:
            if not refuses_schema(error):
                raise
            _without_schema.add(model)
    return await ask(messages=list(prompt))


def _no_key(model: str, litellm: Any) -> str | None:
    """Return an invalid key if the provider has none: litellm would send it the OpenAI key."""
    if "OPENAI_API_KEY" not in os.environ:
        return None
    try:
        _, provider, own_key, _ = litellm.get_llm_provider(model=model)
        borrows = (
            own_key is None
            and provider in litellm.openai_compatible_providers
            and provider not in _OPENAI
        )
    except Exception:  # noqa: BLE001 - a name that it does not know; the call itself says so
        return None
    return "none" if borrows else None


def _takes_schema(job: SummaryJob, model: str, litellm: Any) -> bool:
    if job.style == "narrative" or model in _without_schema or job.last_reason in _SCHEMA_FAILED:
        return False
    try:
        return bool(litellm.supports_response_schema(model=model))
    except Exception:  # noqa: BLE001 - a name that its map does not know
        return False


def _answer_of(choice: Any) -> ModelResponse:
    message = choice.message
    content = getattr(message, "content", None)
    return ModelResponse(
        content=content if isinstance(content, str) else None,
        finish_reason=getattr(choice, "finish_reason", None),
        calls_tools=bool(
            getattr(message, "tool_calls", None) or getattr(message, "function_call", None)
        ),
        has_reasoning=bool(
            getattr(message, "reasoning_content", None) or getattr(message, "thinking_blocks", None)
        ),
        refusal=getattr(message, "refusal", None)
        or (getattr(message, "provider_specific_fields", None) or {}).get("refusal"),
    )


def _cost_of(response: Any) -> float | None:
    hidden = getattr(response, "_hidden_params", None)
    cost = hidden.get("response_cost") if isinstance(hidden, dict) else None
    if not isinstance(cost, int | float) or isinstance(cost, bool):
        return None
    return float(cost) if 0 <= cost < _TOO_MANY else None


def _number(value: Any) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < _TOO_MANY else None


_SPENT: Final = re.compile(
    r"insufficient_quota|quota|billing|credit balance|payment required|spending limit",
    re.IGNORECASE,
)
_LINK: Final = re.compile(r"https?://\S+")
_COMES_BACK: Final = re.compile(r"(?:retry|try again) (?:in|after) \d|retryDelay", re.IGNORECASE)
"""A provider that says when to ask again limits the rate, whatever it calls that."""

_NO_KEY: Final = re.compile(
    r"missing credentials|missing \w+ api key|_API_KEY is not set|unable to locate credentials",
    re.IGNORECASE,
)
_BEGINNING: Final = 200
"""The characters of an error in which a client says that it has no key."""

_ABOUT_SCHEMA: Final = re.compile(
    r"response_format|json_schema|response schema|structured output|output_config|output_format",
    re.IGNORECASE,
)


def failure_of(error: BaseException) -> SummarizerError:
    """Translate the error of a call.

    The text contains only class and status, or that the key is missing, because a provider's
    message may quote the user.
    """
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    # No provider was asked, so the status is litellm's own, often 500.
    if status in {None, 401, 500} and _NO_KEY.search(str(error), 0, _BEGINNING):
        description = f"{type(error).__name__}, no key for the provider"
        return SummarizerError(Reason.PROVIDER_ERROR, description, is_transient=False)
    reason, is_transient = _meaning(error, status, str(error))
    description = f"{type(error).__name__}, status {status}" if status else type(error).__name__
    return SummarizerError(
        reason, description, is_transient=is_transient, retry_after_seconds=_retry_after(error)
    )


def refuses_schema(error: BaseException) -> bool:
    """Return whether a provider rejected the schema, so that a call without it may succeed."""
    status = getattr(error, "status_code", None)
    return (
        status in {400, 404, 422}
        and overflow_in(error) is None
        and _ABOUT_SCHEMA.search(str(error)) is not None
    )


def _retry_after(error: BaseException) -> float | None:
    """Return the seconds of a `Retry-After` header, or None. Dates are ignored."""
    # The place of the headers depends on the provider.
    places = (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    )
    header = next(
        (headers["retry-after"] for headers in places if headers and "retry-after" in headers), ""
    )
    try:
        seconds = float(header)
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds < float("inf") else None


def _meaning(error: BaseException, status: int | None, text: str) -> tuple[Reason, bool]:
    if status in {402, 429}:
        # A rate limit may link to a page about quotas, and its address does not describe the error.
        is_spent = not _COMES_BACK.search(text) and _SPENT.search(_LINK.sub("", text))
        return Reason.RATE_LIMITED, status == 429 and not is_spent
    # After the rate limits and before the other codes: an overflow has code 400, too.
    if overflow_in(error) is not None:
        return Reason.CONTEXT_OVERFLOW, False
    if isinstance(error, TimeoutError) or type(error).__name__ == "Timeout" or status in (408, 504):
        return Reason.TIMEOUT, True
    if status is not None and 400 <= status < 500 and status not in (409, 425):
        return Reason.PROVIDER_ERROR, False
    return Reason.PROVIDER_ERROR, True
