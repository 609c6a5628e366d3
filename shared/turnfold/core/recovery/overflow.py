"""Recognize context overflow from the error or the usage of a model call.

Each provider words this error differently. `WORDINGS` lists the known ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

TEXT_CHARACTERS: Final = 8_000
"""In a longer error text, the first and the last this many characters are searched."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """A request exceeded the model's context window.

    Sizes are the provider's counts, None if unknown: `limit_tokens` of the window, `tokens` of the
    input, and `output_tokens` that the request reserved for the answer. A provider that names only
    a total counts both in `tokens`. `provider` is the source of the wording, not necessarily the
    provider called.
    """

    provider: str
    limit_tokens: int | None = None
    tokens: int | None = None
    output_tokens: int | None = None


class OverflowPattern(NamedTuple):
    """The wording of a provider; its groups match the sizes.

    `total` is that of input and answer together.
    """

    provider: str
    pattern: re.Pattern[str]


def _wording(provider: str, pattern: str) -> OverflowPattern:
    sizes = (
        pattern.replace("<limit>", r"(?P<limit>\d[\d,]*)")
        .replace("<tokens>", r"(?P<tokens>\d[\d,]*)")
        .replace("<total>", r"(?P<total>\d[\d,]*)")
        .replace("<output>", r"(?P<output>\d[\d,]*)")
        .replace("<n>", r"\d[\d,]*")
    )
    return OverflowPattern(provider, re.compile(sizes, re.IGNORECASE | re.DOTALL))


# Patterns with more sizes come first, because several providers use nearly the same words.
WORDINGS: Final = (
    _wording(
        "openrouter",
        r"endpoint's maximum context length is <limit> tokens\. however, you requested about "
        r"<total> tokens(?: \([^()]{0,120}?<output> in the output\))?",
    ),
    _wording(
        "vllm",
        r"maximum context length is <limit> tokens\b.{0,80}prompt contains (?:at least "
        r")?<tokens> input tokens",
    ),
    _wording(
        "vllm",
        r"(?:prompt|input) \((?:total )?length <tokens>\) is longer than the maximum model "
        r"length of <limit>",
    ),
    _wording(
        "vllm",
        r"you passed (?:<tokens> input tokens|<n> input characters).{0,80}context length is only "
        r"<limit> tokens",
    ),
    _wording(
        "vllm",
        r"maximum context length is <limit> tokens(?: and|\. however,) your request has <tokens> "
        r"input tokens",
    ),
    _wording("vllm", r"prompt length <tokens> exceeds the max_model_len <limit>"),
    _wording(
        "sglang",
        r"maximum context length of <limit> tokens\. you requested a total of <total> tokens"
        r"(?:: .{0,120}?<output> tokens for the completion)?",
    ),
    _wording(
        "openai", r"configured limit of <limit> tokens\. your messages resulted in <tokens> tokens"
    ),
    _wording(
        "openai",
        r"maximum context length is <limit> tokens\W{1,3}however,? (?:your messages resulted "
        r"in|you requested) <total> tokens(?: \([^()]{0,120}?<output> (?:in|for) the completion)?",
    ),
    _wording("openai", r"maximum context length is <limit>"),
    _wording("openai", r"(?:input|request) exceeds the context window"),
    _wording("anthropic", r"prompt is too long: <tokens> tokens > <limit>"),
    _wording(
        "anthropic",
        r"input length and `?max_tokens`? exceed context limit: <tokens> \+ <output> > <limit>",
    ),
    _wording(
        "anthropic",
        r"exceeds? context limit|request exceeds the maximum (?:allowed )?(?:number of bytes|size)",
    ),
    _wording("bedrock", r"max input tokens: <limit>, request input token count: <tokens>"),
    _wording(
        "bedrock",
        r"input is too long for requested model|too many input tokens|number of input tokens "
        r"exceeds maximum length",
    ),
    _wording(
        "gemini",
        r"input token count \(<tokens>\) exceeds the maximum number of tokens allowed \(<limit>\)",
    ),
    _wording("gemini", r"exceeds the maximum number of tokens allowed(?: <limit>)?"),
    _wording(
        "vertex", r"input token count is <tokens> but (?:the )?model only supports up to <limit>"
    ),
    _wording(
        "mistral",
        r"prompt contains <tokens> tokens.{0,60}too large for model with <limit> maximum "
        r"context length",
    ),
    _wording("cohere", r"total number of tokens.{0,60}cannot exceed <limit> - received <tokens>"),
    _wording("cohere", r"too many tokens: size limit exceeded"),
    _wording("cerebras", r"current length is <tokens> while limit is <limit>"),
    _wording("groq", r"reduce the length of the messages"),
    _wording(
        "together",
        r"input \(<tokens> tokens\) is longer than the model's context length \(<limit> tokens\)",
    ),
    _wording(
        "hugging face",
        r"`inputs` tokens \+ `max_new_tokens` must be <= <limit>\. given: <tokens> `inputs` tokens"
        r"(?: and <output> `max_new_tokens`)?",
    ),
    _wording("hugging face", r"`inputs` must have less than <limit> tokens\. given: <tokens>"),
    _wording("fireworks", r"prompt is too long: <tokens>, model maximum context length: <limit>"),
    _wording("xai", r"maximum prompt length is <limit> but the request contains <tokens> tokens"),
    _wording("github copilot", r"prompt token count of <tokens> exceeds the limit of <limit>"),
    _wording(
        "llama.cpp",
        r"request \(<tokens> tokens\) exceeds the available context size \(<limit> tokens\)",
    ),
    _wording("llama.cpp", r"exceeds the available context size(?: \(<limit> tokens\))?"),
    _wording(
        "ollama",
        r"(?:input length exceeds the (?:maximum )?context length|prompt too long; exceeded "
        r"(?:max )?context length)",
    ),
    _wording(
        "lm studio", r"keep the first <tokens> tokens.{0,120}context length of only <limit> tokens"
    ),
    _wording(
        "lm studio",
        r"tokens to keep from the initial prompt is greater than the context length"
        r"(?: \(n_keep: <tokens> >= n_ctx: <limit>\))?",
    ),
    _wording("lm studio", r"cannot truncate prompt with n_keep \(<tokens>\) >= n_ctx \(<limit>\)"),
    _wording("qwen", r"range of input length should be \[<n>, ?<limit>\]"),
    _wording("kimi", r"exceeded model token limit: <limit>(?: \(requested: <tokens>\))?"),
    _wording("minimax", r"context window exceeds limit"),
    _wording(
        "zhipu",
        r"prompt exceeds max(?:imum)? length|model_context_window_exceeded|prompt 超长|tokens in "
        r"request more than max tokens allowed",
    ),
    _wording(
        "watsonx", r"number of input tokens <tokens> cannot exceed the total tokens limit <limit>"
    ),
    _wording(
        "poolside",
        r"input length <tokens> exceeds the maximum allowed input length of <limit> tokens",
    ),
    _wording("deepinfra", r"requested input length <tokens> exceeds maximum input length <limit>"),
    _wording(
        "cloudflare",
        r"input and maximum output tokens \(<total>\) exceeded this model context window limit "
        r"\(<limit>\)",
    ),
    _wording("volcengine", r"tokens of image and text exceed max message tokens"),
    _wording(
        "any",
        r"context[_ ](?:length|window|size)[_ ]exceeded|exceeds? (?:the |this )?(?:model'?s? "
        r")?(?:maximum )?context (?:length|window|size)",
    ),
    _wording(
        "any",
        r"(?:prompt|input|request) is too long(?! to (?:wait|process))|prompt has too many tokens",
    ),
    _wording(
        "any",
        # Cohere says the second of these to a call that wants too long an answer, too.
        r"maximum context (?:length|window|size)|too many tokens(?!: max tokens must)",
    ),
    _wording(
        "any",
        r"exceed_context_size|上下文(?:长度|窗口)?.{0,8}(?:超|过长)|(?:超过|超出).{0,8}(?:上下文|最大)长度",
    ),
)
"""The wordings of providers for a request that is too long for its model."""

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
"""Names of error classes that mean overflow, in litellm and in the clients of providers."""

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
ANTHROPIC_INPUT: Final = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
STATUSES: Final = frozenset({None, 400, 413, 422, 500, 502, 503})
"""HTTP statuses of an overflow; gateways turn some of them into server errors."""

RATES: Final = re.compile(
    r"rate[ _-]?limit|tokens per (?:second|minute|hour|day)|per[ -]minute|\bTP[MD]\b|quota"
    r"|billing|credit balance|more credits"
    r"|can only afford|payment required|spending limit|too many requests|throttl"
    r"|please wait before",
    re.IGNORECASE,
)
"""Texts of rate limits and exhausted budgets. A shorter request does not help against them."""


def overflow_in(error: BaseException) -> Overflow | None:
    """Return the overflow that an error reports; None for any other error.

    The names of its classes, its `status_code`, its `code` and its text decide. Status 429 and
    errors about rates, quotas or bills are never overflow; status 413 always is.
    """
    error = only_error(error) if isinstance(error, Exception) else error
    names = {kind.__name__ for kind in type(error).__mro__}
    status = _status(error)
    if status not in STATUSES or names & OTHER_NAMES:
        return None
    return overflow_in_text(_text(error), is_named=bool(names & NAMES) or status == 413)


def only_error(error: Exception) -> Exception:
    """Return the only error of a group, as task groups raise it, also those of MCP's clients."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def overflow_in_text(text: str, *, is_named: bool = False) -> Overflow | None:
    """Return the overflow that an error text reports; without a known wording only if named."""
    # Rates first: "too many tokens per minute" also matches a wording of overflow.
    if RATES.search(text):
        return None
    for wording in WORDINGS:
        if match := wording.pattern.search(text):
            sizes = {name: _size(digits) for name, digits in match.groupdict().items()}
            total, output = sizes.get("total"), sizes.get("output")
            tokens = sizes.get("tokens") if total is None else max(total - (output or 0), 0)
            return Overflow(wording.provider, sizes.get("limit"), tokens, output)
    return Overflow("any") if is_named else None


def overflow_answered(response: object) -> Overflow | None:
    """Return the overflow of an error that a host answers as text, with `finish_reason` "error".

    A response is an object or a dictionary: a completion with choices, or one answer with
    `content`. The text counts as that of an exception. OpenRouter answers the `error` itself, in
    the choice or in a response without choices.
    """
    choices = _field(response, "choices")
    answer = choices[0] if isinstance(choices, list) and choices else response
    error, texts = _field(answer, "error"), list[str]()
    code = _field(error, "code")
    if isinstance(code, int) and code not in STATUSES:
        return None
    if error:
        texts.append(str(error))
    if _field(answer, "finish_reason") == "error":
        message = _field(answer, "message")
        content = _field(answer if message is None else message, "content")
        if isinstance(content, str):
            texts.append(content)
    text = _ends("\n".join(texts))
    return overflow_in_text(text, is_named=any(name in text for name in NAMES))


def overflow_reported(response: object, window_tokens: int | None) -> Overflow | None:
    """Return an overflow if the `usage` of a response counts more input than the model's window.

    A response is an object or a dictionary. `window_tokens` is None if the window is unknown.
    """
    if window_tokens is None or window_tokens <= 0:
        return None
    tokens = prompt_tokens_of(response)
    return Overflow("any", window_tokens, tokens) if tokens > window_tokens else None


def prompt_tokens_of(response: object) -> int:
    """Return the input tokens that the `usage` of a response counts; 0 if it counts none."""
    usage = _field(response, "usage")
    tokens = _number(usage, "prompt_tokens")
    # Anthropic counts cached input apart; it fills the window all the same.
    return tokens or sum([_number(usage, name) for name in ANTHROPIC_INPUT])


def _number(usage: object, name: str) -> int:
    value = _field(usage, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _status(error: BaseException) -> int | None:
    for name in ("status_code", "status", "http_status"):
        status = getattr(error, name, None)
        if isinstance(status, int) and not isinstance(status, bool):
            return int(status)
    return None


def _text(error: BaseException) -> str:
    code = getattr(error, "code", None)
    return _ends(f"{code if isinstance(code, str) else ''} {error}")


def _ends(text: str) -> str:
    """Return the searched parts of a text."""
    if len(text) <= 2 * TEXT_CHARACTERS:
        return text
    return f"{text[:TEXT_CHARACTERS]}\n{text[-TEXT_CHARACTERS:]}"


def _size(digits: str | None) -> int | None:
    # Bounded: the text may come from an untrusted host.
    return int(digits.replace(",", "")) if digits and len(digits) <= 12 else None


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
