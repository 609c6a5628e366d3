"""The summary that needs no model: telling lines picked from the messages, and what tool calls did, under plain headings."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnfold.core.summary.ledger.build import Ledger, build_ledger
from turnfold.core.summary.redaction import redact
from turnfold.core.summary.sentences import (
    SentenceKind,
    is_lasting,
    language,
    line_of,
    says_name,
    sentence_kinds,
    sentences,
)
from turnfold.core.summary.sources import (
    Draft,
    PreviousSummary,
    Source,
    SummaryJob,
    clip,
    printable,
    word_count,
)
from turnfold.core.summary.tool_actions import FileChange, actions, file_changes
from turnfold.core.summary.values import Value

LISTS = (
    "tasks",
    "constraints",
    "decisions",
    "facts",
    "actions",
    "commands",
    "errors",
    "open_questions",
)
_MAX_LINES: Mapping[str, int] = {
    "tasks": 10, "constraints": 10, "decisions": 8, "facts": 20, "context": 14, "actions": 10, "commands": 6, "errors": 4, "open_questions": 5,
}  # fmt: skip
_BASE: Mapping[str, int] = {
    "tasks": 72, "constraints": 86, "decisions": 82, "facts": 40, "context": 38, "actions": 68, "commands": 44, "errors": 56, "open_questions": 76,
}  # fmt: skip
_ORDER = (
    "tasks",
    "constraints",
    "decisions",
    "facts",
    "context",
    "actions",
    "commands",
    "errors",
    "open_questions",
)
_HEADINGS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "tasks": "The user asked:", "constraints": "Constraints and preferences stated:", "decisions": "It was decided:", "facts": "The user said:",
        "context": "What came of it:", "actions": "Actions taken:", "commands": "Commands run:", "errors": "Errors met:", "open_questions": "Left open:",
        "modified": "Files modified", "read": "Files read", "under": " (under {})", "more": " and {} more",
    },
    "zh": {
        "tasks": "用户提出：", "constraints": "约束与偏好：", "decisions": "作出的决定：", "facts": "用户提到：",
        "context": "进展与答复：", "actions": "执行过的操作：", "commands": "运行过的命令：", "errors": "遇到的错误：", "open_questions": "尚未解决：",
        "modified": "修改过的文件", "read": "读取过的文件", "under": "（位于 {}）", "more": " 等，另有 {} 个",
    },
    "ja": {
        "tasks": "ユーザーの依頼：", "constraints": "条件と希望：", "decisions": "決まったこと：", "facts": "ユーザーの話：",
        "context": "経過と回答：", "actions": "実行した操作：", "commands": "実行したコマンド：", "errors": "起きたエラー：", "open_questions": "未解決：",
        "modified": "変更したファイル", "read": "読んだファイル", "under": "（{} 以下）", "more": " ほか {} 件",
    },
}  # fmt: skip
_MACHINE_MADE = ("[Request interrupted", "Caveat: The messages below")
_ERROR_LINE = re.compile(
    r"^[ \t>]{0,8}(?:E\s{1,8})?((?:(?:[A-Za-z_][\w.]{0,80})?(?:Error|Exception|Failure)|error|ERROR|fatal|Fatal|FAILED|panic|npm ERR!|错误|エラー)[:：\[ ][^\n]{3,300})",
    re.MULTILINE,
)
_SHELL_ERRORS = (
    "command not found",
    "No such file or directory",
    "Permission denied",
    "Connection refused",
    "timed out",
)
_LEDGER_KINDS: Mapping[str, str] = {
    "decisions": "decision",
    "constraints": "constraint",
    "errors": "error",
}
_TO_THE_LETTER_CHARACTERS = 140
_FIRST_REQUEST = 26
_LASTING = frozenset({"facts", "constraints"})
_WHOLE = (".", "!", "。", "！", "…", ")", "）", "～", "~")
_NOT_WORD = re.compile(r"[\W_]+")
_DIGIT = re.compile(r"\d")
_LABELLED = re.compile(r"[\w ()/-]{2,30}[:：] ?\S.{0,40}$")
_SMALL_CHARACTERS, _HEADING_CHARACTERS, _CLOSE_CHARACTERS = 330, 110, 2_000
_LINES_PER_MESSAGE = 40


@dataclass(slots=True)
class _Line:
    section: str
    text: str
    weight: float
    order: int


class Evidence(NamedTuple):
    """What code knows of the messages whatever a model writes: the files that calls touched and the exact values."""

    files: tuple[FileChange, ...]
    ledger: Ledger


def extract(job: SummaryJob, *, count: Callable[[str], int]) -> Draft:
    """Write a version without a model. The same job gives the same draft; linear in the length of the messages.

    The text is no longer than `max_tokens` and, from a few lines upwards, well below its input; it is empty only when no
    message holds anything and nothing was carried.
    """
    sources = readable_sources(job.sources)
    picked = list(_picked_lines(sources))
    found = evidence(job, sources, picked, count=count)
    lines = _deduplicated([*_carried_lines(job.previous), *picked])
    if not lines:
        lines = list(_any_line(sources))
    voice = language(" ".join(line.text for line in lines[-40:]))
    sections, text = _bounded(job, sources, lines, found.files, voice, count)
    sections["sources"] = _sources_of(text, lines, sources, job.previous)
    return with_evidence(Draft(text=text, sections=sections, ledger=(), kind="extractive"), found)


def _sources_of(
    text: str, lines: Iterable["_Line"], sources: Sequence[Source], previous: PreviousSummary | None
) -> list[list[str]]:
    """For each line of the text the messages it was taken from; none for headings, and for what nobody wrote down."""
    origins: dict[str, list[str]] = {}
    if previous is not None:
        known: Any = previous.sections.get("sources")
        kept: list[Any] = known if isinstance(known, list) else []
        for line, stored in zip(previous.text.split("\n"), kept, strict=False):
            if isinstance(stored, list) and line:
                origins[line] = [one for one in stored if isinstance(one, str)]
    for picked in lines:
        if picked.order >= 0 and sources:
            origins.setdefault(f"- {picked.text}", [sources[picked.order].message_id])
    return [origins.get(line, []) for line in text.split("\n")] if text else []


def readable_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    """The messages a summariser may read: no instructions, no secrets."""
    return tuple(
        source._replace(
            text=redact(source.text),
            calls=tuple((name, redact(arguments)) for name, arguments in source.calls),
        )
        for source in sources
        if source.role not in ("system", "developer")
    )


def evidence(
    job: SummaryJob,
    sources: Sequence[Source],
    picked: Sequence["_Line"] | None = None,
    *,
    count: Callable[[str], int],
) -> Evidence:
    """Files and exact values of the messages, merged with those of the version before."""
    lines = list(
        _to_the_letter(picked if picked is not None else tuple(_picked_lines(sources)), sources)
    )
    files = file_changes(
        job.previous.sections.get("file_changes") if job.previous else None, sources
    )
    request = redact(job.newest_request) if job.newest_request else None
    ledger = build_ledger(
        job.previous,
        sources,
        files,
        lines=lines,
        newest_request=request,
        max_tokens=job.ledger_max_tokens,
        count=count,
    )
    return Evidence(files, ledger)


def _to_the_letter(
    picked: Iterable["_Line"], sources: Sequence[Source]
) -> Iterator[tuple[Value, str]]:
    """Decisions, constraints and errors that stand in their message as they stand in their line."""
    for line in picked:
        kind = _LEDGER_KINDS.get(line.section)
        if kind is not None:
            source, text = (
                sources[line.order],
                clip(line.text, _TO_THE_LETTER_CHARACTERS).rstrip("…"),
            )
            if text and text in source.text:
                yield Value(kind, text), source.message_id


def with_evidence(draft: Draft, found: Evidence) -> Draft:
    """The draft with files and ledger as code knows them."""
    sections = draft.sections | {
        "file_changes": [change.as_json() for change in found.files]
        or draft.sections.get("file_changes", []),
        "provenance": found.ledger.provenance,
        "left_out": dict(found.ledger.left_out),
    }
    return Draft(
        text=draft.text, sections=sections, ledger=found.ledger.entries, kind=draft.kind, model=draft.model,
        prompt_tokens=draft.prompt_tokens, completion_tokens=draft.completion_tokens, cost=draft.cost,
    )  # fmt: skip


def render(sections: Mapping[str, Any], voice: str | None = None) -> str:
    """Sections as text for a person: a heading and its lines, empty sections left out."""
    lists = {name: _texts(sections.get(name)) for name in LISTS}
    context = _context_lines(sections.get("context"))
    voice = voice or language(
        " ".join([*context, *(text for texts in lists.values() for text in texts)])
    )
    headings = _HEADINGS[voice]
    parts: list[str] = []
    for name in _ORDER:
        texts = context if name == "context" else lists[name]
        if name == "errors":
            parts += _file_lines(sections.get("file_changes"), headings)
        if texts:
            parts += [headings[name], *(f"- {text}" for text in texts)]
    return "\n".join(parts)


def _carried_lines(previous: PreviousSummary | None) -> Iterator[_Line]:
    if previous is None:
        return
    known = [name for name in (*LISTS, "context") if previous.sections.get(name)]
    for name in known:
        texts = (
            _context_lines(previous.sections[name])
            if name == "context"
            else _texts(previous.sections[name])
        )
        for index, text in enumerate(texts):
            bonus = _FIRST_REQUEST if name == "tasks" and index == 0 and not _is_slight(text) else 0
            age = 0 if name in _LASTING else 8 - 4 * index / len(texts)
            yield _Line(name, line_of(text), _weight(name, text) + bonus - age, -1)
    if not known:
        for text in list(sentences(previous.text))[:_LINES_PER_MESSAGE]:
            yield _Line("context", line_of(text), _weight("context", text) + 20, -1)


def _picked_lines(sources: Sequence[Source]) -> Iterator[_Line]:
    """The telling lines of the messages in order, each with the section it belongs to."""
    total = len(sources) or 1
    finals = _final_texts(sources)
    is_first = True
    for order, source in enumerate(sources):
        recency = 10 * order / total
        if source.role == "user" and source.text and not _is_machine_made(source.text):
            for line in _of_user(source.text, order, is_first=is_first):
                line.weight += 0 if line.section in _LASTING else recency / 2
                is_first = False
                yield line
        elif source.role == "assistant" and source.text:
            for line in _of_assistant(
                source.text, order, is_final=order in finals, is_last=order == total - 1
            ):
                line.weight += recency
                yield line
        elif source.role == "tool":
            error = _error_of(source)
            if error:
                yield _Line("errors", error, _BASE["errors"] + recency, order)
    last = {source.message_id: order for order, source in enumerate(sources)}
    for action in actions(sources):
        section = "commands" if action.is_command else "actions"
        order = last.get(action.message_id, 0)
        yield _Line(section, action.text, _BASE[section] + 10 * order / total, order)


def _is_machine_made(text: str) -> bool:
    """Whether a user message is a notice of the agent's own: bracketed, or wholly inside tags."""
    return text.startswith(_MACHINE_MADE) or (
        text.startswith("<") and text.rstrip().endswith(">") and "</" in text
    )


def _of_user(text: str, order: int, *, is_first: bool) -> Iterator[_Line]:
    taken = {"tasks": 0, "constraints": 0, "facts": 0, "decisions": 0, "open_questions": 0}
    limits = {"tasks": 2, "constraints": 3, "facts": 3, "decisions": 1, "open_questions": 1}
    found = list(sentences(text))
    if len(found) > _LINES_PER_MESSAGE:
        found = found[: _LINES_PER_MESSAGE // 2] + found[-_LINES_PER_MESSAGE // 2 :]
    for sentence in found:
        sense = sentence_kinds(sentence, is_user=True)
        if SentenceKind.FILLER in sense:
            continue
        section = _section_of_user(sense)
        if section == "facts" and SentenceKind.FACT not in sense and _is_slight(sentence):
            continue
        if taken[section] < limits[section]:
            taken[section] += 1
            weight = _weight(section, sentence, sense) + (
                _FIRST_REQUEST
                if is_first
                and section == "tasks"
                and taken["tasks"] == 1
                and not _is_slight(sentence)
                else 0
            )
            yield _Line(section, line_of(sentence), weight, order)


def _section_of_user(sense: frozenset[SentenceKind]) -> str:
    if SentenceKind.CONSTRAINT in sense and SentenceKind.QUESTION not in sense:
        return "constraints"
    if SentenceKind.DECISION in sense and SentenceKind.QUESTION not in sense:
        return "decisions"
    if SentenceKind.QUESTION in sense or (
        SentenceKind.REQUEST in sense and SentenceKind.OPEN not in sense
    ):
        return "tasks"
    return (
        "open_questions"
        if SentenceKind.OPEN in sense and SentenceKind.FACT not in sense
        else "facts"
    )


def _of_assistant(text: str, order: int, *, is_final: bool, is_last: bool) -> Iterator[_Line]:
    """The key sentences of an answer: at most two of the last text before the user speaks again, one of those between."""
    picked: list[_Line] = []
    for index, sentence in enumerate(list(sentences(text))[:_LINES_PER_MESSAGE]):
        sense = sentence_kinds(sentence, is_user=False)
        if (
            SentenceKind.FILLER in sense
            or sentence.endswith((":", "："))
            or (len(sentence) < 12 and sentence.isascii())
        ):
            continue
        if SentenceKind.QUESTION in sense:
            if is_last:
                yield _Line("open_questions", line_of(sentence), _BASE["open_questions"], order)
            continue
        if SentenceKind.OPEN in sense and is_last:
            yield _Line("open_questions", line_of(sentence), _BASE["open_questions"] - 10, order)
            continue
        weight = (
            _weight("context", sentence, sense)
            - min(index, 8)
            - (0 if is_final else 16)
            - (0 if sentence.endswith(_WHOLE) else 8)
        )
        if is_final or SentenceKind.RESULT in sense or SentenceKind.DECISION in sense:
            picked.append(_Line("context", line_of(sentence), weight, order))
    picked.sort(key=lambda line: -line.weight)
    chosen = picked[:1] + [
        line for line in picked[1 : 2 if is_final else 1] if line.weight >= _BASE["context"] - 6
    ]
    yield from sorted(chosen, key=lambda line: text.find(line.text[:20]))


def _weight(section: str, text: str, sense: frozenset[SentenceKind] | None = None) -> float:
    """How much a line matters, told from the line alone, so that carrying it changes nothing."""
    weight = float(_BASE[section])
    has_digit = _DIGIT.search(text) is not None
    if section == "facts":
        sense = sense or sentence_kinds(text, is_user=True)
        weight += (
            (38 if SentenceKind.FACT in sense else 0)
            + (8 if has_digit else 0)
            + (20 if says_name(text) else 0)
            + (6 if is_lasting(text) else 0)
        )
    elif section == "context":
        sense = sense or sentence_kinds(text, is_user=False)
        weight += (
            (8 if SentenceKind.RESULT in sense else 0)
            + (6 if SentenceKind.DECISION in sense else 0)
            + (5 if has_digit else 0)
        )
        weight -= 20 if _LABELLED.match(text) else 0
    return weight - (10 if _is_slight(text) else 0)


def _is_slight(text: str) -> bool:
    """Whether a line is too short to say much, and holds no figure either."""
    return len(text) < (32 if text.isascii() else 12) and _DIGIT.search(text) is None


def _final_texts(sources: Sequence[Source]) -> frozenset[int]:
    """Where the last text of the assistant stands before each user message, and before the end."""
    finals: set[int] = set()
    last: int | None = None
    for order, source in enumerate(sources):
        if source.role == "user" and last is not None:
            finals.add(last)
            last = None
        elif source.role == "assistant" and source.text.strip():
            last = order
    if last is not None:
        finals.add(last)
    return frozenset(finals)


def _error_of(source: Source) -> str | None:
    """The line of a tool result that says what went wrong; None when nothing did."""
    text = source.text
    if not source.is_error and len(text) > 2_000:
        text = text[-1_000:] if "Traceback" in text[-1_000:] or "rror" in text[-300:] else ""
    read = text[:4_000] + "\n" + text[-4_000:] if len(text) > 8_000 else text
    matches = _ERROR_LINE.findall(read)
    if matches:
        return clip(printable(matches[-1] if "Traceback" in read else matches[0]), 180)
    if source.is_error or any(hint in read for hint in _SHELL_ERRORS):
        told = (line for line in read.split("\n") if any(hint in line for hint in _SHELL_ERRORS))
        return clip(printable(next(told, source.text)), 180) or None
    return None


def _any_line(sources: Iterable[Source]) -> Iterator[_Line]:
    """When nothing stands out: the first text there is, else the tools that were called."""
    for order, source in enumerate(sources):
        text = clip(printable(source.text), 160)
        if text:
            yield _Line("context", text, 1, order)
            return
    called: dict[str, int] = {}
    for source in sources:
        for name, _ in source.calls:
            called[name] = called.get(name, 0) + 1
    if called:
        yield _Line(
            "context",
            "Tools called: " + ", ".join(f"{name} {times}x" for name, times in called.items()),
            1,
            0,
        )


def _deduplicated(lines: Iterable[_Line]) -> list[_Line]:
    found: dict[str, _Line] = {}
    for line in lines:
        key = _NOT_WORD.sub("", line.text[:120].casefold())[:80]
        if not key:
            continue
        before = found.get(key)
        if before is None:
            found[key] = line
        else:
            before.weight = max(before.weight, line.weight)
    return list(found.values())


def _bounded(
    job: SummaryJob,
    sources: Sequence[Source],
    lines: list[_Line],
    files: Sequence[FileChange],
    voice: str,
    count: Callable[[str], int],
) -> tuple[dict[str, Any], str]:
    """Sections and text of the weightiest lines within every cap, in the order in which they were said."""
    ranked: list[int] = []
    per_section: dict[str, int] = dict.fromkeys(_ORDER, 0)
    for index in sorted(range(len(lines)), key=lambda index: (-lines[index].weight, -index)):
        section = lines[index].section
        if per_section[section] < _MAX_LINES[section]:
            per_section[section] += 1
            ranked.append(index)
    given = sum(
        len(source.text) + sum(len(arguments) for _, arguments in source.calls)
        for source in sources
    )
    carried = len(job.previous.text) if job.previous else 0
    share = min(given, _CLOSE_CHARACTERS) * 3 // 5 + max(given - _CLOSE_CHARACTERS, 0) // 3
    room = max(share, carried, min(given + carried + _HEADING_CHARACTERS, _SMALL_CHARACTERS))
    shown: list[FileChange] = list(files)
    while True:
        kept = sorted(ranked)
        sections: dict[str, Any] = {
            name: [lines[index].text for index in kept if lines[index].section == name]
            for name in LISTS
        }
        sections["context"] = "\n".join(
            lines[index].text for index in kept if lines[index].section == "context"
        )
        sections = {name: value for name, value in sections.items() if value or name in _ALWAYS}
        text = render(sections | {"file_changes": [change.as_json() for change in shown]}, voice)
        excess = max(count(text) / max(job.max_tokens, 1), len(text) / room)
        if job.style == "narrative":
            excess = max(excess, word_count(text) / max(job.max_words, 1))
        if excess <= 1 or (len(ranked) <= 1 and not shown):
            return sections, text if excess <= 1 else _cut(text, job.max_tokens, count)
        if len(ranked) <= 3 and shown:
            shown = shown[len(shown) // 2 + 1 :]
        else:
            ranked = ranked[: max(1, min(len(ranked) - 1, int(len(ranked) / excess) + 1))]


_ALWAYS = frozenset({"tasks", "decisions", "constraints", "open_questions", "context"})


def _cut(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    while len(text) > 8 and count(text) > max_tokens:
        text = clip(text, max(8, len(text) * 2 // 3))
    return text


def _texts(value: Any) -> list[str]:
    return (
        [item for item in value if isinstance(item, str) and item.strip()]
        if isinstance(value, list | tuple)
        else []
    )


def _context_lines(value: Any) -> list[str]:
    return (
        [line.strip() for line in value.split("\n") if line.strip()]
        if isinstance(value, str)
        else []
    )


def _file_lines(stored: Any, headings: Mapping[str, str]) -> list[str]:
    changes = (
        [item for item in stored if isinstance(item, Mapping) and isinstance(item.get("path"), str)]
        if isinstance(stored, list | tuple)
        else []
    )
    folder = _shared_folder([item["path"] for item in changes])
    lines: list[str] = []
    for action, limit in (("modified", 12), ("read", 8)):
        paths = [item["path"] for item in changes if item.get("action") == action]
        if paths:
            names = ", ".join(path.removeprefix(folder) for path in paths[-limit:])
            more = headings["more"].format(len(paths) - limit) if len(paths) > limit else ""
            under = headings["under"].format(folder) if folder and not lines else ""
            lines.append(f"{headings[action]}{under}: {names}{more}")
    return lines


LONGEST_FOLDER = 400
"""In characters; a longer one is not worth saying once."""


def _shared_folder(paths: Sequence[str]) -> str:
    """The folder worth saying once, because it spares the most characters; empty when there is none."""
    under: dict[str, int] = {}
    for path in paths:
        end = path.rfind("/", 0, LONGEST_FOLDER)
        while end > 0:
            folder = path[: end + 1]
            under[folder] = under.get(folder, 0) + 1
            end = path.rfind("/", 0, end)
    best = max(under, key=lambda folder: ((under[folder] - 1) * len(folder), folder), default="")
    return best if best and (under[best] - 1) * len(best) > 40 else ""
