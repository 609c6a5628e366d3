"""Exact values - paths, ids, numbers with their units - are found by code, ranked, and carried verbatim as a ledger."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnfold.core.actions import FileChange, argument_texts
from turnfold.core.sources import Previous, Source, printable

MAX_SCANNED_CHARACTERS = 64_000
REQUEST_CHARACTERS = 500
_LONG_CHARACTERS = 4_000
_MAX_PER_MESSAGE = 400
_MAX_WEAK = 40
_LEFT_OUT_TOKENS = 12

_URL = re.compile(
    r"\b(?:https?|wss?|ftp|git|ssh|s3|nats|postgres(?:ql)?|redis|mysql|mongodb|amqp)://[^\s\"'<>`()\[\]{}|\\^\u3000-\u303f\uff00-\uffef]{2,400}"
)
_YEAR = re.compile(r"(?:19|20)\d\d")
_DIGIT = re.compile(r"\d")
_TAG = re.compile(r"</?[A-Za-z][\w-]{0,40}\s?/?>")
_TOKEN = re.compile(r"[A-Za-z0-9_./\\:@#~%+*$-]{2,}")
_KNOWN_ENDINGS = (
    "py|pyi|js|jsx|ts|tsx|mjs|json|jsonl|toml|yaml|yml|md|txt|rst|html|css|scss|sh|bash|zsh|sql|go|rs|java|kt|c|h|cc|cpp|hpp|cs|rb|php|ex|exs|"
    "swift|lua|xml|csv|tsv|lock|cfg|ini|conf|env|log|gz|zip|tar|whl|png|jpg|jpeg|svg|pdf|docx|xlsx|ipynb|proto|tf|vue|db|sqlite|patch|diff"
)
_SHAPES = re.compile(
    r"(?P<uuid>[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"
    r"|(?P<email>[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,})"
    r"|(?P<date>\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?|\d{1,2}[-/]\d{1,2}[-/]\d{4})"
    r"|(?P<host>(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5}|/\d{1,2})?|localhost:\d{1,5}|[A-Za-z][A-Za-z0-9.-]*:\d{2,5}|:\d{4,5})"
    r"|(?P<ticket>[A-Z][A-Z0-9]{1,9}-\d{1,7}|#\d{1,7})"
    r"|(?P<version>v\d+(?:\.\d+)*(?:[-+][A-Za-z0-9.-]+)?|\d+\.\d+\.\d+(?:\.\d+)*(?:[-+]?[A-Za-z][A-Za-z0-9.+-]*)?)"
    r"|(?P<hash>(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}|[0-9A-F]{32,64})"
    r"|(?P<phone>0\d{1,4}-\d{3,8}(?:-\d{1,8})?|\+\d[\d-]{6,18}|\d{3}-\d{3}-\d{4})"
    r"|(?P<path>~?(?:/[A-Za-z0-9_.@%+#:-]+){2,}/?|~?/[A-Za-z0-9_-]*\.[A-Za-z0-9]+|\.{1,2}(?:/[A-Za-z0-9_.@%+#-]+)+/?|[A-Za-z]:\\[A-Za-z0-9_.\\ -]+"
    r"|[A-Za-z0-9_.@-]+(?:/[A-Za-z0-9_.@%+-]+)*/[A-Za-z0-9_@-]*\.[A-Za-z0-9]{1,8}|[A-Za-z0-9_@-]+(?:/[A-Za-z0-9_.@-]+){2,}"
    rf"|[A-Za-z0-9_.-]*[A-Za-z0-9_-]\.(?:{_KNOWN_ENDINGS})|\.[a-z]+(?:rc|ignore|env))"
    r"|(?P<id>(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*)"
    r"|(?P<number>\d{4,}(?:\.\d+)?|\d+\.\d+)"
)
_MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
)
_MONTH_DAY = re.compile(rf"\b(?=[JFMASOND])(?:{_MONTHS})\.? \d{{1,2}}(?:st|nd|rd|th)?\b(?:,? \d{{4}}\b)?")
# What a measure starts with comes first: most characters start none, and are passed over at once.
_MEASURE = re.compile(
    r"(?=[\d$€£¥￥])(?:(?P<price>[$€£¥￥]\s?\d+(?:,\d{3})*(?:\.\d+)?(?:[kKmM]\b)?)"
    r"|(?<![A-Za-z0-9_.,:/-])(?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[APap]\.?[Mm]\b\.?)?)(?![\w:])"
    r"|(?<![A-Za-z0-9_.,:])(?P<calendar>(?:\d{2,4}年)?\d{1,2}月\d{1,2}[日号號]|\d{2,4}年(?:\d{1,2}月)?|\d{1,2}[点點时時]\d{0,2}分?半?)"
    r"|(?<![A-Za-z0-9_.,:])(?P<measure>\d+(?:,\d{3})*(?:\.\d+)?(?:\s?[-~～–]\s?\d+(?:,\d{3})*(?:\.\d+)?)?"
    r"(?:\s?(?:%|％|percent\b|ms\b|milliseconds?\b|s\b|secs?\b|seconds?\b|mins?\b|minutes?\b|h\b|hrs?\b|hours?\b|days?\b|weeks?\b|months?\b|years?\b"
    r"|[KMGT]i?B\b|[kmgt]b\b|bytes?\b|px\b|kg\b|g\b|km\b|m\b|cm\b|mm\b|miles?\b|[GM]?Hz\b|rpm\b|rps\b|tokens?\b|people\b|persons?\b|guests?\b|nights?\b"
    r"|rooms?\b|bags?\b|tickets?\b|replicas?\b|nodes?\b|workers?\b|USD\b|EUR\b|GBP\b|CNY\b|RMB\b|JPY\b|dollars?\b|euros?\b|am\b|pm\b|AM\b|PM\b|a\.m\.|p\.m\.)"
    r"|\s?(?:元|块|円|美元|人民币|人|位|名|个人|間|间|晚|泊|天|日間|小时|時間|分钟|分間|分|秒|周|週間|个月|ヶ月|岁|歳|公里|千米|米|斤|公斤|度|次|回|倍|万|亿|億|层|楼|階|号线|路|楼))))"
)
_UNITS = "元块円人位名个間间晚泊天日小时時分钟秒周週月岁歳公里千米斤度次回倍万亿億层楼階号线路美民币% "
_WEIGHTS: Mapping[str, int] = {
    "modified": 16, "uuid": 14, "url": 14, "ticket": 14, "host": 13, "hash": 12, "path": 12, "id": 11, "email": 12, "price": 10,
    "date": 9, "version": 9, "phone": 10, "number": 7, "measure": 6, "time": 6, "read": 4,
}  # fmt: skip
_BY_USER, _BY_CALL, _BY_ASSISTANT, _BY_ERROR, _BY_TOOL = 100, 55, 50, 40, 20
_WEAK_BELOW, _MAX_RANK, _PER_REPEAT, _NEW = 45, 200, 8, 5
_SOFT_KINDS = frozenset({"date", "time", "version", "number", "measure", "price", "phone"})


class Value(NamedTuple):
    """One exact value as it stands in a text."""

    kind: str
    text: str


@dataclass(slots=True)
class _Standing:
    value: Value
    rank: int
    message_id: str
    order: int

    @property
    def score(self) -> int:
        """The rank, a little higher for what these messages named."""
        return self.rank + (_NEW if self.order else 0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Exact values, best first, as far as the cap allows; `provenance` holds `[message id, rank]` of each entry."""

    entries: tuple[str, ...]
    provenance: tuple[tuple[str, int], ...]


def values_in(text: str) -> list[Value]:
    """Exact values of a text in order of kind and place, each once. Linear in the text; reads its first 64,000 characters."""
    found: dict[Value, None] = {}
    text = text[:MAX_SCANNED_CHARACTERS]
    if "</" in text or "/>" in text:
        text = _TAG.sub(" ", text)
    if "://" in text:
        for match in _URL.finditer(text):
            found[Value("url", match[0].rstrip(".,;:!?*"))] = None
        text = _URL.sub(" ", text)
    for token in _TOKEN.findall(text):
        if token.isalpha() or len(token) > 300:
            continue
        bare = token.strip("*").rstrip(".,:;+$%~").lstrip("@$%+")
        if len(bare) < 2 or bare.isalpha() or (bare.isdigit() and len(bare) < 4):
            continue
        shape = _SHAPES.fullmatch(bare)
        if shape is not None and ((shape.lastgroup == "id" and _is_plain(bare)) or (shape.lastgroup == "number" and _YEAR.fullmatch(bare))):
            continue
        if shape is not None and shape.lastgroup is not None:
            found[Value(shape.lastgroup, bare)] = None
    if not _DIGIT.search(text):
        return list(found)
    for match in _MEASURE.finditer(text):
        kind = match.lastgroup or "measure"
        measured = " ".join(match[0].split())
        found[Value("date" if kind == "calendar" else kind, measured)] = None
        found.pop(Value("number", measured.lstrip("$€£¥￥ ").rstrip(_UNITS)), None)
    for match in _MONTH_DAY.finditer(text):
        found[Value("date", match[0])] = None
    return list(found)


def _is_plain(token: str) -> bool:
    """Whether letters and digits together name nothing: `x2`, `utf8`, `17ms`."""
    return len(token) < 4 or (token.islower() and token[:-1].isalpha()) or token.lstrip("0123456789").lower() in _SHORT_UNITS


_SHORT_UNITS = frozenset("ms s m h px kb mb gb k b x d th st nd rd em rem fps".split())


def build_ledger(
    previous: Previous | None,
    sources: Sequence[Source],
    files: Sequence[FileChange],
    *,
    newest_request: str | None,
    max_tokens: int,
    count: Callable[[str], int],
) -> Ledger:
    """Merge what was carried with what these messages hold, rank it, and keep what fits.

    A value ranks by who named it (the user first), how often it came back, its kind, and whether it is new. The newest
    open request stands first, verbatim, and is never left out. What does not fit is counted in the last entry.
    """
    standings, left_out = _carried(previous)
    for order, source in enumerate(sources, start=1):
        for value, rank in _named(source):
            _note(standings, value, rank, source.message_id, order)
    _note_files(standings, files, len(sources))
    ranked = sorted(standings.values(), key=lambda standing: (-standing.score, -standing.order, standing.value))
    weak = [standing for standing in ranked if standing.score < _WEAK_BELOW]
    kept = [standing for standing in ranked if standing.score >= _WEAK_BELOW] + weak[:_MAX_WEAK]
    request = printable(newest_request or "").strip()[:REQUEST_CHARACTERS]
    head = [f"request {request}"] if request else []
    room = max(0, max_tokens - sum(count(entry) for entry in head) - _LEFT_OUT_TOKENS)
    entries = _fitting([f"{standing.value.kind} {standing.value.text}" for standing in kept], room, count)
    left_out += len(ranked) - len(entries)
    provenance = [("", _MAX_RANK)] * len(head) + [(standing.message_id, standing.rank) for standing in kept[: len(entries)]]
    if left_out:
        entries = [*entries, f"left_out {left_out} more values, which search finds"]
        provenance.append(("", 0))
    return Ledger((*head, *entries), tuple(provenance))


def _fitting(entries: list[str], room: int, count: Callable[[str], int]) -> list[str]:
    kept = entries[: room // 2]
    while kept and (tokens := count("\n".join(kept))) > room:
        kept = kept[: min(len(kept) - 1, len(kept) * room // tokens)]
    return kept


def _carried(previous: Previous | None) -> tuple[dict[str, _Standing], int]:
    standings: dict[str, _Standing] = {}
    left_out = 0
    if previous is None:
        return standings, left_out
    provenance = previous.sections.get("provenance")
    known = provenance if isinstance(provenance, Sequence) and len(provenance) == len(previous.ledger) else ()
    for index, entry in enumerate(previous.ledger):
        kind, _, text = entry.partition(" ")
        if kind == "left_out":
            number = text.split(" ", 1)[0]
            left_out = int(number) if number.isdigit() else 0
        if kind not in _WEIGHTS or not text:
            continue
        message_id, rank = _provenance(known[index]) if known else ("", _BY_ASSISTANT + _WEIGHTS[kind])
        standings[text] = _Standing(Value(kind, text), rank, message_id, 0)
    return standings, left_out


def _provenance(stored: Any) -> tuple[str, int]:
    if isinstance(stored, Sequence) and len(stored) == 2 and isinstance(stored[0], str) and isinstance(stored[1], int):
        return stored[0], max(0, min(stored[1], _MAX_RANK))
    return "", _BY_ASSISTANT


def _named(source: Source) -> Iterator[tuple[Value, int]]:
    """The values of one message, each with the rank its speaker gives it."""
    is_long = len(source.text) > _LONG_CHARACTERS
    for value in values_in(source.text)[:_MAX_PER_MESSAGE]:
        if source.role == "user":
            rank = _BY_TOOL if is_long and value.kind in _SOFT_KINDS else _BY_USER
        elif source.role == "tool":
            if value.kind in _SOFT_KINDS or (is_long and value.kind == "id"):
                continue
            rank = _BY_ERROR if source.is_error else _BY_TOOL
        else:
            rank = _BY_ASSISTANT
        yield value, rank + _WEIGHTS[value.kind]
    for _, arguments in source.calls:
        for key, text in argument_texts(arguments):
            if key.lower().endswith("id") and 3 < len(text) <= 64 and " " not in text:
                yield Value("id", text), _BY_CALL + _WEIGHTS["id"]
            else:
                for value in values_in(text)[:_MAX_PER_MESSAGE]:
                    yield value, _BY_CALL + _WEIGHTS[value.kind]


def _note(standings: dict[str, _Standing], value: Value, rank: int, message_id: str, order: int) -> None:
    standing = standings.get(value.text)
    if standing is None:
        standings[value.text] = _Standing(value, rank, message_id, order)
        return
    if standing.order != order:
        standing.rank = min(_MAX_RANK, max(standing.rank, rank) + _PER_REPEAT)
        standing.order = order
    else:
        standing.rank = max(standing.rank, rank)


def _note_files(standings: dict[str, _Standing], files: Iterable[FileChange], order: int) -> None:
    for change in files:
        rank = (_BY_CALL if change.action == "modified" else _BY_TOOL + _WEAK_BELOW) + _WEIGHTS[change.action]
        standing = standings.get(change.path)
        if standing is None:
            standings[change.path] = _Standing(
                Value(change.action, change.path), rank, change.message_id, order if change.message_id else 0
            )
        else:
            action = "modified" if "modified" in (standing.value.kind, change.action) else change.action
            standing.value = Value(action, change.path)
            standing.rank = max(standing.rank, rank)
