"""Overflow is told from other errors: by names, statuses, and the words of each provider."""

from types import SimpleNamespace
from typing import Any

import pytest

from turnfold.core.recovery.overflow import (
    WORDINGS,
    Overflow,
    overflow_answered,
    overflow_in,
    overflow_in_text,
    overflow_reported,
)
from turnfold.errors import ContextOverflow

TEXTS: list[tuple[str, str, int | None, int | None]] = [
    ("any", "The prompt has a maximum context length.", None, None),
    (
        "openai",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please reduce the length of the messages.",
        8192,
        9000,
    ),
    (
        "openai",
        "This model's maximum context length is 4097 tokens, however you requested 5066 tokens (1066 in your prompt; 4000 for the completion).",
        4097,
        1066,
    ),
    (
        "openai",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300123 tokens.",
        272_000,
        300_123,
    ),
    (
        "openai",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
        None,
    ),
    ("anthropic", "prompt is too long: 208310 tokens > 200000 maximum", 200_000, 208_310),
    (
        "anthropic",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again",
        200_000,
        188_240,
    ),
    (
        "bedrock",
        "Too many input tokens. Max input tokens: 128000, request input token count: 140000",
        128_000,
        140_000,
    ),
    ("bedrock", "ValidationException: Input is too long for requested model.", None, None),
    (
        "gemini",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        1_048_576,
        1_200_000,
    ),
    (
        "vertex",
        "Unable to submit request because the input token count is 32825 but model only supports up to 32768. Reduce the input token count and try again.",
        32_768,
        32_825,
    ),
    (
        "mistral",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32_768,
        40_000,
    ),
    (
        "cohere",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
        4081,
        5000,
    ),
    (
        "cohere",
        "too many tokens: size limit exceeded by 1253 tokens. Try using shorter or fewer inputs.",
        None,
        None,
    ),
    ("groq", "Please reduce the length of the messages or completion.", None, None),
    (
        "cerebras",
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        8192,
        9000,
    ),
    (
        "together",
        "The input (10000 tokens) is longer than the model's context length (8192 tokens).",
        8192,
        10_000,
    ),
    (
        "hugging face",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens and 512 `max_new_tokens`",
        4097,
        5000,
    ),
    (
        "fireworks",
        "The prompt is too long: 262960, model maximum context length: 262144",
        262_144,
        262_960,
    ),
    (
        "xai",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131_072,
        537_812,
    ),
    (
        "openrouter",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 132463 tokens (1463 of text input, 131000 in the output).",
        131_072,
        1_463,
    ),
    (
        "vllm",
        "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your prompt contains at least 262145 input tokens",
        262_144,
        262_145,
    ),
    (
        "vllm",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller.",
        4096,
        5000,
    ),
    (
        "sglang",
        "Requested token count exceeds the model's maximum context length of 202752 tokens. You requested a total of 202941 tokens: 170941 tokens from the input",
        202_752,
        202_941,
    ),
    (
        "llama.cpp",
        "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        4096,
        9000,
    ),
    ("llama.cpp", "the request exceeds the available context size, try increasing it", None, None),
    ("ollama", "the input length exceeds the context length", None, None),
    (
        "lm studio",
        "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens",
        4096,
        9000,
    ),
    (
        "github copilot",
        "prompt token count of 150000 exceeds the limit of 128000",
        128_000,
        150_000,
    ),
    (
        "qwen",
        "InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
        30_720,
        None,
    ),
    (
        "kimi",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
        262_144,
        291_351,
    ),
    ("minimax", "invalid params, context window exceeds limit (2013)", None, None),
    ("zhipu", "Prompt exceeds max length", None, None),
    (
        "watsonx",
        "the number of input tokens 4098 cannot exceed the total tokens limit 4096 for this model",
        4096,
        4098,
    ),
    (
        "vllm",
        "You passed 5000 input tokens and requested 100 output tokens. However, the model's context length is only 4096 tokens",
        4096,
        5000,
    ),
    (
        "vllm",
        "'max_tokens' is too large: 2000. This model's maximum context length is 4096 tokens and your request has 2104 input tokens",
        4096,
        2104,
    ),
    ("openai", "This model's maximum context length is 4097 tokens.", 4097, None),
    ("anthropic", "request_too_large: Request exceeds the maximum size", None, None),
    ("gemini", "The request exceeds the maximum number of tokens allowed.", None, None),
    (
        "hugging face",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
        1024,
        2000,
    ),
    (
        "lm studio",
        "The number of tokens to keep from the initial prompt is greater than the context length",
        None,
        None,
    ),
    (
        "vllm",
        "This model's maximum context length is 32768 tokens. However, your request has 40000 input tokens. Please reduce the length of the input messages.",
        32_768,
        40_000,
    ),
    (
        "vllm",
        "You passed 65537 input characters and requested 100 output tokens. However, the model's context length is only 4096 tokens, resulting in a maximum input length of 3996 tokens (at most 63936 characters). Please reduce the length of the input prompt.",
        4096,
        None,
    ),
    (
        "vllm",
        "The engine prompt length 227861 exceeds the max_model_len 131072. Please reduce prompt.",
        131_072,
        227_861,
    ),
    (
        "bedrock",
        "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
        None,
        None,
    ),
    (
        "gemini",
        "The input token count exceeds the maximum number of tokens allowed 1048576.",
        1_048_576,
        None,
    ),
    (
        "lm studio",
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 8485 >= n_ctx: 8192).",
        8192,
        8485,
    ),
    ("lm studio", "Cannot truncate prompt with n_keep (9214) >= n_ctx (4096)", 4096, 9214),
    ("zhipu", "Prompt 超长", None, None),
    ("zhipu", "tokens in request more than max tokens allowed", None, None),
    (
        "deepinfra",
        "Requested input length 39818 exceeds maximum input length 32767",
        32_767,
        39_818,
    ),
    (
        "cloudflare",
        "5021: The estimated number of input and maximum output tokens (35000) exceeded this model context window limit (24000)",
        24_000,
        35_000,
    ),
    (
        "volcengine",
        "Total tokens of image and text exceed max message tokens. Request id: 0217",
        None,
        None,
    ),
    ("any", "context_window_exceeded", None, None),
    ("any", "Prompt has too many tokens", None, None),
    ("any", "输入超过最大长度", None, None),
    (
        "poolside",
        "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
        131_040,
        131_393,
    ),
]
NEVER = [
    (429, "Rate limit reached for requests"),
    (429, "Request too large for gpt-4.1 on tokens per min (TPM): Limit 30000, Requested 40000."),
    (
        429,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    ),
    (
        413,
        "Request too large for model `llama` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce your message size.",
    ),
    (
        400,
        "This request would exceed your organization's rate limit of 40,000 input tokens per minute",
    ),
    (
        402,
        "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 1000.",
    ),
    (
        400,
        "You exceeded your current quota, please check your plan and billing details. The prompt is too long for it.",
    ),
    (400, "Too many tokens, please wait before trying again."),
    (400, "Too many tokens per minute for this organization"),
    (401, "prompt is too long: 208310 tokens > 200000 maximum"),
    (500, "The server had an error"),
    (400, "Invalid value for 'temperature'"),
    (
        400,
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 70 instead.",
    ),
    (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
    (400, "Tool names must have a maximum length of 64"),
    (
        400,
        "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model - received 8192.",
    ),
    (None, "Connection reset by peer"),
]


class BadRequestError(Exception):
    """As the clients of providers raise it."""

    def __init__(self, text: str, status_code: int | None = 400, code: str | None = None) -> None:
        super().__init__(text)
        self.status_code = status_code
        self.code = code


class ContextWindowExceededError(BadRequestError):
    """As litellm raises it."""


class RateLimitError(BadRequestError):
    """As litellm raises it."""


class OfAnApplication(ContextWindowExceededError):
    """Somebody's own error made of one."""


@pytest.mark.proves("R2", "C60")
def test_every_wording_of_the_table_recognises_a_text_and_they_are_of_more_than_fifteen_providers() -> (
    None
):
    used = {
        next(wording for wording in WORDINGS if wording.pattern.search(text))
        for _, text, *_ in TEXTS
    }

    assert used == set(WORDINGS)
    assert len({wording.provider for wording in WORDINGS} - {"any"}) == 29


@pytest.mark.proves("R2", "C60")
@pytest.mark.parametrize(
    ("provider", "text", "limit", "tokens"),
    TEXTS,
    ids=[f"{number}-{row[0]}" for number, row in enumerate(TEXTS)],
)
def test_the_words_of_a_provider_are_overflow_with_the_sizes_they_tell(
    provider: str, text: str, limit: int | None, tokens: int | None
) -> None:
    overflow = overflow_in(BadRequestError(f"litellm.BadRequestError: Exception - {text}"))

    assert overflow is not None
    assert (overflow.provider, overflow.limit_tokens, overflow.tokens) == (provider, limit, tokens)


@pytest.mark.proves("R2", "C60")
@pytest.mark.parametrize(
    ("text", "tokens", "output"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, you requested 8484 tokens (4359 in the messages, 125 in the functions, and 4000 in the completion).",
            4_484,
            4_000,
        ),
        (
            "This model's maximum context length is 4097 tokens, however you requested 5066 tokens (1066 in your prompt; 4000 for the completion).",
            1_066,
            4_000,
        ),
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 132963 tokens (1463 of text input, 500 of tool input, 131000 in the output).",
            1_963,
            131_000,
        ),
        (
            "Requested token count exceeds the model's maximum context length of 202752 tokens. You requested a total of 202941 tokens: 170941 tokens from the input messages and 32000 tokens for the completion.",
            170_941,
            32_000,
        ),
        (
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
            188_240,
            21_333,
        ),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4000 `inputs` tokens and 512 `max_new_tokens`",
            4_000,
            512,
        ),
        (
            "This model's maximum context length is 4097 tokens, however you requested 5066 tokens.",
            5_066,
            None,
        ),
    ],
)
def test_the_room_of_the_answer_is_told_apart_from_the_input(
    text: str, tokens: int, output: int | None
) -> None:
    overflow = overflow_in_text(text)

    assert overflow is not None
    assert (overflow.tokens, overflow.output_tokens) == (tokens, output)


@pytest.mark.proves("R2", "C59")
@pytest.mark.parametrize(
    ("status", "text"), NEVER, ids=[f"{status}-{text[:30]}" for status, text in NEVER]
)
def test_rates_quotas_and_other_failures_are_never_overflow(status: int | None, text: str) -> None:
    assert overflow_in(BadRequestError(text, status)) is None


@pytest.mark.proves("R2")
def test_an_error_is_overflow_by_the_name_of_its_class_or_of_one_it_was_made_from() -> None:
    assert overflow_in(ContextWindowExceededError("no words of any provider")) == Overflow("any")
    assert overflow_in(OfAnApplication("nor here")) == Overflow("any")
    assert overflow_in(ContextOverflow()) == Overflow("any")


@pytest.mark.proves("R2")
def test_an_error_that_a_task_group_raises_is_the_one_in_it() -> None:
    error = BadRequestError("prompt is too long: 17000 tokens > 16000 maximum")
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("inner", [error])])

    assert overflow_in(group) == Overflow("anthropic", 16_000, 17_000)
    assert overflow_in(ExceptionGroup("several", [error, RateLimitError("wait", 429)])) is None


@pytest.mark.proves("R2")
def test_an_error_is_overflow_by_its_code_or_by_a_body_that_is_too_large() -> None:
    assert overflow_in(BadRequestError("no words", code="context_length_exceeded")) == Overflow(
        "any"
    )
    assert overflow_in(BadRequestError("Payload too large", 413)) == Overflow("any")


@pytest.mark.proves("R2", "C59")
def test_an_error_of_rates_is_none_by_its_class_whatever_it_says() -> None:
    assert (
        overflow_in(RateLimitError("prompt is too long: 208310 tokens > 200000 maximum", 400))
        is None
    )


@pytest.mark.proves("R2", "C60")
@pytest.mark.parametrize(
    ("response", "window", "told"),
    [
        (
            SimpleNamespace(usage=SimpleNamespace(prompt_tokens=9_000)),
            8_192,
            Overflow("any", 8_192, 9_000),
        ),
        ({"usage": {"input_tokens": 9_000}}, 8_192, Overflow("any", 8_192, 9_000)),
        (
            {
                "usage": {
                    "input_tokens": 7,
                    "cache_read_input_tokens": 8_900,
                    "cache_creation_input_tokens": 93,
                }
            },
            8_192,
            Overflow("any", 8_192, 9_000),
        ),
        ({"usage": {"prompt_tokens": 8_000, "cache_read_input_tokens": 7_000}}, 8_192, None),
        ({"usage": {"prompt_tokens": 8_192}}, 8_192, None),
        ({"usage": {"prompt_tokens": 9_000}}, None, None),
        ({"usage": None}, 8_192, None),
        ("text", 8_192, None),
    ],
)
def test_a_success_that_reports_more_input_than_the_model_reads_is_overflow(
    response: Any, window: int | None, told: Overflow | None
) -> None:
    assert overflow_reported(response, window) == told


@pytest.mark.proves("R6")
@pytest.mark.parametrize(
    "text",
    [
        "maximum context length",
        "Request rejected: maximum context length reached.",
        "Too many tokens in request",
        "too many tokens",
    ],
)
def test_few_words_are_enough(text: str) -> None:
    assert overflow_in(BadRequestError(text)) == Overflow("any")
    assert overflow_in(BadRequestError(text, 429)) is None


TOO_LONG_ANSWERED = {
    "code": 400,
    "message": "Provider returned error",
    "metadata": {"raw": '{"message": "prompt is too long: 17000 tokens > 16000 maximum"}'},
}
"""As OpenRouter answers it, with the words of the provider."""


def completion(content: Any, finish_reason: str = "error") -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {"choices": [{"finish_reason": finish_reason, "message": message}]}


@pytest.mark.proves("R6")
@pytest.mark.parametrize(
    "answer",
    [
        completion("Error calling LLM: prompt is too long: 17000 tokens > 16000 maximum"),
        SimpleNamespace(
            content="Error: prompt is too long: 17000 tokens > 16000 maximum", finish_reason="error"
        ),
        SimpleNamespace(
            choices=[
                SimpleNamespace(
                    finish_reason="error",
                    message=SimpleNamespace(
                        content="prompt is too long: 17000 tokens > 16000 maximum"
                    ),
                )
            ]
        ),
        SimpleNamespace(
            content="prompt is too long: 17000 tokens > 16000 maximum",
            finish_reason="error",
            error=True,
        ),
        {"choices": None, "error": TOO_LONG_ANSWERED},
        {"choices": [{"finish_reason": "error", "error": TOO_LONG_ANSWERED}]},
        SimpleNamespace(choices=None, error=TOO_LONG_ANSWERED),
    ],
    ids=[
        *("dictionary", "one answer", "objects", "a flag beside it"),
        *("error", "error of a choice", "error of an object"),
    ],
)
def test_an_error_that_a_host_answers_as_text_is_overflow(answer: object) -> None:
    assert overflow_answered(answer) == Overflow("anthropic", 16_000, 17_000)


@pytest.mark.proves("R6")
def test_an_error_that_a_host_answers_as_text_may_name_its_class() -> None:
    text = "Error calling LLM: litellm.ContextWindowExceededError: no details"

    assert overflow_answered(completion(text)) == Overflow("any")


@pytest.mark.proves("R6", "R2")
@pytest.mark.parametrize(
    "answer",
    [
        completion("prompt is too long: 17000 tokens > 16000 maximum", "stop"),
        completion("Error: RateLimitError: too many tokens per minute"),
        completion("Error: the server is down"),
        completion(None),
        completion([{"type": "text", "text": "too many tokens"}]),
        {"choices": []},
        {"choices": None, "error": TOO_LONG_ANSWERED | {"code": 429}},
        {"choices": None, "error": {"code": 400, "message": "Invalid value for 'temperature'"}},
        "too many tokens",
        None,
    ],
)
def test_other_answers_are_no_overflow_whatever_they_say(answer: object) -> None:
    assert overflow_answered(answer) is None


def test_a_text_without_any_of_these_words_tells_nothing() -> None:
    assert overflow_in_text("The tool `search` failed: too many results") is None
