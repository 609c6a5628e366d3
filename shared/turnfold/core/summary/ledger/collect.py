"""Collect candidates for the ledger: from the previous version, from messages, and from files.

Candidates are kept in a dictionary by the text of their value. A text keeps the first kind
under which it is found, unless it becomes a file change.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from turnfold.core.summary.extractive.lines import is_slight
from turnfold.core.summary.ledger.candidates import (
    MAX_RANK,
    MAX_TIMES,
    MEASURE,
    Candidate,
    Origin,
    digit_count,
)
from turnfold.core.summary.ledger.entries import BAR, LINE, entry_values
from turnfold.core.summary.ledger.left_out import LeftOut, mark_of
from turnfold.core.summary.sentences import is_consent
from turnfold.core.summary.sources import PreviousSummary, Source
from turnfold.core.summary.tool_calls.actions import FileChange, commands_of
from turnfold.core.summary.tool_calls.arguments import argument_texts
from turnfold.core.text.values import (
    KIND_WEIGHTS,
    RANK_BY_ASSISTANT,
    RANK_BY_CALL,
    RANK_BY_ERROR,
    RANK_BY_TOOL,
    RANK_BY_USER,
    Value,
    values_in,
)
from turnfold.messages import SYSTEM_ROLES

_LONG_CHARACTERS = 4_000
_MAX_PER_MESSAGE = 400
_RANK_PER_REPEAT = 8
# The output of tools is full of these kinds, so tool results do not contribute them.
_VAGUE_KINDS = frozenset({"date", "time", "version", "number", "phone"})
# A long text of a user is usually pasted: the user does not state its numbers.
_SOFT_KINDS = _VAGUE_KINDS | {"measure", "price"}


def carried_candidates(
    previous: PreviousSummary | None,
) -> tuple[dict[str, Candidate], dict[str, Candidate]]:
    """Return the values of the previous version's ledger by text, and its lines.

    A value in a line is one of the values too, because the line may leave the ledger.
    """
    candidates: dict[str, Candidate] = {}
    lines: dict[str, Candidate] = {}
    if previous is None:
        return candidates, lines
    stored = previous.sections.get("provenance")
    provenance: list[Any] = [None] * len(previous.ledger)
    if isinstance(stored, list) and len(stored) == len(previous.ledger):
        provenance = stored
    for entry, item in zip(previous.ledger, provenance, strict=True):
        for value, origin in entry_values(entry, item):
            kept = lines if value.kind == LINE else candidates
            kept.setdefault(value.text, Candidate(value, *origin, is_new=False))
    for line in lines.values():
        for value in values_in(line.value.text):
            origin = Origin(line.message_ids, RANK_BY_TOOL + KIND_WEIGHTS[value.kind])
            candidates.setdefault(value.text, Candidate(value, *origin, is_new=False))
    return candidates, lines


def add_messages(
    candidates: dict[str, Candidate],
    left_out: LeftOut,
    sources: Sequence[Source],
    lines: Sequence[tuple[Value, str]],
) -> None:
    """Add the values that messages name, and `lines`: whole lines with the id of their message."""
    orders: dict[str, int] = {}
    for order, source in enumerate(sources, start=1):
        orders[source.message_id] = order
        for value, rank in values_with_ranks(source):
            _add(candidates, left_out, value, rank, source.message_id, order)
    for value, message_id in lines:
        rank = (RANK_BY_ERROR if value.kind == "error" else RANK_BY_USER) + KIND_WEIGHTS[value.kind]
        # Decisions that say what was decided come first, whatever was agreed to since.
        rank = RANK_BY_USER if _is_only_consent(value) else rank
        _add(candidates, left_out, value, rank, message_id, orders.get(message_id, 0))


def add_files(candidates: dict[str, Candidate], files: Iterable[FileChange]) -> None:
    """Add files that tools read or modified. A path that is a candidate already becomes one."""
    for change in files:
        # Bars separate the files of one entry, and each entry is one line.
        if change.is_claimed or BAR in change.path or not change.path.isprintable():
            continue
        rank = RANK_BY_CALL if change.action == "modified" else RANK_BY_TOOL
        rank += KIND_WEIGHTS[change.action]
        candidate = candidates.get(change.path)
        if candidate is not None:
            is_modified = "modified" in (candidate.value.kind, change.action)
            candidate.value = Value("modified" if is_modified else change.action, change.path)
            candidate.rank = max(candidate.rank, rank)
        elif change.message_id:
            # Without a message the file was carried over, and the ledger had no room for it before.
            value = Value(change.action, change.path)
            candidates[change.path] = Candidate(value, (change.message_id,), rank)


def _is_only_consent(value: Value) -> bool:
    """Return whether a decision is so short that it says no more than yes."""
    return value.kind == "decision" and is_slight(value.text) and is_consent(value.text)


def values_with_ranks(source: Source) -> Iterator[tuple[Value, int]]:
    """Yield the values of one message with their ranks: those of its text, then of its calls."""
    is_long = len(source.text) > _LONG_CHARACTERS
    for value in values_in(source.text)[:_MAX_PER_MESSAGE]:
        if source.role != "tool" or not _is_vague(value):
            yield value, _speaker_rank(source, value, is_long=is_long) + KIND_WEIGHTS[value.kind]
    for name, arguments in source.calls:
        for value in values_of_call(name, arguments):
            yield value, RANK_BY_CALL + KIND_WEIGHTS[value.kind]


def _speaker_rank(source: Source, value: Value, *, is_long: bool) -> int:
    if source.role in ("user", *SYSTEM_ROLES):
        return RANK_BY_TOOL if is_long and value.kind in _SOFT_KINDS else RANK_BY_USER
    if source.role == "tool":
        return RANK_BY_ERROR if source.is_error else RANK_BY_TOOL
    return RANK_BY_ASSISTANT


def _is_vague(value: Value) -> bool:
    """Return whether a value in the output of a tool identifies nothing by itself."""
    is_word = value.kind == "id" or (value.kind == MEASURE and "-" in value.text)
    return value.kind in _VAGUE_KINDS or (is_word and digit_count(value.text) < 2)


def values_of_call(name: str, arguments: str) -> Iterator[Value]:
    """Yield the values of a tool call, from its JSON arguments."""
    for command in commands_of(name, arguments):
        yield Value("command", command)
    for key, text in argument_texts(arguments):
        if _is_id(key, text):
            yield Value("id", text)
        else:
            yield from values_in(text)[:_MAX_PER_MESSAGE]


def _is_id(key: str, text: str) -> bool:
    """Return whether an argument is an id because of its name, whatever it looks like."""
    is_short = 3 < len(text) <= 64
    return key.lower().endswith("id") and is_short and text.isprintable() and " " not in text


def _add(
    candidates: dict[str, Candidate],
    left_out: LeftOut,
    value: Value,
    rank: int,
    message_id: str,
    order: int,
) -> None:
    """Add a value that a message names, or raise the rank of the candidate with the same text."""
    candidate = candidates.get(value.text)
    if candidate is None:
        # It was left out and recurs, so it is worth as much as one that the ledger kept.
        times = 2 if mark_of(value.text) in left_out.marks else 1
        candidates[value.text] = Candidate(value, (message_id,), rank, times, order)
        return
    if not candidate.is_new:
        candidate.is_new = True
        candidate.times = min(MAX_TIMES, candidate.times + 1)
    higher = max(candidate.rank, rank)
    # The same message names it again, which does not count as recurring.
    if candidate.order == order:
        candidate.rank = higher
        return
    # Recurrence alone must not turn it into a value that the user stated.
    highest = MAX_RANK if higher >= RANK_BY_USER else RANK_BY_USER - 1
    # Tools print the same sizes and durations again and again, which says nothing of their use.
    is_raised = value.kind != MEASURE and not _is_only_consent(value)
    candidate.rank = min(highest, higher + _RANK_PER_REPEAT * is_raised)
    # The first message that named it, and the newest.
    candidate.message_ids = (*candidate.message_ids[:1], message_id)
    candidate.order = order
