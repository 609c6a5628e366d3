"""Find the exact values of a text, such as paths, ids, and numbers with their units.

Values are found by their shape and returned verbatim. The expressions take time linear in the text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from turnfold.core.text.lines import whole_words

MAX_SCANNED_CHARACTERS = 64_000
REQUEST_CHARACTERS = 500
_MAX_URL_CHARACTERS = 400

_IN_URL = r"[^\s\"'<>`()\[\]{}|\\^\u3000-\u303f\uff00-\uffef]"
_URL = re.compile(
    r"\b(?:https?|wss?|ftp|git|ssh|s3|nats|postgres(?:ql)?|redis|mysql|mongodb"
    # Parentheses that pair are part of an address.
    rf"|amqp)://{_IN_URL}{{2,}}+(?:\({_IN_URL}*+\){_IN_URL}*+)*"
)
_YEAR = re.compile(r"(?:19|20)\d\d")
_DIGIT = re.compile(r"\d")
_TAG = re.compile(r"</?[A-Za-z][\w-]{0,40}\s?/?>")
_STYLING = re.compile(r"\x1b?\[(?>(?:\d{1,3}+;?+){1,6})m|\x1b\[[0-9;?]*[A-Za-z]")
_STYLED = ("\x1b[", "[0m", "[22m", "[39m")
# Shorter numbers are not values.
_NUMBERED_LINE = re.compile(r"(?:\n|\A) {0,8}(\d{4,7})(?=[:|→\t])")
# In JSON, a number after a key is not a port.
_KEY = re.compile(r'":(?:(?<=\w":)|(?<=\w\\":))(?=\d)')
# Most tokens are plain words, not values: the first branch matches them without a group.
_TOKEN = re.compile(r"[A-Za-z_~%+*$-]++(?![0-9./\\:@#])|([A-Za-z0-9_./\\:@#~%+*$-]{2,})")
# Letters outside tokens, of the scripts that put spaces around words.
_LETTERS = "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u0370-\u052f\u1e00-\u1fff"
_LETTER = re.compile(f"[{_LETTERS}]")
_WORD = re.compile(rf"[{_LETTERS}A-Za-z0-9_./\\:@#~%+*$-]+")
_KNOWN_ENDINGS = (
    "py|pyi|js|jsx|ts|tsx|mjs|json|jsonl|toml|yaml|yml|md|txt|rst|html|css|scss|sh|bash|zsh|sql|go"
    "|rs|java|kt|c|h|cc|cpp|hpp|cs|rb|php|ex|exs|"
    "swift|lua|xml|csv|tsv|lock|cfg|ini|conf|env|log|gz|zip|tar|whl|png|jpg|jpeg|svg|pdf|docx|xlsx"
    "|ipynb|proto|tf|vue|db|sqlite|patch|diff"
)
# The first alternative that fits gives the kind: a UUID, for one, fits `id` as well.
_SHAPES = re.compile(
    r"(?P<uuid>[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"
    r"|(?P<email>[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,})"
    r"|(?P<date>\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d{1,2}[-/]\d{1,2}[-/]\d{4})"
    r"|(?P<host>(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5}|/\d{1,2})?|localhost:\d{1,5}"
    r"|[A-Za-z][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)+:\d{2,5}|[A-Za-z][A-Za-z0-9-]*:\d{4,5}|:\d{4,5})"
    r"|(?P<ticket>[A-Z][A-Z0-9]{1,9}-\d{1,7}|#\d{1,7})"
    r"|(?P<version>v\d+(?:\.\d+)*(?:[-+][A-Za-z0-9.-]+)?"
    r"|\d+\.\d+\.\d+(?:\.\d+)*(?:[-+]?[A-Za-z][A-Za-z0-9.+-]*)?)"
    r"|(?P<hash>(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}|[0-9A-F]{32,64})"
    r"|(?P<phone>0\d{1,4}-\d{3,8}(?:-\d{1,8})?|\+\d[\d-]{6,18}|\d{3}-\d{3}-\d{4})"
    r"|(?P<path>~?(?:/[A-Za-z0-9_.@%+#:-]+){2,}/?|~?/[A-Za-z0-9_-]*\.[A-Za-z0-9]+"
    r"|\.{1,2}(?:/[A-Za-z0-9_.@%+#-]+)+/?|[A-Za-z]:\\[A-Za-z0-9_.\\ -]+"
    r"|[A-Za-z0-9_.@-]+(?:/[A-Za-z0-9_.@%+-]+)*/[A-Za-z0-9_@-]*\.[A-Za-z0-9]{1,8}"
    r"|[A-Za-z0-9_@-]+(?:/[A-Za-z0-9_.@-]+){2,}"
    rf"|[A-Za-z0-9_.-]*[A-Za-z0-9_-]\.(?:{_KNOWN_ENDINGS})|\.[a-z]+(?:rc|ignore|env))"
    r"|(?P<id>#[0-9A-Fa-f]{6,8}"
    r"|(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*)"
    r"|(?P<number>\d{4,}(?:\.\d+)?|\d+\.\d+)"
)
_PHONE = re.compile(r"\+(?!\d{4}-\d\d-)\d[\d-]{6,18}")
_MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?"
    "|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
)
_NEAR_A_MONTH = re.compile(r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.? \d")
_MONTH_DAY = re.compile(
    rf"\b(?=[JFMASOND])(?:{_MONTHS})\.? \d{{1,2}}(?:st|nd|rd|th)?\b(?:,? \d{{4}}\b)?"
)
_MEASURE_START = re.compile(r"[\d$€£¥￥]")
_MEASURE = re.compile(
    r"(?:(?P<price>[$€£¥￥][ \u00a0]?\d+(?:[.,]\d+)*(?:[kKmM]\b)?"
    r"|(?<![\w.,:/'’-])(?:\d{1,3}(?:[ \u00a0\u202f]\d{3}){1,3}(?:[.,]\d+)?|\d+(?:[.,'’]\d+)*)"
    r"[ \u00a0\u202f]?€)"
    r"|(?<![A-Za-z0-9_.,:/-])(?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?"
    r"(?:[ \u00a0]?[APap](?:[Mm]\b|\.[Mm]\b\.?))?)(?![\w:])"
    r"|(?<![A-Za-z0-9_.,:])(?P<calendar>(?:\d{2,4}年)?\d{1,2}月\d{1,2}[日号號]|\d{2,4}年(?:\d{1,2}月)?"
    r"|\d{1,2}[点點时時]\d{0,2}分?半?)"
    r"|(?<![A-Za-z0-9_.,:])(?P<measure>\d+(?:,\d{3})*(?:\.\d+)?"
    r"(?:[ \u00a0]?[-~～–][ \u00a0]?\d+(?:,\d{3})*(?:\.\d+)?)?"
    r"(?:[ \u00a0]?(?:%|％|percent\b|ms\b|milliseconds?\b|s\b|secs?\b|seconds?\b|mins?\b|minutes?\b"
    r"|h\b|hrs?\b|hours?\b|days?\b|weeks?\b|months?\b|years?\b"
    r"|[kKMGT]i?B\b|[kmgt]b\b|bytes?\b|px\b|kg\b|g\b|km\b|m\b|cm\b|mm\b|miles?\b|[GM]?Hz\b|rpm\b"
    r"|rps\b|tokens?\b|people\b|persons?\b|guests?\b|nights?\b"
    r"|rooms?\b|bags?\b|tickets?\b|replicas?\b|nodes?\b|workers?\b|USD\b|EUR\b|GBP\b|CNY\b|RMB\b"
    r"|JPY\b|dollars?\b|euros?\b|am\b|pm\b|AM\b|PM\b|a\.m\.|p\.m\.)"
    r"|[ \u00a0]?(?:元|块|円|美元|人民币|人|位|名|个人|間|间|晚|泊|天|日間|小时|時間|分钟|分間|分"
    r"|秒|周|週間|个月|ヶ月|岁|歳|公里|千米|米|斤|公斤"
    r"|度|次|回|倍|万|亿|億|层|楼|階|号线|路|楼))))"
)
_FIGURES = re.compile(r"\d[\d.,'’]*")
# The digit comes before what must not precede it, so that the search skips all other characters.
_GROUPED = re.compile(
    r"\d(?<![\w.,'’]\d)\d{0,2}"
    r"(?:(?:,\d{2,3})+\.\d+|(?:\.\d{3})+,\d{1,2}|(?:['’]\d{3})+(?:[.,]\d+)?)"
    r"(?!\w|[.,'’]\d)"
)
"""A number with separators, as in several languages: each part alone is another number."""
_SEPARATORS = re.compile(r"[,'’]")
_GROUP_AND_MORE = re.compile(
    r"\d(?<![\w.,]\d)\d{0,2}(?:,\d{3})*,"
    r"(?=(\d{3}(?:-\d{1,3}(?=,\d{3}(?!\d))|-[a-z]+|[A-Za-z]{1,2}))(?!\w))"
)
"""The last part of such a number, with the unit or the beginning of a number that follows it."""
_UNITS = (
    "元块円人位名個间間晚泊天日小时時分钟秒周週月岁歳公里千米斤度次回倍万亿億层楼階号线路美民币%€"
    " \u00a0\u202f"
)


KIND_WEIGHTS: Mapping[str, int] = {
    "modified": 16, "uuid": 14, "url": 14, "ticket": 14, "host": 13, "hash": 12, "path": 12,
    "id": 11, "email": 12, "price": 10, "decision": 10, "constraint": 10, "error": 10, "date": 9,
    "version": 9, "phone": 10, "number": 7, "command": 7, "measure": 6, "time": 6, "read": 4,
    "line": 9,
}  # fmt: skip
"""The weight of a value's kind in its rank. A kind that is not listed is not part of a ledger."""

RANK_BY_USER, RANK_BY_CALL, RANK_BY_ASSISTANT, RANK_BY_ERROR, RANK_BY_TOOL = 100, 55, 50, 40, 20
"""The rank of a value by the message that names it, before the weight of its kind is added."""
_WORTH_IF_REPEATED, _WORTH_IF_NAMED = 1.0, 0.2


class Value(NamedTuple):
    """One exact value, verbatim. The kind is a name such as `path`, `ticket` or `measure`."""

    kind: str
    text: str


def worth_of(rank: int, *, is_repeated: bool, is_command: bool = False) -> float:
    """Return the worth of a value, which the caller divides by its tokens.

    Recurrence counts most. A value that a person or the model named is worth more than one that a
    tool printed.
    """
    is_named = rank >= RANK_BY_ERROR and not is_command
    return 1 + _WORTH_IF_REPEATED * is_repeated + _WORTH_IF_NAMED * is_named


def values_in(text: str) -> list[Value]:
    """Return the values of a text, each once, by kind and then by place.

    Only the first 64,000 characters are read.
    """
    values: dict[Value, None] = {}
    # Half a value at the end would be another one.
    text = whole_words(text, MAX_SCANNED_CHARACTERS)
    # The codes of colors would become part of the values that they surround.
    if any(mark in text for mark in _STYLED):
        text = _STYLING.sub("\n", text)
    if "</" in text or "/>" in text:
        text = _TAG.sub("\n", text)
    # First, and removed: otherwise their parts would be found as paths, hosts and numbers.
    if "://" in text:
        values.update(_urls_in(text))
        text = _URL.sub("\n", text)
    values.update(_tokens_in(_KEY.sub('": ', _without_line_numbers(text))))
    if not _DIGIT.search(text):
        return list(values)
    separated: list[str] = []
    for match in _measures_in(text):
        kind, measured = match.lastgroup or "measure", match[0]
        values[Value("date" if kind == "calendar" else kind, measured)] = None
        # Its number was found as a token already, and is less specific than the measure.
        values.pop(Value("number", measured.lstrip("$€£¥￥ ").rstrip(_UNITS)), None)
        if _SEPARATORS.search(measured):
            separated.append(measured)
    _join_groups(text, values, separated)
    if _NEAR_A_MONTH.search(text):
        for match in _MONTH_DAY.finditer(text):
            values[Value("date", match[0])] = None
    return list(values)


def _urls_in(text: str) -> dict[Value, None]:
    """Return the addresses of a text. The beginning of a long one would be another address."""
    return {
        Value("url", match[0].rstrip(".,;:!?*")): None
        for match in _URL.finditer(text)
        if len(match[0]) <= _MAX_URL_CHARACTERS
    }


def _without_line_numbers(text: str) -> str:
    """Remove the numbers of lines from a listing: those with the next or the last one beside."""
    numbers = {int(number) for number in _NUMBERED_LINE.findall(text)}
    if len(numbers) < 2:
        return text

    def kept(line: re.Match[str]) -> str:
        return "\n" if numbers & {int(line[1]) - 1, int(line[1]) + 1} else line[0]

    return _NUMBERED_LINE.sub(kept, text)


def _join_groups(text: str, values: dict[Value, None], separated: Sequence[str]) -> None:
    """Replace the last part of each number with separators by the number, unless it is measured.

    `separated` are the measures and prices with separators.
    """
    if not _SEPARATORS.search(text):
        return
    known = frozenset(_FIGURES.findall("\n".join(separated)))
    numbers = [match[0] for match in _GROUPED.finditer(text)]
    for number in (*known, *numbers):
        for part in _SEPARATORS.split(number):
            values.pop(Value("number", part), None)
            values.pop(Value("version", part), None)
    for number in numbers:
        if number not in known:
            values[Value("number", number)] = None
    for match in _GROUP_AND_MORE.finditer(text):
        for kind in ("phone", "id", "measure"):
            values.pop(Value(kind, match[1]), None)


def _measures_in(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of `_MEASURE`.

    Most characters cannot start one. Searching for those that can is much faster than `finditer`.
    """
    position = 0
    while start := _MEASURE_START.search(text, position):
        match = _MEASURE.match(text, start.start())
        if match:
            yield match
        position = match.end() if match else start.end()


def _tokens_in(text: str) -> dict[Value, None]:
    """Return the tokens of a text that are values by their shape."""
    values: dict[Value, None] = {}
    if not text.isascii() and _LETTER.search(text):
        # The token beside such a letter is only a part of a path or an address.
        text = _WORD.sub(lambda word: "" if _LETTER.search(word[0]) else word[0], text)
    for token in dict.fromkeys(_TOKEN.findall(text)):
        if not token or len(token) > 300:
            continue
        bare = token
        if not (token[0].isalnum() and token[-1].isalnum()):
            bare = token.strip("*").rstrip(".,:;+$%~").lstrip("@$%")
            # Before other values, a plus is the mark of an added line.
            if not _PHONE.fullmatch(bare):
                bare = bare.lstrip("@$%+")
        if len(bare) < 2 or bare.isalpha() or (bare.isdigit() and len(bare) < 4):
            continue
        kind = _kind_of(bare)
        if kind is not None:
            values[Value(kind, bare)] = None
    return values


def _kind_of(token: str) -> str | None:
    """Return the kind of a token, or None if it is not a value: a word, a year, `17ms`."""
    shape = _SHAPES.fullmatch(token)
    kind = shape.lastgroup if shape is not None else None
    if kind == "id" and _is_plain(token):
        return None
    if kind == "id" and _COUNTED.fullmatch(token):
        return "measure"
    return None if kind == "number" and _YEAR.fullmatch(token) else kind


def _is_plain(token: str) -> bool:
    """Return whether letters and digits together identify nothing, as in `x2`, `utf8` or `17ms`."""
    return (
        len(token) < 4
        or (token.islower() and token[:-1].isalpha())
        or token.lstrip("0123456789").lower() in _SHORT_UNITS
    )


_COUNTED = re.compile(r"\d{1,3}(?:-[a-z]+){1,2}")
"""A number joined to its unit, as in `30-minute`; not a branch, as `4821-fix-login`."""
_SHORT_UNITS = frozenset("ms s m h px kb mb gb k b x d th st nd rd em rem fps".split())
