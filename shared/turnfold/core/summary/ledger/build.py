"""Build the ledger of a version: the exact values next to its text.

A ledger carries over the values of the previous version, adds those of the new messages, and keeps
the best that fit. It is the same for every writer of the text, a model or code.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple

from turnfold.core.recall.quotes import NameNumber, number_of_name, numbers_of_names
from turnfold.core.summary.ledger.candidates import Candidate
from turnfold.core.summary.ledger.collect import add_files, add_messages, carried_candidates
from turnfold.core.summary.ledger.entries import LINE, LedgerEntry, group_into_entries
from turnfold.core.summary.ledger.left_out import LeftOut, left_out_entry
from turnfold.core.summary.ledger.lines import (
    best_lines,
    read_lines,
    texts_of_lines,
    without_repeated,
)
from turnfold.core.summary.ledger.name_uses import COMMON, NameUses
from turnfold.core.summary.ledger.ranking import best_entries, tokens_of
from turnfold.core.summary.redaction import redact
from turnfold.core.summary.sources import REQUEST_PREFIX, Source, SummaryJob, word_count
from turnfold.core.summary.tool_calls.actions import FileChange
from turnfold.core.text.lines import printable
from turnfold.core.text.values import REQUEST_CHARACTERS, Value

VALUES_SHARE: Final = 0.4
"""The share of a ledger that values without their line get even if lines are worth more."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Exact values, best first, within the token limit.

    `provenance` runs parallel to `entries`: the origins of the values of each entry, as a version
    stores them. The entries of the request and of the left-out count have none. `left_out` and
    `names` are the records that the next version needs.
    """

    entries: tuple[str, ...]
    provenance: list[Any]
    left_out: Mapping[str, Any]
    names: str


def _origins_as_json(group: Sequence[Candidate]) -> Any:
    """Return `[[message ids], rank, times]` for one value, and a list of such items for others."""
    origins = [candidate.origin for candidate in group]
    items = [[list(origin.message_ids), origin.rank, origin.times] for origin in origins]
    return items[0] if len(items) == 1 else items


def build_ledger(
    job: SummaryJob,
    sources: Sequence[Source],
    files: Sequence[FileChange],
    *,
    lines: Sequence[tuple[Value, str]],
    count: Callable[[str], int],
) -> Ledger:
    """Merge the previous ledger of a job with the values of its messages, and keep what fits.

    `sources` are the messages without secrets. The newest open request is the first entry, verbatim
    but for secrets, and is never left out. The last entry counts the values that did not fit.
    `lines` are decisions, constraints and errors, verbatim, each with its message id. Names that
    following messages use are worth more. The messages that the previous version ends with change
    nothing.
    """
    found = _collected(job, sources, files, lines)
    request_entries = _request_entries(job.newest_request)
    if job.ledger_words:
        count = _with_words(count, job.ledger_max_tokens / job.ledger_words)
    # A limit in words does not count the request, one in tokens does.
    reserved = () if job.ledger_words else request_entries
    room_tokens = _room_tokens(reserved, job.ledger_max_tokens, count)
    values, all_lines = found.values.values(), found.lines.values()
    chosen = list(group_into_entries([*without_repeated(values, all_lines), *all_lines]))
    if not (found.is_repeated and tokens_of(chosen, count) <= room_tokens):
        chosen = _best_of(values, all_lines, found.uses, room_tokens, count)
    left_out = found.left_out
    left_out.update(values, _represented(values, chosen))
    entries = [*request_entries, *(text for text, _ in chosen)]
    provenance = [*([] for _ in request_entries), *(_origins_as_json(group) for _, group in chosen)]
    if left_out.count:
        entries.append(left_out_entry(left_out.count))
        provenance.append([])
    return Ledger(tuple(entries), provenance, left_out.as_json(), found.uses.as_json())


class _Collected(NamedTuple):
    """The values and lines that may enter a ledger, by their text, and the records of versions.

    `is_repeated` says that these are the messages of the previous version again, so that their
    values do not count as recurring.
    """

    values: dict[str, Candidate]
    lines: dict[str, Candidate]
    left_out: LeftOut
    uses: NameUses
    is_repeated: bool


def _collected(
    job: SummaryJob,
    sources: Sequence[Source],
    files: Sequence[FileChange],
    verbatim: Sequence[tuple[Value, str]],
) -> _Collected:
    """Collect the candidates from the previous version and the messages."""
    values, lines = carried_candidates(job.previous)
    left_out, uses = LeftOut.of(job.previous), NameUses.of(job.previous)
    if sources and left_out.until == sources[-1].message_id:
        return _Collected(values, lines, left_out, uses, is_repeated=True)
    if sources:
        left_out.until = sources[-1].message_id
    add_messages(values, left_out, sources, verbatim)
    add_files(values, files)
    for text in [text for text, candidate in values.items() if _is_common(candidate)]:
        del values[text]
    if uses or any(source.calls for source in sources):
        lines |= read_lines(sources, uses)
        uses.add_following(job.following)
    return _Collected(values, lines, left_out, uses, is_repeated=False)


def _is_common(candidate: Candidate) -> bool:
    """Return whether a value stands in every project, and neither the user nor a file names it."""
    is_named = candidate.is_stated or candidate.value.kind in ("modified", "read")
    return not is_named and number_of_name(candidate.value.text) in COMMON


def _represented(values: Collection[Candidate], chosen: Sequence[LedgerEntry]) -> list[Candidate]:
    """Return the values in an entry, or in a line among the entries."""
    kept = [candidate for _, group in chosen for candidate in group]
    texts = {candidate.value.text for candidate in kept}
    texts |= texts_of_lines(candidate for candidate in kept if candidate.value.kind == LINE)
    return [candidate for candidate in values if candidate.value.text in texts]


def _best_of(
    values: Collection[Candidate],
    lines: Collection[Candidate],
    uses: NameUses,
    room_tokens: int,
    count: Callable[[str], int],
) -> list[LedgerEntry]:
    """Return the entries of the best values and lines that fit.

    Values in no chosen line take what the lines leave, and at least their share. If names are
    counted, only values that are likely used again have an entry.
    """
    weights = uses.weights()
    for candidate in values:
        candidate.use_weight = weights.get(number_of_name(candidate.value.text), 0.0)
    if uses:
        values = [candidate for candidate in values if candidate.is_likely_used]
    room_of_values = int(VALUES_SHARE * room_tokens) if lines else room_tokens
    entries = best_entries(values, room_of_values, count)
    room_of_lines = room_tokens - tokens_of(entries, count) - 1
    known = _names_with_entries(entries)
    kept = best_lines(lines, weights, room_of_lines, known) if lines else []
    while kept:
        told_by_lines = list(group_into_entries(kept))
        tokens = tokens_of(told_by_lines, count)
        if tokens <= room_of_lines:
            others = without_repeated(values, kept)
            entries = best_entries(others, room_tokens - tokens - 1, count)
            together = [*(candidate for _, group in entries for candidate in group), *kept]
            chosen = list(group_into_entries(together))
            if tokens_of(chosen, count) <= room_tokens:
                return chosen
        # In proportion to the excess, but always one line less, so that the loop ends.
        kept = kept[: min(len(kept) - 1, int(len(kept) * room_of_lines / max(tokens, 1)))]
    return entries if not lines else best_entries(values, room_tokens, count)


def _names_with_entries(entries: Sequence[LedgerEntry]) -> frozenset[NameNumber]:
    """Return the numbers of names that keep their entries, so that a line with them saves nothing.

    They are those of modified files and of values that the user stated.
    """
    own = [group[0] for _, group in entries if group[0].is_stated or group[0].is_modified]
    return numbers_of_names("\n".join(candidate.value.text for candidate in own)) | {
        number_of_name(part) for candidate in own for part in candidate.path_parts
    }


def _with_words(count: Callable[[str], int], tokens_per_word: float) -> Callable[[str], int]:
    """Return a counter in which each word takes at least this many tokens."""
    return lambda text: max(count(text), ceil(tokens_per_word * word_count(text)))


def _request_entries(newest_request: str | None) -> list[str]:
    request = printable(redact(newest_request or "")).strip()[:REQUEST_CHARACTERS]
    return [REQUEST_PREFIX + request] if request else []


def _room_tokens(
    request_entries: Sequence[str], max_tokens: int, count: Callable[[str], int]
) -> int:
    """Return the tokens for values. The count of left-out values is reserved at its longest."""
    reserved = (*request_entries, left_out_entry(999_999))
    return max(0, max_tokens - sum(count(entry) + 1 for entry in reserved))
