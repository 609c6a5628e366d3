"""The strip of a session: its messages as colored parts from left to right, with marks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

WIDTH = 1_000.0
"""The width of a strip in units of its drawing."""
LEAST = 1.5
THIN = 10.0
"""Parts narrower than this are drawn without lines between them."""
MARKS_MOST = 80


class Part(NamedTuple):
    """A part of the strip: its place, and the messages behind it."""

    x: float
    width: float
    state: str
    messages: int
    after_position: int

    @property
    def is_thin(self) -> bool:
        """Whether lines between parts like this would hide their color."""
        return self.width < THIN


class StripMark(NamedTuple):
    """A version or a restored compaction on the strip; `version` is None for the latter."""

    x: float
    version: int | None
    is_in_force: bool


class Strip(NamedTuple):
    """The drawing of a session."""

    parts: Sequence[Part]
    marks: Sequence[StripMark]


def strip_of(timeline: Mapping[str, Any]) -> Strip:
    """Draw the timeline of a session."""
    total = timeline["messages"] or 1
    parts: list[Part] = []
    seen = 0
    for part in timeline["parts"]:
        parts.append(
            Part(
                x=round(WIDTH * seen / total, 2),
                width=round(max(LEAST, WIDTH * part["messages"] / total), 2),
                state=part["state"],
                messages=part["messages"],
                after_position=part["first_position"] - 1,
            )
        )
        seen += part["messages"]
    return Strip(parts, _marks(timeline, parts))


def _marks(timeline: Mapping[str, Any], parts: Sequence[Part]) -> list[StripMark]:
    in_force = timeline["in_force"]
    marks = [
        StripMark(
            _place(parts, version["last_position"]),
            version["version"],
            version["version"] == in_force,
        )
        for version in timeline["versions"]
    ]
    marks += [
        StripMark(_place(parts, compaction["last_position"]), None, is_in_force=False)
        for compaction in timeline["compactions"]
        if compaction["restored_at"] is not None and compaction["last_position"] is not None
    ]
    marks.sort(key=lambda mark: mark.x)
    # The last of many: marks that touch each other tell nothing.
    kept = [mark for mark in marks if mark.is_in_force] + marks[-MARKS_MOST:]
    return sorted(set(kept), key=lambda mark: mark.x)


def _place(parts: Sequence[Part], position: int) -> float:
    """Return the end of the part that holds a position."""
    before = [part for part in parts if part.after_position < position]
    return round(min(before[-1].x + before[-1].width, WIDTH), 2) if before else 0.0
