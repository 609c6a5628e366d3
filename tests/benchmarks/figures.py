"""Figures, their goals, and how both are printed."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from statistics import median

from rich.console import Console
from rich.table import Table

RATIO = "x"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `unit` is `x` for a ratio. A goal is a bound on it, and None where it is only shown.

    `benchmark` is set where the benchmark runs, unless the figure belongs to a part of it.
    """

    benchmark: str = field(default="", kw_only=True)
    what: str
    value: float
    unit: str
    _: KW_ONLY
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal holds; None without one."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    @property
    def goal(self) -> str:
        """The bound as a text."""
        bounds = [
            f"{sign} {_shown(bound)}"
            for sign, bound in (("<=", self.at_most), (">=", self.at_least))
            if bound is not None
        ]
        return ", ".join(bounds)


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some durations and their slow end, in milliseconds."""

    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """The spread of durations in seconds; at least one."""
        ordered = sorted(seconds)
        p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
        return cls(p50, p99)


def middle(values: Iterable[float]) -> float:
    """The median, or 0 of nothing."""
    found = list(values)
    return median(found) if found else 0.0


def show(figures: Sequence[Figure], console: Console) -> None:
    """One table a benchmark, its ratios first."""
    for name in dict.fromkeys(figure.benchmark for figure in figures):
        table = Table("measured", "value", "unit", "goal", "met", title=name, title_justify="left")
        table.columns[1].justify = "right"
        for figure in sorted(
            (one for one in figures if one.benchmark == name), key=lambda one: one.unit != RATIO
        ):
            met = {None: "", True: "yes", False: "NO"}[figure.is_met]
            table.add_row(figure.what, _shown(figure.value), figure.unit, figure.goal, met)
        console.print(table)


def as_json(figure: Figure) -> str:
    """A figure as one line."""
    return json.dumps(asdict(figure) | {"value": round(figure.value, 4), "is_met": figure.is_met})


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
