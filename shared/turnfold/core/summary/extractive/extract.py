"""Write a version without a model.

The summary consists of significant lines of the messages and the previous version, under plain
headings, and of what tool calls did. It is used in installations without a model, and if a
model gives no usable summary.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from turnfold.core.summary.extractive.evidence import collect_evidence, with_evidence
from turnfold.core.summary.extractive.lines import (
    FIRST_REQUEST_BONUS,
    LASTING_SECTIONS,
    LINES_PER_MESSAGE,
    LISTS,
    MAX_LINES,
    SummaryLine,
    context_lines,
    is_slight,
    list_texts,
    weight_of,
    without_duplicates,
)
from turnfold.core.summary.extractive.picking import any_line, is_notice, picked_lines
from turnfold.core.summary.extractive.rendering import render
from turnfold.core.summary.redaction import readable_sources
from turnfold.core.summary.sentences import (
    SentenceKind,
    language,
    line_of,
    sentence_kinds,
    sentences,
)
from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob, word_count
from turnfold.core.summary.tool_calls.actions import FileChange
from turnfold.core.text.lines import clip

_SMALL_CHARACTERS, _HEADING_CHARACTERS, _DENSE_CHARACTERS = 330, 110, 2_000
# Readers of a version rely on these sections; others are left out if they are empty.
_ALWAYS_PRESENT = frozenset({"tasks", "decisions", "constraints", "open_questions", "context"})


def extract(job: SummaryJob, *, count: Callable[[str], int]) -> Draft:
    """Write a version without a model, in time linear in the length of the messages.

    The same job gives the same draft. The text has at most `max_tokens` tokens and, from a few
    lines upwards, is well below its input. It is empty only if neither a message nor the previous
    version has text.
    """
    sources = readable_sources(job.sources)
    picked = list(picked_lines(sources))
    # Before lines are dropped: the ledger keeps exact values of lines that the text has no room
    # for.
    evidence = collect_evidence(job, sources, picked, count=count)
    answered = _answered_questions(job.previous, sources)
    carried = [line for line in _carried_lines(job.previous) if line.text not in answered]
    lines = without_duplicates([*carried, *picked])
    if not lines:
        lines = list(any_line(sources))
    sections, text = _within_limits(job, sources, lines, evidence.files, count)
    sections["sources"] = _line_sources(text, lines, sources, job.previous)
    draft = Draft(text=text, sections=sections, ledger=(), kind="extractive")
    return with_evidence(draft, evidence)


def _carried_lines(previous: PreviousSummary | None) -> Iterator[SummaryLine]:
    """Yield the lines of the previous version. Older lines of a section weigh less."""
    if previous is None:
        return
    names = [name for name in LISTS if previous.sections.get(name)]
    if "sources" in previous.sections and previous.sections.get("context"):
        names.append("context")
    for name in names:
        stored = previous.sections[name]
        texts = context_lines(stored) if name == "context" else list_texts(stored)
        for index, text in enumerate(texts):
            is_first_request = name == "tasks" and index == 0 and not is_slight(text)
            bonus = FIRST_REQUEST_BONUS if is_first_request else 0
            age = 0 if name in LASTING_SECTIONS else 8 - 4 * index / len(texts)
            yield SummaryLine(name, line_of(text), weight_of(name, text) + bonus - age, -1)
    for text in list(sentences(_prose_of(previous)))[:LINES_PER_MESSAGE]:
        yield SummaryLine("context", line_of(text), weight_of("context", text) + 20, -1)


def _answered_questions(
    previous: PreviousSummary | None, sources: Sequence[Source]
) -> Collection[str]:
    """Return the questions of the previous version that wait no longer: the user has spoken since.

    Of the lines that a model wrote, no source is known: it says itself when they are resolved.
    """
    if previous is None or not any(
        source.role == "user" and source.text.strip() and not is_notice(source.text)
        for source in sources
    ):
        return ()
    known = _known_sources(previous)
    from_messages = {line.removeprefix("- ") for line, message_ids in known.items() if message_ids}
    return [
        line_of(text)
        for text in list_texts(previous.sections.get("open_questions"))
        if text in from_messages and SentenceKind.QUESTION in sentence_kinds(text, is_user=False)
    ]


def _prose_of(previous: PreviousSummary) -> str:
    """Return the prose of a version that a model wrote: extractive ones note their sources."""
    if "sources" in previous.sections:
        return ""
    context = previous.sections.get("context")
    if isinstance(context, str) and context:
        return context
    return "" if any(previous.sections.get(name) for name in LISTS) else previous.text


def _within_limits(
    job: SummaryJob,
    sources: Sequence[Source],
    lines: list[SummaryLine],
    files: Sequence[FileChange],
    count: Callable[[str], int],
) -> tuple[dict[str, Any], str]:
    """Return sections and text of the heaviest lines within every limit, in their order.

    The loop renders, measures, and drops the lightest lines in proportion to the excess.
    """
    # The language of the newest lines: a conversation may have changed it.
    language_code = language(" ".join(line.text for line in lines[-40:]))
    heaviest = _heaviest(lines)
    shown_files = list(files)
    max_characters = _max_characters(job, sources)
    while True:
        sections = _sections_of([lines[index] for index in sorted(heaviest)])
        changes = [change.as_json() for change in shown_files]
        text = render(sections | {"file_changes": changes}, language_code)
        excess = max(count(text) / max(job.max_tokens, 1), len(text) / max_characters)
        if job.style == "narrative":
            excess = max(excess, word_count(text) / max(job.text_words, 1))
        if excess <= 1:
            return sections, text
        if len(heaviest) <= 1 and not shown_files:
            return sections, _cut(text, job.max_tokens, count)
        if len(heaviest) <= 3 and shown_files:
            shown_files = shown_files[len(shown_files) // 2 + 1 :]
        else:
            # At least one less each time, so that the loop ends.
            fitting = min(len(heaviest) - 1, int(len(heaviest) / excess) + 1)
            heaviest = heaviest[: max(1, fitting)]


def _heaviest(lines: Sequence[SummaryLine]) -> list[int]:
    """Return the indexes of the heaviest lines of each section, heaviest first, then newest."""
    chosen: list[int] = []
    numbers = Counter[str]()
    for index in sorted(range(len(lines)), key=lambda index: (-lines[index].weight, -index)):
        section = lines[index].section
        if numbers[section] < MAX_LINES[section]:
            numbers[section] += 1
            chosen.append(index)
    return chosen


def _max_characters(job: SummaryJob, sources: Sequence[Source]) -> int:
    """Return the longest text that is still a summary of its input.

    It has three fifths of the first 2,000 characters and one third of the rest, but may always be
    as long as the previous version, or as a short input with its headings.
    """
    characters = sum(
        len(source.text) + sum(len(arguments) for _, arguments in source.calls)
        for source in sources
    )
    carried = len(job.previous.text) if job.previous else 0
    share = (
        min(characters, _DENSE_CHARACTERS) * 3 // 5 + max(characters - _DENSE_CHARACTERS, 0) // 3
    )
    return max(share, carried, min(characters + carried + _HEADING_CHARACTERS, _SMALL_CHARACTERS))


def _sections_of(lines: Sequence[SummaryLine]) -> dict[str, Any]:
    sections: dict[str, Any] = {
        name: [line.text for line in lines if line.section == name] for name in LISTS
    }
    sections["context"] = "\n".join(line.text for line in lines if line.section == "context")
    return {name: value for name, value in sections.items() if value or name in _ALWAYS_PRESENT}


def _cut(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Shorten a text by thirds until it fits; a text of eight characters stays."""
    while len(text) > 8 and count(text) > max_tokens:
        text = clip(text, max(8, len(text) * 2 // 3))
    return text


def _line_sources(
    text: str,
    lines: Iterable[SummaryLine],
    sources: Sequence[Source],
    previous: PreviousSummary | None,
) -> list[list[str]]:
    """Return the message ids of each line of the text. Headings have none."""
    message_ids = _known_sources(previous) if previous else {}
    for line in lines:
        if line.order >= 0 and sources:
            message_ids.setdefault(f"- {line.text}", [sources[line.order].message_id])
    return [message_ids.get(line_text, []) for line_text in text.split("\n")] if text else []


def _known_sources(previous: PreviousSummary) -> dict[str, list[str]]:
    """Return the message ids of each line of a version that code wrote, as far as it has any."""
    stored: Any = previous.sections.get("sources")
    ids: list[Any] = stored if isinstance(stored, list) else []
    return {
        line: [item for item in message_ids if isinstance(item, str)]
        for line, message_ids in zip(previous.text.split("\n"), ids, strict=False)
        if isinstance(message_ids, list) and line
    }
