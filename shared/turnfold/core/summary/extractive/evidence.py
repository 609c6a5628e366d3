"""Evidence: what code extracts from messages for every summary, also one that a model writes.

It consists of the files that tool calls touched, and the ledger of exact values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from turnfold.core.summary.extractive.lines import SummaryLine
from turnfold.core.summary.extractive.picking import picked_lines
from turnfold.core.summary.ledger.build import Ledger, build_ledger
from turnfold.core.summary.sources import Draft, Source, SummaryJob
from turnfold.core.summary.tool_calls.actions import FileChange, file_changes, stored_changes
from turnfold.core.text.lines import clip
from turnfold.core.text.values import Value

_VERBATIM_CHARACTERS = 140
_LEDGER_KINDS: Mapping[str, str] = {
    "decisions": "decision",
    "constraints": "constraint",
    "errors": "error",
}


class Evidence(NamedTuple):
    """The touched files and the ledger of a version."""

    files: tuple[FileChange, ...]
    ledger: Ledger

    @property
    def has_known_files(self) -> bool:
        """Whether calls of tools show any of the files."""
        return not all(change.is_claimed for change in self.files)


def collect_evidence(
    job: SummaryJob,
    sources: Sequence[Source],
    picked: Sequence[SummaryLine] | None = None,
    *,
    count: Callable[[str], int],
) -> Evidence:
    """Read files and exact values from messages, and merge them with the previous version's.

    `sources` must be redacted already. `picked` saves picking their lines again.
    """
    if picked is None:
        picked = tuple(picked_lines(sources))
    previous_files = job.previous.sections.get("file_changes") if job.previous else None
    files = file_changes(previous_files, sources)
    lines = list(_verbatim_lines(picked, sources))
    return Evidence(files, build_ledger(job, sources, files, lines=lines, count=count))


def with_evidence(draft: Draft, evidence: Evidence) -> Draft:
    """Return the draft with the files and the ledger that code read.

    Files that only a model names are marked, so that no later version takes them for known.
    """
    files = evidence.files
    if "file_changes" in draft.sections and not evidence.has_known_files:
        stated = stored_changes(draft.sections["file_changes"])
        files = tuple([replace(change, is_claimed=True) for change in stated])
    sections = draft.sections | {
        "file_changes": [change.as_json() for change in files],
        "provenance": evidence.ledger.provenance,
        "left_out": dict(evidence.ledger.left_out),
        "names": evidence.ledger.names,
    }
    return replace(draft, sections=sections, ledger=evidence.ledger.entries)


def _verbatim_lines(
    picked: Iterable[SummaryLine], sources: Sequence[Source]
) -> Iterator[tuple[Value, str]]:
    """Yield decisions, constraints and errors that their message contains verbatim, with its id."""
    for line in picked:
        kind = _LEDGER_KINDS.get(line.section)
        if kind is not None:
            source = sources[line.order]
            # The mark of a cut stays: without its end, a sentence may say the opposite.
            text = clip(line.text, _VERBATIM_CHARACTERS)
            # A line may differ from its message by list marks or control characters.
            if (start := text.rstrip("…")) and start in source.text:
                yield Value(kind, text), source.message_id
