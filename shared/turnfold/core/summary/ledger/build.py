"""Build the ledger of a version: the exact values that stand next to its text.

A ledger carries the values of the previous version on, adds those of the new messages, and keeps
the best that fit. It is the same for every writer of the text, a model or code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnfold.core.summary.ledger.candidates import Origin
from turnfold.core.summary.ledger.collect import add_files, add_messages, carried_candidates
from turnfold.core.summary.ledger.entries import group_into_entries
from turnfold.core.summary.ledger.left_out import LeftOut, left_out_entry
from turnfold.core.summary.ledger.ranking import best_entries, tokens_of
from turnfold.core.summary.sources import PreviousSummary, Source
from turnfold.core.summary.tool_calls.actions import FileChange
from turnfold.core.text.lines import printable
from turnfold.core.text.values import REQUEST_CHARACTERS, Value


@dataclass(frozen=True, slots=True)
class Ledger:
    """Exact values, best first, within the token limit.

    `origins` runs parallel to `entries`: the origin of each value of the entry, in order. The
    entries of the request and of the left-out count have none. `left_out` is the record that the
    next version needs.
    """

    entries: tuple[str, ...]
    origins: tuple[tuple[Origin, ...], ...]
    left_out: Mapping[str, Any]

    @property
    def provenance(self) -> list[Any]:
        """The origins as a version stores them.

        The item of an entry with one value is `[[message ids], rank, times]`. The item of an entry
        with several values is a list of such items.
        """
        return [_origins_as_json(origins) for origins in self.origins]


def _origins_as_json(origins: Sequence[Origin]) -> Any:
    items = [[list(origin.message_ids), origin.rank, origin.times] for origin in origins]
    return items[0] if len(items) == 1 else items


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
    """Merge the previous ledger with the values of these messages, and keep what fits.

    The newest open request is the first entry, verbatim, and is never left out. The last entry
    counts the values that did not fit. `lines` are decisions, constraints and errors, verbatim,
    each with its message id. The messages that the previous version ends with change nothing.
    """
    candidates = carried_candidates(previous)
    left_out = LeftOut.of(previous)
    # The same messages may come twice. Their values have not come back for that reason.
    is_repeated = bool(sources) and left_out.until == sources[-1].message_id
    if not is_repeated:
        left_out.until = sources[-1].message_id if sources else left_out.until
        add_messages(candidates, left_out, sources, lines)
        add_files(candidates, files)
    request_entries = _request_entries(newest_request)
    room_tokens = _room_tokens(request_entries, max_tokens, count)
    chosen = list(group_into_entries(candidates.values()))
    if not (is_repeated and tokens_of(chosen, count) <= room_tokens):
        chosen = best_entries(candidates.values(), room_tokens, count)
    left_out.update(candidates.values(), [candidate for _, group in chosen for candidate in group])
    entries = [*request_entries, *(text for text, _ in chosen)]
    origins: list[tuple[Origin, ...]] = [() for _ in request_entries]
    origins += [tuple([candidate.origin for candidate in group]) for _, group in chosen]
    if left_out.count:
        entries.append(left_out_entry(left_out.count))
        origins.append(())
    return Ledger(tuple(entries), tuple(origins), left_out.as_json())


def _request_entries(newest_request: str | None) -> list[str]:
    request = printable(newest_request or "").strip()[:REQUEST_CHARACTERS]
    return [f"request {request}"] if request else []


def _room_tokens(
    request_entries: Sequence[str], max_tokens: int, count: Callable[[str], int]
) -> int:
    """Return the tokens for values. The count of left-out values is reserved at its longest."""
    reserved = (*request_entries, left_out_entry(999_999))
    return max(0, max_tokens - sum(count(entry) + 1 for entry in reserved))
