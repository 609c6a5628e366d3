"""The text of ledger entries: how values are grouped into entries, and read back from them.

An entry is the kind, a space, and the values as written in their messages. Modified files,
commands, errors, decisions, constraints and lines have an entry each, and so has every value that
the user stated. Other values share entries with values of their kind.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from turnfold.core.summary.ledger.candidates import MAX_RANK, MAX_TIMES, Candidate, Origin
from turnfold.core.text.values import KIND_WEIGHTS, RANK_BY_ASSISTANT, Value

LINE = "line"
"""The kind of a whole line that contains recurring names."""

BAR = "|"
"""The separator of values that may contain spaces. No value in the ledger may contain it."""

_VALUES_PER_ENTRY = 24
_ONE_PER_ENTRY = frozenset({"modified", "command", "error", "decision", "constraint", LINE})
_KINDS_WITH_SPACES = frozenset({"measure", "price", "date", "time", "phone", "read"})

LedgerEntry = tuple[str, list[Candidate]]
"""The text of an entry, and the values in it."""


def group_into_entries(kept: Iterable[Candidate]) -> Iterator[LedgerEntry]:
    """Yield the entries: values with an entry of their own first, then groups by kind."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in kept:
        kind = candidate.value.kind
        if candidate.is_stated or kind in _ONE_PER_ENTRY:
            yield f"{kind} {candidate.value.text}", [candidate]
        else:
            groups.setdefault(kind, []).append(candidate)
    for kind, group in groups.items():
        for start in range(0, len(group), _VALUES_PER_ENTRY):
            part = group[start : start + _VALUES_PER_ENTRY]
            texts = _separator(kind).join(candidate.value.text for candidate in part)
            yield f"{kind} {texts}", part


def entry_values(entry: str, stored: Any) -> list[tuple[Value, Origin]]:
    """Read the values of an entry and the origin of each.

    `stored` is the item of `provenance` for this entry, in any shape: an earlier release may have
    written it, and a promoted version may have none.
    """
    kind, _, text = entry.partition(" ")
    if kind not in KIND_WEIGHTS or not text:
        return []
    texts = [text] if kind in _ONE_PER_ENTRY else text.split(_separator(kind))
    if len(texts) == 1:
        return [(Value(kind, text), _read_origin(stored, kind))]
    is_parallel = isinstance(stored, list) and len(stored) == len(texts)
    items = stored if is_parallel else [None] * len(texts)
    return [
        (Value(kind, value_text), _read_origin(item, kind))
        for value_text, item in zip(texts, items, strict=True)
        if value_text
    ]


def _separator(kind: str) -> str:
    return BAR if kind in _KINDS_WITH_SPACES else " "


def _read_origin(stored: Any, kind: str) -> Origin:
    """Read `[message ids, rank, times]`. An unreadable origin ranks as if an assistant spoke."""
    if not isinstance(stored, list) or len(stored) < 2 or not isinstance(stored[1], int):
        return Origin((), RANK_BY_ASSISTANT + KIND_WEIGHTS[kind])
    ids, rank, times = stored[0], stored[1], stored[2] if len(stored) > 2 else 1
    if not isinstance(ids, list):
        ids = [ids] if ids else []
    return Origin(
        tuple([message_id for message_id in ids[:2] if isinstance(message_id, str)]),
        max(0, min(rank, MAX_RANK)),
        max(1, min(times, MAX_TIMES)) if isinstance(times, int) else 1,
    )
