"""Split texts into sentences, and classify each by keywords in English, Chinese and Japanese.

A sentence may be of several kinds. The keywords are in `keywords`. Code, tables and notes of
programs are not sentences.
"""

import re
from collections.abc import Iterator
from enum import StrEnum

from turnfold.core.summary import keywords as cues
from turnfold.core.summary.sources import head_and_tail
from turnfold.core.text.lines import clip, printable

PROSE_CHARACTERS = 4_000

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_NOTE_TAG = re.compile(r"<(/?)(system-reminder|environment_details|command-\w+|local-command-\w+)>")
# Letters of scripts without capital ones may begin a sentence, too: Hebrew to Sinhala, Georgian,
# and Korean.
_CAPITALS = "A-Z¿¡\u05d0-\u0dff\u10d0-\u10ff\uac00-\ud7af" + "".join(
    filter(str.isupper, map(chr, range(0xC0, 0x580)))
)
# The characters that may end a sentence come first, so that the search skips all others at once.
_END = re.compile(
    rf"[。！？；!?.؟।\n](?:(?<=[^\d\s][.!?])[\"')\]]?\s+(?=[{_CAPITALS}\"'(\[*`#\d]|I\b)"
    r"|(?<=[。！？；!?؟।])(?=[^。！？；!?؟।」』”’）)])"
    r"|(?<=\n)\n*)"
)
# No sign of a value: a list mark stands before a space, or before a script without spaces.
_MARKS = re.compile(
    r"^(?:(?:[-*+](?=[\s\u2e80-\uffff])|•|>++(?![=.\d])|\d{1,2}[.)、](?!\d)|[（(]\d{1,2}[)）])\s*)+"
)
# Two stars are bold print only at the edge of words: not in "2**10" and "src/**/*.py".
_BOLD = re.compile(r"(?<![\w)/*])\*\*(?=[^\s*/])|(?<=[^\s*/])\*\*(?!-?[\w(/*])", re.ASCII)
_TABLE = re.compile(r"^[\s|:+=_*~-]*$|^\|.*\|$")
_LAYOUT = ("[… ", "<", "{", "# ", "##", "#!/")
_CODE_LINE = re.compile(
    r"^(?:(?!\d{1,2}:\d\d\b)\d+[:|\t→].*|\([^)]*\)|\[[^\]]*\]|[\d\W]+"
    r"|(?!(?:MUST|NEVER|ALWAYS|ONLY|TODO|IMPORTANT|PLEASE)\b)[A-Z_]{4,} .*\d"
    # Users begin sentences with words that are keywords of programming languages, too.
    r"|(?:def|elif|const|var|function)\b.*[:;{(=)].*|class \w+ ?[:({].*"
    r"|import (?:[\w.]+(?: as \w+)?(?:, ?[\w.]+)*|.*\bfrom ['\"].*|['\"].*)"
    r"|from [\w.]+ import\b.*|for ?\(.*|for [\w, ()]{1,60}? in .*:|while ?\(.*|while\b.*:"
    r"|let (?:mut )?(?:\w+(?:: ?[\w<>\[\]|]+)? ?=|[{\[]).*"
    r"|return (?:[\w.]+(?:\(| ?[=<>+*/&|-])|[({\[]).*|print ?\(.*"
    r"|.*[{};]|[\w.]+\(.*\)|E\d{3,4} .*)$"
)
_WORD = re.compile(r"(?:[^\W\d_]|')+")


class SentenceKind(StrEnum):
    """The purpose of a sentence. `FILLER` is politeness, which a summary omits."""

    REQUEST = "request"
    DECISION = "decision"
    CONSTRAINT = "constraint"
    FACT = "fact"
    QUESTION = "question"
    OPEN = "open"
    RESULT = "result"
    FILLER = "filler"


_DIGIT = re.compile(r"\d")
_KANA = re.compile(r"[\u3040-\u30ff]")
_LATIN = re.compile(r"[A-Za-z]")
_HAN = re.compile(r"[\u4e00-\u9fff]")


def prose(text: str) -> str:
    """Return the part of a text that is worth reading as sentences.

    It is the first and last 4,000 characters, without code blocks and notes of the agent.
    """
    text = printable(head_and_tail(text, PROSE_CHARACTERS, PROSE_CHARACTERS))
    if "```" in text:
        text = _CODE.sub("\n", text)
    return _without_notes(text) if "</" in text else text


def _without_notes(text: str) -> str:
    """Replace each note, from its tag to the nearest closing tag, by a line end.

    A regular expression would search for the closing tag again from every opening tag.
    """
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
    """Yield the sentences that a person would read aloud: no code, tables, rules or list marks."""
    for part in _parts(prose(text)):
        line = _BOLD.sub("", part).strip()
        if marks := _MARKS.match(line):
            line = line[marks.end() :].strip()
        if len(line) > 1 and not _is_layout(line):
            yield line


def _parts(text: str) -> Iterator[str]:
    """Yield the texts between sentence ends, with their full stop but without line ends."""
    start = 0
    for end in _END.finditer(text):
        at = end.start()
        yield text[start : at if text[at] == "\n" else at + 1]
        start = end.end()
    yield text[start:]


def _is_layout(line: str) -> bool:
    """Return whether a line is a heading, a table, a path, code, or terminal output."""
    if line.startswith(_LAYOUT) or _TABLE.match(line) or (line.startswith("/") and " " not in line):
        return True
    return line.isascii() and _CODE_LINE.match(line) is not None


def language(text: str) -> str:
    """Return the language of most of a text: `en`, `zh` or `ja`."""
    if text.isascii():
        return "en"
    sample = text[:4_000]
    kana, han = len(_KANA.findall(sample)), len(_HAN.findall(sample))
    if kana > han / 4 and kana > 4:
        return "ja"
    return "zh" if han * 4 > len(_LATIN.findall(sample)) else "en"


def sentence_kinds(sentence: str, *, is_user: bool) -> frozenset[SentenceKind]:
    """Return all kinds of a sentence; `FILLER` alone for politeness."""
    is_east_asian = not sentence.isascii() and (_HAN.search(sentence) or _KANA.search(sentence))
    classify = _east_asian_kinds if is_east_asian else _english_kinds
    return frozenset(classify(sentence, is_user=is_user))


def _has(text: str, phrases: tuple[str, ...]) -> bool:
    for phrase in phrases:  # noqa: SIM110 - a generator would cost more than the search
        if phrase in text and _begins_a_word(text, phrase):
            return True
    return False


def _begins_a_word(text: str, phrase: str) -> bool:
    """Return whether a phrase that a text contains is part of no word such as "equiLATERal"."""
    if not (phrase[0].isascii() and phrase[0].isalpha()):
        return True
    at = text.find(phrase)
    while at > 0 and text[at - 1].isascii() and text[at - 1].isalpha():
        at = text.find(phrase, at + 1)
    return at >= 0


def _english_kinds(sentence: str, *, is_user: bool) -> set[SentenceKind]:
    lowered = sentence.lower().replace("\u2019", "'")
    if is_user and _has(lowered, cues.NAMES):
        return {SentenceKind.FACT}
    words = _WORD.findall(lowered)
    unique = set(words)
    if _is_filler(sentence, lowered, words, unique, is_user=is_user):
        return {SentenceKind.FILLER}
    kinds: set[SentenceKind] = set()
    if lowered.endswith(("?", "؟")):
        kinds.add(SentenceKind.QUESTION)
    if (
        unique & cues.CONSTRAINT_WORDS
        or lowered.startswith(cues.FORBIDDING)
        or _has(lowered, cues.CONSTRAINT_PHRASES)
    ):
        kinds.add(SentenceKind.CONSTRAINT)
    if unique & cues.DECISION_WORDS or _has(lowered, cues.DECISION_PHRASES):
        kinds.add(SentenceKind.DECISION)
    if _has(lowered, cues.OPEN_PHRASES):
        kinds.add(SentenceKind.OPEN)
    if is_user:
        kinds |= {SentenceKind.REQUEST} if _is_request(lowered, words, unique) else set()
        kinds |= {SentenceKind.FACT} if _has(lowered, cues.FACT_PHRASES) else set()
    elif unique & cues.RESULT_WORDS:
        kinds.add(SentenceKind.RESULT)
    return kinds


def _is_request(lowered: str, words: list[str], unique: set[str]) -> bool:
    if words and words[0] in cues.IMPERATIVES:
        return True
    return _has(lowered, cues.REQUEST_PHRASES) or (
        not lowered.startswith(cues.TELLING) and not unique.isdisjoint(cues.REQUEST_WORDS)
    )


def _is_filler(
    sentence: str, lowered: str, words: list[str], unique: set[str], *, is_user: bool
) -> bool:
    """Return whether a sentence is politeness, or announces what the assistant does next."""
    if not is_user and lowered.startswith(cues.PLAN_STARTS):
        return True
    asks = is_user and _has(lowered, cues.REQUEST_PHRASES)
    if _DIGIT.search(sentence) or not (
        unique <= cues.FILLER or (lowered.startswith(cues.FILLER_STARTS) and not asks)
    ):
        return False
    return len(words) < 14 or lowered.startswith(cues.FILLER_ALWAYS)


_CHINESE = {
    SentenceKind.FILLER: cues.ZH_FILLER,
    SentenceKind.CONSTRAINT: cues.ZH_CONSTRAINT,
    SentenceKind.DECISION: cues.ZH_DECISION,
    SentenceKind.OPEN: cues.ZH_OPEN,
    SentenceKind.REQUEST: cues.ZH_REQUEST,
    SentenceKind.FACT: cues.ZH_FACT,
    SentenceKind.RESULT: cues.ZH_RESULT,
}
_JAPANESE = {
    SentenceKind.FILLER: cues.JA_FILLER,
    SentenceKind.CONSTRAINT: cues.JA_CONSTRAINT,
    SentenceKind.DECISION: cues.JA_DECISION,
    SentenceKind.OPEN: cues.ZH_OPEN,
    SentenceKind.REQUEST: cues.JA_REQUEST,
    SentenceKind.FACT: cues.JA_FACT,
    SentenceKind.RESULT: cues.JA_RESULT,
}
_BY_ANYBODY = (SentenceKind.CONSTRAINT, SentenceKind.DECISION, SentenceKind.OPEN)
_BY_USER = (*_BY_ANYBODY, SentenceKind.REQUEST, SentenceKind.FACT)
_BY_ASSISTANT = (*_BY_ANYBODY, SentenceKind.RESULT)


def _east_asian_kinds(sentence: str, *, is_user: bool) -> set[SentenceKind]:
    # Chinese texts contain no kana, and Japanese sentences almost always do.
    is_japanese = _KANA.search(sentence) is not None
    phrases, filler_characters = (_JAPANESE, 24) if is_japanese else (_CHINESE, 14)
    if is_user and _has(sentence, cues.NAMES):
        return {SentenceKind.FACT}
    if _is_east_asian_filler(sentence, phrases[SentenceKind.FILLER], filler_characters):
        return {SentenceKind.FILLER}
    possible = _BY_USER if is_user else _BY_ASSISTANT
    kinds = {kind for kind in possible if _has(sentence, phrases[kind])}
    if sentence.endswith(("？", "?", "吗", "呢", "吗。", "か。", "か")):
        kinds.add(SentenceKind.QUESTION)
    return kinds


def _is_east_asian_filler(sentence: str, phrases: tuple[str, ...], most_characters: int) -> bool:
    if not sentence.endswith(("？", "?")) and sentence.startswith(cues.THANKS):
        return True
    if len(sentence) >= most_characters or _DIGIT.search(sentence):
        return False
    return _has(sentence, phrases)


def line_of(sentence: str) -> str:
    """Shorten a sentence to a line of a summary: 220 characters, or 130 if any is not ASCII."""
    return clip(sentence, 220 if sentence.isascii() else 130)


def is_lasting(sentence: str) -> bool:
    """Return whether a user says something about themselves that stays true."""
    return _has(sentence.lower(), cues.LASTING)


def says_name(sentence: str) -> bool:
    """Return whether somebody says their name."""
    return _has(sentence.lower(), cues.NAMES)


def is_consent(sentence: str) -> bool:
    """Return whether a decision says no more than yes."""
    lowered = sentence.lower().replace("\u2019", "'")
    if lowered.isascii():
        return cues.CONSENT.issuperset(_WORD.findall(lowered))
    return _has(lowered, cues.EAST_ASIAN_CONSENT)
