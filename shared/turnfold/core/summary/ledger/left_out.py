"""The record of values that did not fit into the ledger, so that they are recognized later.

A version stores a short checksum of each value that it left out. `build` reads the record of the
previous version, and stores the new one in the section `left_out`.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from turnfold.core.summary.ledger.candidates import Candidate
from turnfold.core.summary.sources import PreviousSummary

MAX_MARKS = 1_500
_MARK_BYTES = 3


def left_out_entry(number: int) -> str:
    """Write the last entry of a ledger, which counts the values that it lacks."""
    return f"left_out {number} more values, which search finds"


def mark_of(text: str) -> int:
    """Return the checksum of a value: 24 bits, so that 1,500 of them take 6 KB as Base64."""
    return crc32(text.encode("utf-8", "surrogatepass")) & 0xFFFFFF


@dataclass(slots=True)
class LeftOut:
    """The values that were left out: checksums of the newest, and a count of older ones.

    `marks` is ordered, oldest first. `until` is the last message that the version has read. `count`
    is the number of values left out; a path inside another path of the ledger is not left out.
    """

    marks: dict[int, None]
    forgotten: int
    until: str
    count: int = 0

    @classmethod
    def of(cls, previous: PreviousSummary | None) -> "LeftOut":
        """Read the record of the previous version. An unreadable record counts as empty."""
        stored = previous.sections.get("left_out") if previous else None
        record: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
        forgotten, until = record.get("forgotten"), record.get("until")
        # A boolean is an int in Python, and JSON from another writer may hold one.
        if not isinstance(forgotten, int) or isinstance(forgotten, bool):
            forgotten = 0
        marks = dict.fromkeys(_unpacked(record.get("marks")))
        return cls(marks, max(0, forgotten), until if isinstance(until, str) else "")

    def update(self, candidates: Collection[Candidate], kept: Sequence[Candidate]) -> None:
        """Add the candidates that were not kept, remove those that were, and count again."""
        if not self.marks and len(kept) == len(candidates):
            self.count = self.forgotten
            return
        kept_texts = {candidate.value.text for candidate in kept}
        for candidate in candidates:
            mark = mark_of(candidate.value.text)
            if candidate.value.text in kept_texts:
                self.marks.pop(mark, None)
            else:
                self.marks[mark] = None
        surplus = len(self.marks) - MAX_MARKS
        if surplus > 0:
            self.forgotten += surplus
            self.marks = dict.fromkeys(list(self.marks)[surplus:])
        path_parts = {part for candidate in kept for part in candidate.path_parts}
        self.count = self.forgotten + len(
            self.marks.keys() - {mark_of(part) for part in path_parts}
        )

    def as_json(self) -> dict[str, Any]:
        """Return the record as a version stores it."""
        packed = b"".join(mark.to_bytes(_MARK_BYTES, "big") for mark in self.marks)
        return {
            "forgotten": self.forgotten,
            "marks": b64encode(packed).decode("ascii"),
            "until": self.until,
        }


def decoded(stored: Any) -> bytes:
    """Return the bytes of a record that a version stores as Base64; none if it is unreadable."""
    try:
        return b64decode(stored, validate=True) if isinstance(stored, str) else b""
    except ValueError:
        return b""


def _unpacked(marks: Any) -> list[int]:
    packed = decoded(marks)
    return [
        int.from_bytes(packed[start : start + _MARK_BYTES], "big")
        for start in range(0, len(packed), _MARK_BYTES)
    ]
