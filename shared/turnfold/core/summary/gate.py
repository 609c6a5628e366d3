"""The checks that an answer of a model must pass before it becomes a version."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why an attempt gave no version. The values are stored."""

    CONTENT_NONE = "content_none"
    EMPTY_SUMMARY = "empty_summary"
    THINKING_ONLY_NO_CONTENT = "thinking_only_no_content"
    MAX_TOKENS_NO_CONTENT = "max_tokens_no_content"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    TOOL_CALL = "tool_call"
    GREW = "grew"
    UNPARSABLE = "unparsable"
    FACTS_MISSING = "facts_missing"
    TIMEOUT = "timeout"
    PROVIDER_ERROR = "provider_error"
    RATE_LIMITED = "rate_limited"
    CONTEXT_OVERFLOW = "context_overflow"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The answer of a model, as its provider reported it."""

    content: str | None
    finish_reason: str | None = "stop"
    calls_tools: bool = False
    has_reasoning: bool = False
    refusal: str | None = None


_STOPPED = frozenset(
    {"stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed", "finished"}
)
_CUT = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
_WITHHELD = frozenset(
    {"content_filter", "refusal", "safety", "recitation", "blocklist", "prohibited_content"}
)
_TAGS = r"(?:summary|answer|output|result)>"
_THOUGHT = re.compile(
    rf"^[ \t]*+(?:<{_TAGS}\s*+)?<(think|thinking|reasoning|analysis|scratchpad)>",
    re.IGNORECASE | re.MULTILINE,
)
"""The tag before reasoning: it begins a line. Within a line, an answer tells of such a tag."""
_THOUGHT_TO_END = re.compile(r"\A.*?^[ \t]*</think>[ \t]*$", re.DOTALL | re.MULTILINE)
"""Reasoning whose opening tag is in the prompt, so that the answer has only the closing one."""
_WRAPPER = re.compile(rf"^[ \t]*<{_TAGS}|</{_TAGS}[ \t]*$", re.IGNORECASE | re.MULTILINE)
_CANNOT = "can(?:['\u2019]t|not)|won['\u2019]t|unable|not able"
_ASKED = "(?:summary|content|conversation|request|this|that|such)"
_DECLINES = "i (?:must|have to|need to) (?:respectfully |politely )?decline"
_REFUSALS = re.compile(
    r"^\W*(?:"
    r"(?:(?:i['\u2019]?m|i am) (?:very |so |really )?sorry|sorry|i (?:sincerely )?apologi[sz]e"
    rf"|(?:my )?apologies),? (?:but )?(?:(?:i|this|that)\b.{{0,40}}\b(?:{_CANNOT})|{_DECLINES})"
    rf"|(?:unfortunately|i['\u2019]m afraid|i am afraid),? (?:that )?"
    rf"(?:i\b.{{0,40}}\b(?:{_CANNOT})|{_DECLINES})"
    r"|i (?:can(?:['\u2019]t|not)|won['\u2019]t|am unable to|am not able to)\b.{0,40}\b(?:help"
    r"|assist|comply|summari[sz]e|provide|do|process|fulfil|continue"
    rf"|(?:create|engage|complete|generate|write|respond|answer)\b.{{0,20}}\b{_ASKED})"
    rf"|{_DECLINES}|i do(?:n['\u2019]t| not) feel comfortable"
    r"|i['\u2019]m (?:unable|not able|not comfortable)\b|as an ai\b.{0,60}\b(?:can(?:['\u2019]t"
    r"|not)|unable)"
    r"|(?:很)?(?:抱歉|对不起|不好意思)[，,。 ]*(?:但)?我(?:无法|不能|没法|不便)"
    r"|(?:作为[^。]{0,20}，)?我(?:无法|不能)(?:协助|提供|完成|满足|总结|处理)"
    r"|(?:申し訳(?:ありません|ございません)|すみません)[^。]{0,40}(?:できません|いたしかねます)"
    r"|죄송합니다[^\n]{0,60}(?:수 없|어렵)"
    r"|(?:es )?tut mir (?:sehr )?leid\b.{0,40}\bkann\b.{0,40}\bnicht"
    r"|(?:je suis )?(?:vraiment )?désolée?\b.{0,40}\bne (?:peux|puis)\b"
    r"|lo siento\b.{0,40}\bno puedo|mi dispiace\b.{0,40}\bnon posso"
    r"|(?:desculpe|sinto muito|lamento)\b.{0,40}\bnão posso"
    r")",
    re.IGNORECASE,
)
_MAX_REFUSAL_CHARACTERS = 800


def response_text(content: str | None) -> str:
    """Return the text of an answer without reasoning and wrapping tags."""
    if not content:
        return ""
    if "<" not in content:
        return content.strip()
    # Complete reasoning first: a remaining closing tag then ends one that the prompt has begun.
    return _WRAPPER.sub("", _THOUGHT_TO_END.sub("", _without_thoughts(content))).strip()


def _without_thoughts(content: str) -> str:
    """Remove reasoning: from its tag to the closing one, or to the end if it begins the answer."""
    kept: list[str] = []
    at = 0
    unclosed: set[str] = set()
    for opening in _THOUGHT.finditer(content):
        name = opening[1].lower()
        if opening.start() < at or name in unclosed:
            continue
        closing = re.compile(f"</{name}>", re.IGNORECASE).search(content, opening.end())
        if closing is None and content[at : opening.start()].strip():
            # Searched for once, so that an answer of opening tags takes linear time.
            unclosed.add(name)
            continue
        kept.append(content[at : opening.start()])
        at = len(content) if closing is None else closing.end()
    return "".join([*kept, content[at:]])


def check(answer: ModelResponse, *, input_tokens: int, output_tokens: int) -> Reason | None:
    """Return why an answer cannot become a version, or None if it can.

    `input_tokens` counts what was summarized, `output_tokens` the text that would be stored. Exact
    values are checked by `missing_facts`.
    """
    text = response_text(answer.content)
    if answer.calls_tools:
        return Reason.TOOL_CALL
    finish = (answer.finish_reason or "").lower()
    if answer.refusal or finish in _WITHHELD:
        return Reason.REFUSED
    if not text:
        return _why_empty(answer, finish)
    if finish in _CUT:
        return Reason.TRUNCATED
    if finish not in _STOPPED:
        return Reason.PROVIDER_ERROR
    # A long text that begins with an apology is a summary of a conversation about one.
    if len(text) <= _MAX_REFUSAL_CHARACTERS and _REFUSALS.search(text[:300]):
        return Reason.REFUSED
    # Last: a cut or refused answer has a more specific reason.
    return Reason.GREW if output_tokens >= input_tokens else None


def missing_facts(
    text: str, ledger: Iterable[str], *, facts: Iterable[str], request: str
) -> tuple[str, ...]:
    """Return the facts and the request that a version contains neither in text nor in ledger.

    Code puts all of them into the ledger, so one is missing only because of a bug. Such a version
    must not be committed.
    """
    values = {value for _, _, value in (entry.partition(" ") for entry in ledger)}
    # An entry may hold several values, so a fact may be only a part of one.
    all_values = "\n".join(values)
    required = [*facts, *([request] if request else [])]
    return tuple(
        fact
        for fact in required
        if fact not in values and fact not in text and fact not in all_values
    )


def _why_empty(answer: ModelResponse, finish: str) -> Reason:
    if finish in _CUT:
        return Reason.MAX_TOKENS_NO_CONTENT
    content = answer.content or ""
    if answer.has_reasoning or _THOUGHT.search(content) or _THOUGHT_TO_END.search(content):
        return Reason.THINKING_ONLY_NO_CONTENT
    return Reason.CONTENT_NONE if answer.content is None else Reason.EMPTY_SUMMARY
