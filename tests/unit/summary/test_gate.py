"""What a model's answer must be before it becomes a version."""

import pytest

from turnfold.core.summary.gate import ModelResponse, Reason, check, missing_facts, response_text

SUMMARY = "Mia asked for a refund of order KX-1. It was granted on May 3."


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ModelResponse(SUMMARY), None),
        (ModelResponse(f"<think>hm</think>{SUMMARY}"), None),
        (ModelResponse("抱歉的用户要求退款，已经完成。"), None),
        (
            ModelResponse("The user said: I'm sorry, I can't help with that. The agent moved on."),
            None,
        ),
        (ModelResponse(None), Reason.CONTENT_NONE),
        (ModelResponse("  \n "), Reason.EMPTY_SUMMARY),
        (ModelResponse("<summary> </summary>"), Reason.EMPTY_SUMMARY),
        (ModelResponse(None, has_reasoning=True), Reason.THINKING_ONLY_NO_CONTENT),
        (ModelResponse("<think>so the user wants</think>"), Reason.THINKING_ONLY_NO_CONTENT),
        (ModelResponse("<think>so the user wants"), Reason.THINKING_ONLY_NO_CONTENT),
        (ModelResponse("So the user wants\n</think>\n"), Reason.THINKING_ONLY_NO_CONTENT),
        (ModelResponse(f"So the user wants\n</think>\n\n{SUMMARY}"), None),
        (ModelResponse(f"{SUMMARY} The template ends with `</think>` now."), None),
        (ModelResponse(None, "length", has_reasoning=True), Reason.MAX_TOKENS_NO_CONTENT),
        (ModelResponse("", "length"), Reason.MAX_TOKENS_NO_CONTENT),
        (ModelResponse(SUMMARY, "length"), Reason.TRUNCATED),
        (ModelResponse(SUMMARY, "max_tokens"), Reason.TRUNCATED),
        (ModelResponse(SUMMARY, "content_filter"), Reason.REFUSED),
        (ModelResponse(None, refusal="no"), Reason.REFUSED),
        (ModelResponse("I'm sorry, but I can't assist with that request."), Reason.REFUSED),
        (ModelResponse("I cannot summarize this conversation."), Reason.REFUSED),
        (ModelResponse("抱歉，我无法协助处理这个请求。"), Reason.REFUSED),
        (ModelResponse("申し訳ありませんが、要約できません。"), Reason.REFUSED),
        (ModelResponse(None, "tool_calls", calls_tools=True), Reason.TOOL_CALL),
        (ModelResponse(SUMMARY, "stop", calls_tools=True), Reason.TOOL_CALL),
        (ModelResponse(SUMMARY, "error"), Reason.PROVIDER_ERROR),
        (ModelResponse(SUMMARY, None), Reason.PROVIDER_ERROR),
    ],
)
@pytest.mark.proves("S5", "C36")
def test_answer_commits_only_when_it_is_whole_and_meant(
    answer: ModelResponse, reason: Reason | None
) -> None:
    assert check(answer, input_tokens=1_000, output_tokens=20) is reason


@pytest.mark.parametrize(
    "text",
    [
        "I apologize, but I cannot assist with that request.",
        "I apologize, but I'm unable to summarize this conversation.",
        "Unfortunately, I can't help with that.",
        "I'm afraid I can\u2019t help with this request.",
        "Sorry, but I'm unable to help with that.",
        "My apologies, but I can't do that.",
        "I must respectfully decline this request.",
        "I cannot create content that involves this.",
        "I can't write a summary of the conversation.",
        "I do not feel comfortable summarizing this.",
        "Es tut mir leid, aber dabei kann ich nicht helfen.",
        "Je suis désolé, mais je ne peux pas vous aider avec cette demande.",
        "Lo siento, pero no puedo ayudar con eso.",
        "Mi dispiace, ma non posso aiutarti.",
        "Desculpe, não posso ajudar com isso.",
        "죄송합니다. 도와드릴 수 없습니다.",
        "作为一个AI助手，我无法总结这段对话。",
    ],
)
@pytest.mark.proves("S5", "C36")
def test_a_refusal_is_recognized_however_it_is_worded(text: str) -> None:
    assert check(ModelResponse(text), input_tokens=1_000, output_tokens=20) is Reason.REFUSED


@pytest.mark.parametrize(
    "text",
    [
        "Unfortunately, this version of the library cannot parse dates, so Mia pinned 2.3.1.",
        "Sorry was said twice; the order could not be found and was refunded.",
        "The user apologized: they cannot attend on May 3. The room was booked for May 4.",
        "I was unable to reproduce the crash. Mia will send the core file.",
        "I cannot write tests without the fixture, so I added one.",
        "Mia asked why the model answers: I'm sorry, but I can't help with that. It was the filter.",
        "Il client ne peut pas se connecter ; désolé a été dit.",
        "我无法登录的问题已经解决。",
    ],
)
@pytest.mark.proves("S5")
def test_a_summary_that_tells_of_a_failure_is_no_refusal(text: str) -> None:
    assert check(ModelResponse(text), input_tokens=1_000, output_tokens=20) is None


@pytest.mark.parametrize(
    ("output_tokens", "reason"), [(99, None), (100, Reason.GREW), (101, Reason.GREW)]
)
@pytest.mark.proves("S5", "C36")
def test_summary_must_be_smaller_than_its_input(output_tokens: int, reason: Reason | None) -> None:
    assert check(ModelResponse(SUMMARY), input_tokens=100, output_tokens=output_tokens) is reason


def test_thoughts_and_wrapping_tags_are_no_part_of_what_is_said() -> None:
    assert response_text(f"{SUMMARY} Ends with </think>.") == f"{SUMMARY} Ends with </think>."
    assert response_text(f"So the user\n</think>\n\n{SUMMARY}") == SUMMARY
    assert response_text(f"<thinking>a\nb</thinking>\n<summary>{SUMMARY}</summary>") == SUMMARY
    assert response_text(f"Here it is:\n<think>a</think>\n{SUMMARY}") == f"Here it is:\n\n{SUMMARY}"
    assert response_text(f"<answer><think>a</think>{SUMMARY}</answer>") == SUMMARY


@pytest.mark.parametrize(
    "text",
    [
        "Mia asked to strip <think> tags. It was done on May 3.",
        "Mia asked to strip <think>...</think> from answers. It was done.",
        '{"decisions": ["Keep <thinking> tags."], "context": "It was done."}',
        "The page got a <summary> element and <output>5</output> in a form.",
    ],
)
@pytest.mark.proves("S5")
def test_tags_that_an_answer_tells_of_stay_in_it(text: str) -> None:
    assert response_text(text) == text


@pytest.mark.proves("S5")
def test_every_reason_of_the_requirements_has_its_name_and_crashes_one_of_their_own() -> None:
    assert {reason.value for reason in Reason} == {
        "content_none",
        "empty_summary",
        "thinking_only_no_content",
        "max_tokens_no_content",
        "truncated",
        "refused",
        "tool_call",
        "grew",
        "unparsable",
        "facts_missing",
        "timeout",
        "provider_error",
        "rate_limited",
        "context_overflow",
        "crashed",
    }


@pytest.mark.proves("S5", "C41")
def test_an_artifact_without_one_of_its_facts_or_the_open_request_is_found_out() -> None:
    ledger = (
        "request Roll it back.",
        "path /srv/app.py",
        "left_out 3 more values, which search finds",
    )

    assert (
        missing_facts(
            "The port is 8443.", ledger, facts=("/srv/app.py", "8443"), request="Roll it back."
        )
        == ()
    )
    assert missing_facts(
        "The port is 84.", ledger, facts=("/srv/app.py", "8443"), request="Roll back."
    ) == ("8443", "Roll back.")
    assert missing_facts("", (), facts=(), request="") == ()
