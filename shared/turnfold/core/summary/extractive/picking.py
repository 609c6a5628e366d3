"""Pick significant lines of messages: requests, constraints, answers, errors, and tool actions.

`extract` chooses among these lines by their weight. Newer lines weigh more, except facts and
constraints, which remain valid.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from turnfold.core.summary.extractive.lines import (
    BASE_WEIGHTS,
    FIRST_REQUEST_BONUS,
    LASTING_SECTIONS,
    LINES_PER_MESSAGE,
    SummaryLine,
    is_slight,
    weight_of,
)
from turnfold.core.summary.sentences import SentenceKind, line_of, sentence_kinds, sentences
from turnfold.core.summary.sources import Source
from turnfold.core.summary.tool_calls.actions import actions
from turnfold.core.text.lines import clip, printable
from turnfold.messages import SYSTEM_ROLES

NOTICE_STARTS = ("[Request interrupted", "Caveat: The messages below")
"""The beginnings of user messages in which agents say what happened."""
_USER_SECTION_LIMITS = {
    "tasks": 2,
    "constraints": 3,
    "facts": 3,
    "decisions": 1,
    "open_questions": 1,
}
_OPENING_TAG = re.compile(r"\s*<(?P<name>[\w:-]++)[^<>]*>")
_SENTENCE_ENDS = (".", "!", "。", "！", "…", ")", "）", "～", "~")
_OUTCOMES = frozenset({SentenceKind.RESULT, SentenceKind.DECISION})
_RECENCY = 10
_ERROR_CHARACTERS = 180
_ERROR_LINE = re.compile(
    r"^[ \t>]{0,8}(?:E\s{1,8})?("
    r"(?:(?:[A-Za-z_]\w{0,40}\.){0,6}(?:_?[A-Z]\w{0,80})?(?:Error|Exception|Failure)"
    r"|error|ERROR|fatal|Fatal|FAILED|panic|npm ERR!|错误|エラー)"
    r"[:：\[ ][^\n]{3,300})",
    re.MULTILINE,
)
_CODE_ENDS = (",", ";", "{", "(")
_SHELL_ERRORS = (
    "command not found",
    "No such file or directory",
    "Permission denied",
    "Connection refused",
    "timed out",
)


def picked_lines(sources: Sequence[Source]) -> Iterator[SummaryLine]:
    """Yield the significant lines of the messages in order, then those of tool calls."""
    total = len(sources) or 1
    final_texts = _final_texts(sources)
    is_first = True
    for order, source in enumerate(sources):
        recency = _RECENCY * order / total
        if source.role == "user":
            lines = list(_user_lines(source.text, order, recency=recency, is_first=is_first))
            # A greeting alone is not the first request.
            is_first = is_first and not lines
            yield from lines
        elif source.role == "assistant":
            is_final, is_last = order in final_texts, order == total - 1
            for line in _assistant_lines(source.text, order, is_final=is_final, is_last=is_last):
                line.weight += recency
                yield line
        elif source.role in SYSTEM_ROLES:
            yield from _user_lines(source.text, order, recency=recency, is_first=False)
        elif source.role == "tool" and (error := _error_of(source)):
            yield SummaryLine("errors", error, BASE_WEIGHTS["errors"] + recency, order)
    yield from _action_lines(sources)


def any_line(sources: Sequence[Source]) -> Iterator[SummaryLine]:
    """Yield the only line of a summary without significant lines.

    It is the first text, or the names of the called tools if there is no text.
    """
    for order, source in enumerate(sources):
        text = clip(printable(source.text), 160)
        if text:
            yield SummaryLine("context", text, 1, order)
            return
    called = Counter(name for source in sources for name, _ in source.calls)
    if called:
        calls = ", ".join(f"{name} {times}x" for name, times in called.items())
        yield SummaryLine("context", f"Tools called: {calls}", 1, 0)


def _action_lines(sources: Sequence[Source]) -> Iterator[SummaryLine]:
    total = len(sources) or 1
    for action in actions(sources):
        section = "commands" if action.is_command else "actions"
        weight = BASE_WEIGHTS[section] + _RECENCY * action.order / total
        yield SummaryLine(section, action.text, weight, action.order)


def _user_lines(text: str, order: int, *, recency: float, is_first: bool) -> Iterator[SummaryLine]:
    """Yield the lines of a user's message: at most a few per section."""
    if is_notice(text):
        return
    numbers = Counter[str]()
    for sentence in _ends_of(list(sentences(text))):
        kinds = sentence_kinds(sentence, is_user=True)
        if SentenceKind.FILLER in kinds:
            continue
        section = _section_of_user(kinds)
        if section == "facts" and SentenceKind.FACT not in kinds and is_slight(sentence):
            continue
        if numbers[section] == _USER_SECTION_LIMITS[section]:
            continue
        numbers[section] += 1
        weight = weight_of(section, sentence, kinds)
        is_first_task = is_first and section == "tasks" and numbers["tasks"] == 1
        if is_first_task and not is_slight(sentence):
            weight += FIRST_REQUEST_BONUS
        if section not in LASTING_SECTIONS:
            weight += recency / 2
        yield SummaryLine(section, line_of(sentence), weight, order)


def is_notice(text: str) -> bool:
    """Return whether the agent wrote a user message: it is bracketed, or wholly inside tags."""
    if text.startswith(NOTICE_STARTS):
        return True
    end = 0
    while (tag := _OPENING_TAG.match(text, end)) is not None:
        closing = f"</{tag['name']}>"
        start = text.find(closing, tag.end())
        if start < 0:
            return False
        end = start + len(closing)
    return end > 0 and not text[end:].strip()


def _ends_of(sentences: list[str]) -> list[str]:
    """Return the first and last sentences of a long message, whose middle is mostly pasted."""
    half = LINES_PER_MESSAGE // 2
    return (
        sentences
        if len(sentences) <= LINES_PER_MESSAGE
        else [*sentences[:half], *sentences[-half:]]
    )


def _section_of_user(kinds: frozenset[SentenceKind]) -> str:
    if SentenceKind.QUESTION in kinds:
        return "tasks"
    if SentenceKind.CONSTRAINT in kinds:
        return "constraints"
    if SentenceKind.DECISION in kinds:
        return "decisions"
    is_open = SentenceKind.OPEN in kinds
    if SentenceKind.REQUEST in kinds and not is_open:
        return "tasks"
    return "open_questions" if is_open and SentenceKind.FACT not in kinds else "facts"


def _assistant_lines(
    text: str, order: int, *, is_final: bool, is_last: bool
) -> Iterator[SummaryLine]:
    """Yield the key sentences of an answer.

    The final text before the user speaks again gives at most two; a text between tool calls gives
    at most one. Only the questions in the last message of all are open.
    """
    picked: list[SummaryLine] = []
    for index, sentence in enumerate(list(sentences(text))[:LINES_PER_MESSAGE]):
        kinds = sentence_kinds(sentence, is_user=False)
        is_question = SentenceKind.QUESTION in kinds
        if SentenceKind.FILLER in kinds or _is_fragment(sentence):
            continue
        if is_last and (is_question or SentenceKind.OPEN in kinds):
            deduction = 0 if is_question else 10
            weight = BASE_WEIGHTS["open_questions"] - deduction
            yield SummaryLine("open_questions", line_of(sentence), weight, order)
        elif not is_question and (is_final or kinds & _OUTCOMES):
            deduction = min(index, 8) + (0 if is_final else 16)
            picked.append(_answer_line(sentence, kinds, order, deduction))
    picked.sort(key=lambda line: -line.weight)
    least_second = BASE_WEIGHTS["context"] - 6
    second = [line for line in picked[1:2] if is_final and line.weight >= least_second]
    # Chosen by weight, shown in the order of the text.
    yield from sorted([*picked[:1], *second], key=lambda line: text.find(line.text[:20]))


def _answer_line(
    sentence: str, kinds: frozenset[SentenceKind], order: int, deduction: float
) -> SummaryLine:
    weight = weight_of("context", sentence, kinds) - deduction
    if not sentence.endswith(_SENTENCE_ENDS):
        weight -= 8
    return SummaryLine("context", line_of(sentence), weight, order)


def _is_fragment(sentence: str) -> bool:
    """Return whether a sentence announces what follows, or is only a word or two."""
    return sentence.endswith((":", "：")) or (len(sentence) < 12 and sentence.isascii())


def _final_texts(sources: Sequence[Source]) -> frozenset[int]:
    """Return the indexes of the assistant's last text before each user message and the end."""
    final: set[int] = set()
    is_last = True
    for order, source in reversed(list(enumerate(sources))):
        if source.role == "user":
            is_last = True
        elif is_last and source.role == "assistant" and source.text.strip():
            final.add(order)
            is_last = False
    return frozenset(final)


def _error_of(source: Source) -> str | None:
    """Return the line of a tool result that names the error, or None if there is none."""
    text = source.text
    if not source.is_error and len(text) > 2_000:
        # A long result that is not marked as an error mentions errors in many other ways.
        ends_in_error = "Traceback" in text[-1_000:] or "rror" in text[-300:]
        text = text[-1_000:] if ends_in_error else ""
    if len(text) > 8_000:
        text = text[:4_000] + "\n" + text[-4_000:]
    matches = [line for line in _ERROR_LINE.findall(text) if not line.endswith(_CODE_ENDS)]
    if matches:
        # A Python traceback names its error last; compilers name the cause first.
        line = matches[-1] if "Traceback" in text else matches[0]
        return clip(printable(line), _ERROR_CHARACTERS)
    shell_lines = (
        line for line in text.split("\n") if any(error in line for error in _SHELL_ERRORS)
    )
    line = next(shell_lines, source.text if source.is_error else "")
    return clip(printable(line), _ERROR_CHARACTERS) or None
