"""Overflow: told from the error of a model call, by what it is called and by what providers say when a request is too long."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

TEXT_CHARACTERS: Final = 8_000
"""Of a longer text the first and last so many characters are read."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """A request was longer than its model reads; tokens as the provider counts them, None where it does not say.

    `provider` is whose wording it was, `limit_tokens` what the model reads at most, `tokens` what the request had.
    """

    provider: str
    limit_tokens: int | None = None
    tokens: int | None = None


class OverflowPattern(NamedTuple):
    """How a provider says it; the groups `limit` and `tokens` are the sizes it tells."""

    provider: str
    pattern: re.Pattern[str]


def _says(provider: str, pattern: str) -> OverflowPattern:
    sizes = (
        pattern.replace("<limit>", r"(?P<limit>\d[\d,]*)")
        .replace("<tokens>", r"(?P<tokens>\d[\d,]*)")
        .replace("<n>", r"\d[\d,]*")
    )
    return OverflowPattern(provider, re.compile(sizes, re.IGNORECASE | re.DOTALL))


# Those that tell the most come first: several providers speak in nearly the same words.
WORDINGS: Final = (
    _says(
        "openrouter",
        r"endpoint's maximum context length is <limit> tokens\. however, you requested about <tokens> tokens",
    ),
    _says(
        "vllm",
        r"maximum context length is <limit> tokens\b.{0,80}prompt contains (?:at least )?<tokens> input tokens",
    ),
    _says(
        "vllm",
        r"(?:prompt|input) \((?:total )?length <tokens>\) is longer than the maximum model length of <limit>",
    ),
    _says("vllm", r"you passed <tokens> input tokens.{0,80}context length is only <limit> tokens"),
    _says(
        "vllm",
        r"maximum context length is <limit> tokens and your request has <tokens> input tokens",
    ),
    _says(
        "sglang",
        r"maximum context length of <limit> tokens\. you requested a total of <tokens> tokens",
    ),
    _says(
        "openai", r"configured limit of <limit> tokens\. your messages resulted in <tokens> tokens"
    ),
    _says(
        "openai",
        r"maximum context length is <limit> tokens\W{1,3}however,? (?:your messages resulted in|you requested) <tokens> tokens",
    ),
    _says("openai", r"maximum context length is <limit>"),
    _says("openai", r"(?:input|request) exceeds the context window"),
    _says("anthropic", r"prompt is too long: <tokens> tokens > <limit>"),
    _says(
        "anthropic",
        r"input length and `?max_tokens`? exceed context limit: <tokens> \+ <n> > <limit>",
    ),
    _says(
        "anthropic",
        r"exceeds? context limit|request exceeds the maximum (?:allowed )?(?:number of bytes|size)",
    ),
    _says("bedrock", r"max input tokens: <limit>, request input token count: <tokens>"),
    _says("bedrock", r"input is too long for requested model|too many input tokens"),
    _says(
        "gemini",
        r"input token count \(<tokens>\) exceeds the maximum number of tokens allowed \(<limit>\)",
    ),
    _says("gemini", r"exceeds the maximum number of tokens allowed"),
    _says(
        "vertex", r"input token count is <tokens> but (?:the )?model only supports up to <limit>"
    ),
    _says(
        "mistral",
        r"prompt contains <tokens> tokens.{0,60}too large for model with <limit> maximum context length",
    ),
    _says("cohere", r"total number of tokens.{0,60}cannot exceed <limit> - received <tokens>"),
    _says("cohere", r"too many tokens: size limit exceeded"),
    _says("cerebras", r"current length is <tokens> while limit is <limit>"),
    _says("groq", r"reduce the length of the messages"),
    _says(
        "together",
        r"input \(<tokens> tokens\) is longer than the model's context length \(<limit> tokens\)",
    ),
    _says(
        "hugging face",
        r"`inputs` tokens \+ `max_new_tokens` must be <= <limit>\. given: <tokens> `inputs` tokens",
    ),
    _says("hugging face", r"`inputs` must have less than <limit> tokens\. given: <tokens>"),
    _says("fireworks", r"prompt is too long: <tokens>, model maximum context length: <limit>"),
    _says("xai", r"maximum prompt length is <limit> but the request contains <tokens> tokens"),
    _says("github copilot", r"prompt token count of <tokens> exceeds the limit of <limit>"),
    _says(
        "llama.cpp",
        r"request \(<tokens> tokens\) exceeds the available context size \(<limit> tokens\)",
    ),
    _says("llama.cpp", r"exceeds the available context size(?: \(<limit> tokens\))?"),
    _says(
        "ollama",
        r"(?:input length exceeds the (?:maximum )?context length|prompt too long; exceeded (?:max )?context length)",
    ),
    _says(
        "lm studio", r"keep the first <tokens> tokens.{0,120}context length of only <limit> tokens"
    ),
    _says(
        "lm studio", r"tokens to keep from the initial prompt is greater than the context length"
    ),
    _says("qwen", r"range of input length should be \[<n>, ?<limit>\]"),
    _says("kimi", r"exceeded model token limit: <limit>(?: \(requested: <tokens>\))?"),
    _says("minimax", r"context window exceeds limit"),
    _says("zhipu", r"prompt exceeds max(?:imum)? length|model_context_window_exceeded"),
    _says(
        "watsonx", r"number of input tokens <tokens> cannot exceed the total tokens limit <limit>"
    ),
    _says(
        "poolside",
        r"input length <tokens> exceeds the maximum allowed input length of <limit> tokens",
    ),
    _says(
        "any",
        r"context[_ ](?:length|window|size)[_ ]exceeded|exceeds? (?:the |this )?(?:model'?s? )?(?:maximum )?context (?:length|window|size)",
    ),
    _says(
        "any",
        r"(?:prompt|input|request) is too long(?! to (?:wait|process))|prompt has too many tokens",
    ),
    _says(
        "any",
        r"exceed_context_size|上下文(?:长度|窗口)?.{0,8}(?:超|过长)|(?:超过|超出).{0,8}(?:上下文|最大)长度",
    ),
)
"""How providers say that a request is too long for its model."""

NAMES: Final = frozenset(
    {
        "ContextWindowExceededError",
        "ContextLengthExceededError",
        "ContextWindowExceeded",
        "ContextLengthExceeded",
        "ContextOverflow",
        "ContextOverflowError",
        "ContextWindowOverflowException",
        "RequestTooLargeError",
    }
)
"""Classes of errors that say so by their name, in litellm and in the clients of providers."""

OTHER_NAMES: Final = frozenset(
    {
        "APITimeoutError",
        "AuthenticationError",
        "BudgetExceededError",
        "ContentPolicyViolationError",
        "NotFoundError",
        "PermissionDeniedError",
        "RateLimitError",
        "ResourceExhausted",
        "ThrottlingException",
        "Timeout",
        "TimeoutError",
        "TooManyRequests",
    }
)
STATUSES: Final = frozenset({None, 400, 413, 422, 500, 502, 503})
"""What a provider may answer to a request that is too long; gateways in between turn some into errors of a server."""

RATES: Final = re.compile(
    r"rate[ _-]?limit|tokens per (?:second|minute|hour|day)|per[ -]minute|\bTP[MD]\b|quota|billing|credit balance|more credits"
    r"|can only afford|payment required|spending limit|too many requests|throttl|please wait before",
    re.IGNORECASE,
)
"""How many tokens may be sent in a time, or for the money left: a shorter request is no answer to that."""


def overflow_in(error: BaseException) -> Overflow | None:
    """What an error says of a request that was too long, or None when it speaks of anything else.

    Looked at are the names of its classes, its `status_code`, its `code` and its text. A status of 429, and rates, quotas
    and bills in whatever words, are never overflow; 413 is, whatever it says besides.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    status = _status(error)
    text = _text(error)
    if status not in STATUSES or names & OTHER_NAMES or RATES.search(text):
        return None
    told = overflow_told(text)
    if told is None and (names & NAMES or status == 413):
        return Overflow("any")
    return told


def overflow_told(text: str) -> Overflow | None:
    """What a text says of a request that was too long, in the words of some provider."""
    for wording in WORDINGS:
        if found := wording.pattern.search(text):
            sizes = found.groupdict()
            return Overflow(wording.provider, _size(sizes.get("limit")), _size(sizes.get("tokens")))
    return None


def overflow_reported(response: object, window_tokens: int | None) -> Overflow | None:
    """The overflow that a response admits: its `usage` counts more input than the model reads.

    A response is an object or a dictionary; `window_tokens` of None says that nobody knows how much the model reads.
    """
    if window_tokens is None or window_tokens <= 0:
        return None
    usage = _field(response, "usage")
    tokens = _field(usage, "prompt_tokens")
    if not isinstance(tokens, int):
        tokens = _field(usage, "input_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens <= window_tokens:
        return None
    return Overflow("any", window_tokens, tokens)


def _status(error: BaseException) -> int | None:
    for name in ("status_code", "status", "http_status"):
        status = getattr(error, name, None)
        if isinstance(status, int) and not isinstance(status, bool):
            return int(status)
    return None


def _text(error: BaseException) -> str:
    code = getattr(error, "code", None)
    text = f"{code if isinstance(code, str) else ''} {error}"
    return (
        text
        if len(text) <= 2 * TEXT_CHARACTERS
        else f"{text[:TEXT_CHARACTERS]}\n{text[-TEXT_CHARACTERS:]}"
    )


def _size(told: str | None) -> int | None:
    return int(told.replace(",", "")) if told and len(told) <= 12 else None


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
