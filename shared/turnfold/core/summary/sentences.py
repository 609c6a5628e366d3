"""Sentences of a text, and what kind of thing each one says, by words that give it away in English, Chinese and Japanese."""

import re
from collections.abc import Iterator
from enum import StrEnum

from turnfold.core.summary import keywords as cues
from turnfold.core.summary.sources import clip, head_and_tail, printable

PROSE_CHARACTERS = 4_000

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_NOTE_TAG = re.compile(r"<(/?)(system-reminder|environment_details|command-\w+|local-command-\w+)>")
# Where a sentence may end stands first: all other characters are passed over at once.
_END = re.compile(
    r"[。！？；!?.\n](?:(?<=[^\d\s][.!?])[\"')\]]?\s+(?=[A-Z\"'(\[*`#\d]|I\b)|(?<=[。！？；!?])(?=[^。！？；!?」』”’）)])|(?<=\n)\n*)"
)
_MARKS = re.compile(r"^(?:(?:[-*+•>]+|\d{1,2}[.)、]|[（(]\d{1,2}[)）])\s*)+")
_TABLE = re.compile(r"^[\s|:+=_*~-]*$|^\|.*\|$")
_LAYOUT = ("[… ", "<", "{", "# ", "##", "import ", "#!/")
_CODE_LINE = re.compile(
    r"^(?:\d+[:|\t→].*|\([^)]*\)|\[[^\]]*\]|[\d\W]+|[A-Z_]{4,} .*\d|(?:def|class|import|from|return|elif|for|while|const|let|var|function|print)\b.*[:;{(=)].*"
    r"|.*[{};]|[\w.]+\(.*\)|E\d{3,4} .*)$"
)
_WORD = re.compile(r"[a-z']+")


class SentenceKind(StrEnum):
    """What a sentence is for."""

    REQUEST = "request"
    DECISION = "decision"
    CONSTRAINT = "constraint"
    FACT = "fact"
    QUESTION = "question"
    OPEN = "open"
    RESULT = "result"
    FILLER = "filler"
    OTHER = "other"


_DIGIT = re.compile(r"\d")
_KANA = re.compile(r"[\u3040-\u30ff]")
_LATIN = re.compile(r"[A-Za-z]")
_HAN = re.compile(r"[\u4e00-\u9fff]")


def prose(text: str) -> str:
    """What of a text is worth reading as sentences: its first and last 4,000 characters, without code and machine notes."""
    text = printable(head_and_tail(text, PROSE_CHARACTERS, PROSE_CHARACTERS))
    if "```" in text:
        text = _CODE.sub("\n", text)
    return _without_notes(text) if "</" in text else text


def _without_notes(text: str) -> str:
    """The text with a line end in the place of each note of a machine, from its tag to the nearest one that closes it."""
    tags = list(_NOTE_TAG.finditer(text))
    nearest: dict[str, int] = {}
    ends: list[int | None] = []
    for tag in reversed(tags):
        ends.append(nearest.get(tag[2]))
        if tag[1]:
            nearest[tag[2]] = tag.end()
    kept: list[str] = []
    at = 0
    for tag, end in zip(tags, reversed(ends), strict=True):
        if end is not None and not tag[1] and tag.start() >= at:
            kept.append(text[at : tag.start()])
            at = end
    return "\n".join([*kept, text[at:]])


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text that a person would read aloud: no code, no tables, no rules, no list marks."""
    for part in _parts(prose(text)):
        line = part.strip()
        if marks := _MARKS.match(line):
            line = line[marks.end() :]
        line = line.replace("**", "").strip()
        if len(line) > 1 and not _is_layout(line):
            yield line


def _parts(text: str) -> Iterator[str]:
    """What stands between the ends of sentences, with its full stop but without line ends."""
    start = 0
    for end in _END.finditer(text):
        at = end.start()
        yield text[start : at if text[at] == "\n" else at + 1]
        start = end.end()
    yield text[start:]


def _is_layout(line: str) -> bool:
    """Whether a line is a heading, a table, a path, code, or what a terminal printed."""
    if line.startswith(_LAYOUT) or _TABLE.match(line) or (line.startswith("/") and " " not in line):
        return True
    return line.isascii() and _CODE_LINE.match(line) is not None


def language(text: str) -> str:
    """`en`, `zh` or `ja`: the language most of a text is in."""
    if text.isascii():
        return "en"
    sample = text[:4_000]
    kana, han = len(_KANA.findall(sample)), len(_HAN.findall(sample))
    if kana > han / 4 and kana > 4:
        return "ja"
    return "zh" if han * 4 > len(_LATIN.findall(sample)) else "en"


def sentence_kinds(sentence: str, *, is_user: bool) -> frozenset[SentenceKind]:
    """Everything a sentence may be; `FILLER` alone when it says nothing that lasts."""
    found = (
        _east_asian(sentence, is_user=is_user)
        if not sentence.isascii() and (_HAN.search(sentence) or _KANA.search(sentence))
        else _english(sentence, is_user=is_user)
    )
    return frozenset(found) or _OTHER


_OTHER = frozenset({SentenceKind.OTHER})


def _has(text: str, phrases: tuple[str, ...]) -> bool:
    for phrase in phrases:  # noqa: SIM110 - a generator would cost more than the search
        if phrase in text:
            return True
    return False


def _english(sentence: str, *, is_user: bool) -> set[SentenceKind]:
    lowered = sentence.lower().replace("\u2019", "'")
    if is_user and _has(lowered, cues.NAMES):
        return {SentenceKind.FACT}
    found = _WORD.findall(lowered)
    unique = set(found)
    if _is_filler(sentence, lowered, found, unique, is_user=is_user):
        return {SentenceKind.FILLER}
    result: set[SentenceKind] = set()
    if lowered.endswith("?"):
        result.add(SentenceKind.QUESTION)
    if (
        unique & cues.CONSTRAINT_WORDS
        or lowered.startswith(cues.FORBIDDING)
        or _has(lowered, cues.CONSTRAINT_PHRASES)
    ):
        result.add(SentenceKind.CONSTRAINT)
    if unique & cues.DECISION_WORDS or _has(lowered, cues.DECISION_PHRASES):
        result.add(SentenceKind.DECISION)
    if _has(lowered, cues.OPEN_PHRASES):
        result.add(SentenceKind.OPEN)
    if is_user:
        result |= {SentenceKind.REQUEST} if _asks(lowered, found, unique) else set()
        result |= {SentenceKind.FACT} if _has(lowered, cues.FACT_PHRASES) else set()
    elif unique & cues.RESULT_WORDS:
        result.add(SentenceKind.RESULT)
    return result


def _asks(lowered: str, found: list[str], unique: set[str]) -> bool:
    if found and found[0] in cues.IMPERATIVES:
        return True
    return _has(lowered, cues.REQUEST_PHRASES) or (
        not lowered.startswith(cues.TELLING) and not unique.isdisjoint(cues.REQUEST_WORDS)
    )


def _is_filler(
    sentence: str, lowered: str, found: list[str], unique: set[str], *, is_user: bool
) -> bool:
    """Whether a sentence is politeness, or an assistant's word on what it is about to do."""
    if not is_user and lowered.startswith(cues.PLAN_STARTS):
        return True
    asks = is_user and _has(lowered, cues.REQUEST_PHRASES)
    if _DIGIT.search(sentence) or not (
        unique <= cues.FILLER or (lowered.startswith(cues.FILLER_STARTS) and not asks)
    ):
        return False
    return len(found) < 14 or lowered.startswith(cues.FILLER_ALWAYS)


def _east_asian(sentence: str, *, is_user: bool) -> set[SentenceKind]:
    is_japanese = _KANA.search(sentence) is not None
    filler = cues.JA_FILLER if is_japanese else cues.ZH_FILLER
    has_digit = _DIGIT.search(sentence) is not None
    if is_user and _has(sentence, cues.NAMES):
        return {SentenceKind.FACT}
    if not sentence.endswith(("？", "?")) and sentence.startswith(cues.THANKS):
        return {SentenceKind.FILLER}
    if len(sentence) < (24 if is_japanese else 14) and not has_digit and _has(sentence, filler):
        return {SentenceKind.FILLER}
    result: set[SentenceKind] = set()
    if sentence.endswith(("？", "?", "吗", "呢", "吗。", "か。", "か")):
        result.add(SentenceKind.QUESTION)
    constraint, decision, request, fact, answer = (
        (cues.JA_CONSTRAINT, cues.JA_DECISION, cues.JA_REQUEST, cues.JA_FACT, cues.JA_RESULT)
        if is_japanese
        else (cues.ZH_CONSTRAINT, cues.ZH_DECISION, cues.ZH_REQUEST, cues.ZH_FACT, cues.ZH_RESULT)
    )
    if _has(sentence, constraint):
        result.add(SentenceKind.CONSTRAINT)
    if _has(sentence, decision):
        result.add(SentenceKind.DECISION)
    if _has(sentence, cues.ZH_OPEN):
        result.add(SentenceKind.OPEN)
    if is_user:
        if _has(sentence, request):
            result.add(SentenceKind.REQUEST)
        if _has(sentence, fact):
            result.add(SentenceKind.FACT)
    elif _has(sentence, answer):
        result.add(SentenceKind.RESULT)
    return result


def line_of(sentence: str) -> str:
    """A sentence as a line of a summary: at most 220 characters, about 110 of Chinese or Japanese."""
    return clip(sentence, 220 if sentence.isascii() else 130)


def is_lasting(sentence: str) -> bool:
    """Whether a user says something of themselves or their affairs that stays true."""
    return _has(sentence.lower(), cues.LASTING)


def says_name(sentence: str) -> bool:
    """Whether somebody says what they are called."""
    return _has(sentence.lower(), cues.NAMES)
