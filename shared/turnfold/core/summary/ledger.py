"""The ledger: exact values beside the prose, ranked, within a cap, each with the messages it comes from, carried to the letter.

An entry says what it holds and then the values, as they stood. What a user stated, files that were modified, commands, error
lines and decisions have an entry each; other values share entries with those of their kind.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from turnfold.core.summary.sources import PreviousSummary, Source, printable
from turnfold.core.summary.tool_actions import FileChange, argument_texts, commands_of
from turnfold.core.summary.values import REQUEST_CHARACTERS, Value, values_in

MAX_MARKS = 1_500
_LONG_CHARACTERS = 4_000
_MAX_PER_MESSAGE = 400
_PER_ENTRY = 24
_MARK_BYTES = 3
_FITTINGS, _SPARE = 5, 0.01
_LEFT_OUT = "left_out {} more values, which search finds"

_WEIGHTS: Mapping[str, int] = {
    "modified": 16, "uuid": 14, "url": 14, "ticket": 14, "host": 13, "hash": 12, "path": 12, "id": 11, "email": 12, "price": 10, "decision": 10,
    "constraint": 10, "error": 10, "date": 9, "version": 9, "phone": 10, "number": 7, "command": 7, "measure": 6, "time": 6, "read": 4,
}  # fmt: skip
_BY_USER, _BY_CALL, _BY_ASSISTANT, _BY_ERROR, _BY_TOOL = 100, 55, 50, 40, 20
_MAX_RANK, _PER_REPEAT = 200, 8
_VAGUE_KINDS = frozenset({"date", "time", "version", "number", "phone"})
"""Kinds that the output of tools is full of; there they are passed over."""
_SOFT_KINDS = _VAGUE_KINDS | {"measure", "price"}
_ALONE = frozenset({"modified", "command", "error", "decision", "constraint"})
_SPACED = frozenset({"measure", "price", "date", "time", "phone", "read"})
_PATHS = frozenset({"path", "modified", "read"})
_DIGIT, _MARK = re.compile(r"\d"), re.compile(r"[^A-Za-z0-9]")
_BAR = "|"
_MOST: Mapping[str, int] = {"decision": 4, "constraint": 4, "error": 2}
_WORTH_AGAIN, _WORTH_NAMED = 1.0, 0.2


class Origin(NamedTuple):
    """Where a value of an entry comes from: messages that name it (the first and the newest), and how it ranks.

    `times` is how many versions added messages that name it.
    """

    message_ids: tuple[str, ...]
    rank: int
    times: int = 1


@dataclass(slots=True)
class _Standing:
    value: Value
    rank: int
    message_ids: tuple[str, ...]
    times: int
    order: int
    is_new: bool
    price: float
    inner: tuple[str, ...] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """What of a path may be a path by itself."""
        if self.inner is None:
            self.inner = tuple(_parts(self.value))
        return self.inner

    @property
    def origin(self) -> Origin:
        """Where it comes from; what matters less names one message, since every answer carries them."""
        few = self.message_ids if self.is_stated or self.times > 1 else self.message_ids[:1]
        return Origin(few, self.rank, self.times)

    @property
    def is_stated(self) -> bool:
        """Whether it goes before all that is weighed by its price."""
        return self.rank >= _BY_USER

    @property
    def utility(self) -> float:
        """What it is worth for each token, about: coming back counts most, being named by somebody more than being printed."""
        worth = 1 + (_WORTH_AGAIN if self.times > 1 else 0)
        if self.rank >= _BY_ERROR and self.value.kind != "command":
            worth += _WORTH_NAMED
        return worth / self.price


_Entry = tuple[str, list[_Standing]]
"""The text of an entry, and the values in it."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Exact values, best first, as far as the cap allows.

    `origins` runs parallel to `entries`: those of each value in it, in order, and none for the request and the count of what
    was left out. `left_out` is what the next version must know of that.
    """

    entries: tuple[str, ...]
    origins: tuple[tuple[Origin, ...], ...]
    left_out: Mapping[str, Any]

    @property
    def provenance(self) -> list[Any]:
        """The origins as they are stored: `[[message ids], rank, times]` of each value, in a list where an entry holds several."""
        return [_stored(origins) for origins in self.origins]


def _stored(origins: Sequence[Origin]) -> Any:
    listed = [[list(one.message_ids), one.rank, one.times] for one in origins]
    return listed[0] if len(listed) == 1 else listed


def build_ledger(
    previous: PreviousSummary | None,
    sources: Sequence[Source],
    files: Sequence[FileChange],
    *,
    lines: Sequence[tuple[Value, str]] = (),
    newest_request: str | None,
    max_tokens: int,
    count: Callable[[str], int],
) -> Ledger:
    """Merge what was carried with what these messages hold, rank it, and keep what fits.

    What the user stated goes first. Everything else is ranked by what it is worth for its price: most, when it came back after
    it had been summarised. The newest open request stands first, verbatim, and is never left out. What does not fit is
    counted in the last entry, and leaves a mark, so that it is known when it comes back. `lines` are decisions,
    constraints and errors, to the letter, with their messages. The messages that were folded in last, given again, change nothing.
    """
    standings = _carried(previous)
    memory = _Memory.of(previous)
    is_repeated = bool(sources) and memory.until == sources[-1].message_id
    if not is_repeated:
        memory.until = sources[-1].message_id if sources else memory.until
        _note_sources(standings, memory, sources, lines)
        _note_files(standings, files)
    request = printable(newest_request or "").strip()[:REQUEST_CHARACTERS]
    head = [f"request {request}"] if request else []
    room = max(
        0, max_tokens - sum(count(entry) + 1 for entry in (*head, _LEFT_OUT.format(999_999)))
    )
    fitting = list(_grouped(standings.values()))
    if not (is_repeated and _tokens_of(fitting, count) <= room):
        fitting = _best(standings.values(), room, count)
    kept = [one for _, group in fitting for one in group]
    memory.settle(standings.values(), kept)
    entries = [*head, *(entry for entry, _ in fitting)]
    origins: list[tuple[Origin, ...]] = [() for _ in head]
    origins += [tuple([one.origin for one in group]) for _, group in fitting]
    if memory.values:
        entries.append(_LEFT_OUT.format(memory.values))
        origins.append(())
    return Ledger(tuple(entries), tuple(origins), memory.as_json())


def _note_sources(
    standings: dict[str, _Standing],
    memory: "_Memory",
    sources: Sequence[Source],
    lines: Sequence[tuple[Value, str]],
) -> None:
    """Add the values that these messages name, and whole lines with their messages."""
    orders: dict[str, int] = {}
    for order, source in enumerate(sources, start=1):
        orders[source.message_id] = order
        for value, rank in _named(source):
            _note(standings, memory, value, rank, source.message_id, order)
    for value, message_id in lines:
        rank = (_BY_ERROR if value.kind == "error" else _BY_USER) + _WEIGHTS[value.kind]
        _note(standings, memory, value, rank, message_id, orders.get(message_id, 0))


def _best(standings: Iterable[_Standing], room: int, count: Callable[[str], int]) -> list[_Entry]:
    """The entries of the best values that fit."""
    ranked = _ranked(standings)
    fitting = _fitting(ranked, room, count)
    kept = [one for _, group in fitting for one in group]
    if _inherit(ranked, kept):
        # What is worth more now stands where it will stand when it is ranked again.
        again = list(_grouped(_ordered(kept)))
        if _tokens_of(again, count) <= room:
            return again
    return fitting


def _tokens_of(entries: Sequence[_Entry], count: Callable[[str], int]) -> int:
    return count("\n".join([text for text, _ in entries])) if entries else 0


def _price(value: Value) -> float:
    """About how many tokens a value costs, told from its letters: digits cost most."""
    text = value.text
    if not text.isascii():
        return 2 + len(text)
    return (
        1.2 + 0.21 * len(text) + 0.65 * len(_DIGIT.findall(text)) + 0.26 * len(_MARK.findall(text))
    )


def _ranked(standings: Iterable[_Standing]) -> list[_Standing]:
    """The best first: what was stated by rank, the rest by utility; equal ones the newest first, then as they stood before."""
    number: dict[str, int] = {}
    chosen: list[_Standing] = []
    for one in _ordered(_without_shorter(list(standings))):
        kind = one.value.kind
        number[kind] = number.get(kind, 0) + 1
        if number[kind] <= _MOST.get(kind, 1_000_000):
            chosen.append(one)
    return chosen


def _ordered(found: Iterable[_Standing]) -> list[_Standing]:
    found = list(found)
    stated = [one for one in found if one.is_stated]
    stated.sort(key=lambda one: (-one.rank, not one.is_new, -one.order))
    others = [one for one in found if not one.is_stated]
    others.sort(key=lambda one: (-one.utility, not one.is_new, -one.order))
    return [*stated, *others]


def _without_shorter(standings: list[_Standing]) -> list[_Standing]:
    """A file the user spoke of by the end of its path is the modified one, where there is one, which then ranks as high."""
    modified = {
        part: one for one in standings if one.value.kind == "modified" for part in one.parts
    }
    found: list[_Standing] = []
    for one in standings:
        longer = (
            modified.get(one.value.text) if one.is_stated and one.value.kind in _PATHS else None
        )
        if longer is None:
            found.append(one)
        else:
            longer.rank = max(longer.rank, one.rank)
            longer.times = max(longer.times, one.times)
    return found


def _fitting(ranked: Sequence[_Standing], room: int, count: Callable[[str], int]) -> list[_Entry]:
    """The entries of as many of the best as fit, priced together by the tokenizer."""
    priced = sum([one.price for one in ranked])
    allowed = priced if priced < room * (1 + 4 * _SPARE) else room * (1 - _SPARE)
    best: list[_Entry] = []
    most = 0
    for _ in range(_FITTINGS):
        kept, priced, is_all = _within(ranked, allowed)
        entries = list(_grouped(kept))
        spare = room - _tokens_of(entries, count)
        if spare >= 0 and len(kept) >= most:
            best, most = entries, len(kept)
        if spare >= 0 and (is_all or spare <= 2 * room * _SPARE):
            break
        # What the prices were wrong by this time they will be wrong by again.
        allowed = priced + (
            spare - room * _SPARE if spare >= 0 else 1.05 * spare - room * _SPARE - 2
        )
    return best


def _within(ranked: Sequence[_Standing], allowed: float) -> tuple[list[_Standing], float, bool]:
    """The best whose prices sum up to what is allowed, that sum, and whether they are all.

    A path is not repeated where it stands within another one.
    """
    kept: dict[str, _Standing] = {}
    within: set[str] = set()
    total = 0.0
    for one in ranked:
        if one.value.text in within:
            continue
        inner = [
            kept[part]
            for part in dict.fromkeys(one.parts)
            if part in kept and (one.is_stated or not kept[part].is_stated)
        ]
        price = one.price - sum([other.price for other in inner])
        if total + price > allowed:
            return list(kept.values()), total, False
        total += price
        for other in inner:
            del kept[other.value.text]
        kept[one.value.text] = one
        within.update(one.parts)
    return list(kept.values()), total, True


def _inherit(ranked: Sequence[_Standing], kept: Sequence[_Standing]) -> bool:
    """Let paths that stay be worth what those inside them were, so that these do not leave with them unnoticed; whether any is."""
    is_any = False
    outer = {part: one for one in reversed(kept) for part in one.parts}
    for one in ranked:
        other = outer.get(one.value.text)
        if other is not None:
            is_any |= one.times > other.times
            other.times = max(other.times, one.times)
    return is_any


def _parts(value: Value) -> Iterator[str]:
    """The folders of a path, and what stands in them."""
    path = value.text
    at = path.find("/", 1) if value.kind in _PATHS else -1
    while at > 0:
        yield path[:at]
        yield path[at + 1 :]
        at = path.find("/", at + 1)


def _grouped(kept: Iterable[_Standing]) -> Iterator[_Entry]:
    """The entries: what stands alone first, by rank; then the rest by kind."""
    groups: dict[str, list[_Standing]] = {}
    for one in kept:
        if one.is_stated or one.value.kind in _ALONE:
            yield f"{one.value.kind} {one.value.text}", [one]
        else:
            groups.setdefault(one.value.kind, []).append(one)
    for kind, group in groups.items():
        for start in range(0, len(group), _PER_ENTRY):
            part = group[start : start + _PER_ENTRY]
            yield (
                f"{kind} {(_BAR if kind in _SPACED else ' ').join(one.value.text for one in part)}",
                part,
            )


def entry_values(entry: str, stored: Any) -> list[tuple[Value, Origin]]:
    """The values of an entry and where each comes from, whichever version of this program stored it."""
    kind, _, text = entry.partition(" ")
    if kind not in _WEIGHTS or not text:
        return []
    texts = [text] if kind in _ALONE else text.split(_BAR if kind in _SPACED else " ")
    if len(texts) == 1:
        return [(Value(kind, text), _origin(stored, kind))]
    items = (
        stored if isinstance(stored, list) and len(stored) == len(texts) else [None] * len(texts)
    )
    return [
        (Value(kind, one), _origin(item, kind))
        for one, item in zip(texts, items, strict=True)
        if one
    ]


def _origin(stored: Any, kind: str) -> Origin:
    if not isinstance(stored, list) or len(stored) < 2 or not isinstance(stored[1], int):
        return Origin((), _BY_ASSISTANT + _WEIGHTS[kind])
    ids, rank, times = stored[0], stored[1], stored[2] if len(stored) > 2 else 1
    if not isinstance(ids, list):
        ids = [ids] if ids else []
    message_ids = tuple([one for one in ids[:2] if isinstance(one, str)])
    return Origin(
        message_ids,
        max(0, min(rank, _MAX_RANK)),
        max(1, min(times, 99)) if isinstance(times, int) else 1,
    )


def _carried(previous: PreviousSummary | None) -> dict[str, _Standing]:
    standings: dict[str, _Standing] = {}
    if previous is None:
        return standings
    stored = previous.sections.get("provenance")
    known = (
        stored
        if isinstance(stored, list) and len(stored) == len(previous.ledger)
        else [None] * len(previous.ledger)
    )
    for entry, item in zip(previous.ledger, known, strict=True):
        for value, origin in entry_values(entry, item):
            standings.setdefault(
                value.text,
                _Standing(
                    value,
                    origin.rank,
                    origin.message_ids,
                    origin.times,
                    0,
                    is_new=False,
                    price=_price(value),
                ),
            )
    return standings


@dataclass(slots=True)
class _Memory:
    """What is known of values that have no place: a mark of each of the newest, how many marks were forgotten, and up to which message.

    `values` counts what is left out, which a path inside another one is not.
    """

    marks: dict[int, None]
    forgotten: int
    until: str
    values: int = 0

    @classmethod
    def of(cls, previous: PreviousSummary | None) -> "_Memory":
        """What the version before left."""
        stored = previous.sections.get("left_out") if previous else None
        given: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
        forgotten, marks, until = given.get("forgotten"), given.get("marks"), given.get("until")
        if not isinstance(forgotten, int) or isinstance(forgotten, bool):
            forgotten = _told_as_left_out(previous.ledger if previous else ())
        try:
            packed = b64decode(marks, validate=True) if isinstance(marks, str) else b""
        except (NotBase64, ValueError):
            packed = b""
        found = (
            int.from_bytes(packed[at : at + _MARK_BYTES], "big")
            for at in range(0, len(packed), _MARK_BYTES)
        )
        return cls(dict.fromkeys(found), max(0, forgotten), until if isinstance(until, str) else "")

    def settle(self, known: Collection[_Standing], kept: Sequence[_Standing]) -> None:
        """Mark what has no place now, and take the marks from what has."""
        if not self.marks and len(kept) == len(known):
            self.values = self.forgotten
            return
        texts = {one.value.text for one in kept}
        for one in known:
            if one.value.text in texts:
                self.marks.pop(_mark(one.value.text), None)
            else:
                self.marks[_mark(one.value.text)] = None
        forgotten = len(self.marks) - MAX_MARKS
        if forgotten > 0:
            self.forgotten += forgotten
            self.marks = dict.fromkeys(list(self.marks)[forgotten:])
        inside = {_mark(part) for part in {part for one in kept for part in one.parts}}
        self.values = self.forgotten + len(self.marks.keys() - inside)

    def as_json(self) -> dict[str, Any]:
        """As it is stored; the newest marks."""
        packed = b"".join(mark.to_bytes(_MARK_BYTES, "big") for mark in self.marks)
        return {
            "forgotten": self.forgotten,
            "marks": b64encode(packed).decode("ascii"),
            "until": self.until,
        }


def _told_as_left_out(ledger: Sequence[str]) -> int:
    for entry in reversed(ledger):
        if entry.startswith("left_out "):
            number = entry.split(" ", 2)[1]
            return int(number) if number.isdecimal() and len(number) < 10 else 0
    return 0


def _mark(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass")) & 0xFFFFFF


def _named(source: Source) -> Iterator[tuple[Value, int]]:
    """The values of one message, each with the rank its speaker gives it."""
    is_long = len(source.text) > _LONG_CHARACTERS
    for value in values_in(source.text)[:_MAX_PER_MESSAGE]:
        if source.role == "user":
            rank = _BY_TOOL if is_long and value.kind in _SOFT_KINDS else _BY_USER
        elif source.role == "tool":
            if value.kind in _VAGUE_KINDS or (
                value.kind == "id" and len(_DIGIT.findall(value.text)) < 2
            ):
                continue
            rank = _BY_ERROR if source.is_error else _BY_TOOL
        else:
            rank = _BY_ASSISTANT
        yield value, rank + _WEIGHTS[value.kind]
    for name, arguments in source.calls:
        for command in commands_of(name, arguments):
            yield Value("command", command), _BY_CALL + _WEIGHTS["command"]
        for key, text in argument_texts(arguments):
            if (
                key.lower().endswith("id")
                and 3 < len(text) <= 64
                and text.isprintable()
                and " " not in text
            ):
                yield Value("id", text), _BY_CALL + _WEIGHTS["id"]
            else:
                for value in values_in(text)[:_MAX_PER_MESSAGE]:
                    yield value, _BY_CALL + _WEIGHTS[value.kind]


def _note(
    standings: dict[str, _Standing],
    memory: _Memory,
    value: Value,
    rank: int,
    message_id: str,
    order: int,
) -> None:
    standing = standings.get(value.text)
    if standing is None:
        times = 2 if _mark(value.text) in memory.marks else 1
        standings[value.text] = _Standing(
            value, rank, (message_id,), times, order, is_new=True, price=_price(value)
        )
        return
    if not standing.is_new:
        standing.is_new = True
        standing.times = min(99, standing.times + 1)
    if standing.order != order:
        most = _MAX_RANK if max(standing.rank, rank) >= _BY_USER else _BY_USER - 1
        standing.rank = min(most, max(standing.rank, rank) + _PER_REPEAT)
        standing.message_ids = (*standing.message_ids[:1], message_id)
        standing.order = order
    else:
        standing.rank = max(standing.rank, rank)


def _note_files(standings: dict[str, _Standing], files: Iterable[FileChange]) -> None:
    for change in files:
        if _BAR in change.path or not change.path.isprintable():
            continue
        rank = (_BY_CALL if change.action == "modified" else _BY_TOOL) + _WEIGHTS[change.action]
        standing = standings.get(change.path)
        if standing is not None:
            action = (
                "modified" if "modified" in (standing.value.kind, change.action) else change.action
            )
            standing.value = Value(action, change.path)
            standing.rank = max(standing.rank, rank)
        elif change.message_id:
            value = Value(change.action, change.path)
            standings[change.path] = _Standing(
                value, rank, (change.message_id,), 1, 0, is_new=True, price=_price(value)
            )
