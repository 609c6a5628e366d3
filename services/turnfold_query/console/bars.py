"""The drawing of tokens by day, one bar per day."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

HEIGHT = 100.0
LEAST = 1.5
"""The height of a bar of the smallest number that is not 0."""


class Bar(NamedTuple):
    """A day: its place, its height upward from the bottom, and what it tells."""

    x: int
    y: float
    height: float
    day: str
    tokens: int


def bars_of(days: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Draw days side by side, each one unit wide; the largest reaches the top."""
    most = max((day["tokens"] for day in days), default=0) or 1
    bars = []
    for place, day in enumerate(days):
        height = max(LEAST, round(HEIGHT * day["tokens"] / most, 2)) if day["tokens"] else 0.0
        bars.append(Bar(place, round(HEIGHT - height, 2), height, day["day"], day["tokens"]))
    return bars
