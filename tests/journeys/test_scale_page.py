"""The arithmetic of `docs/scale.md` is what its tables say."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
GIVEN = re.compile(
    r"^\| (?P<names>`\w+`(?:, `\w+`)*) \| [^|]+ \| (?P<values>[\d.,]+(?: ?, [\d.]+)*) \|$",
    re.MULTILINE,
)
COMPUTED = re.compile(
    r"^\| `(?P<name>\w+)` \| [^|]+ \| `(?P<formula>[\w\s.*/+()-]+)` \| (?P<value>[\d.,]+) \|$",
    re.MULTILINE,
)
TOLERANCE = 0.005
"""Values are told with three digits."""


def test_every_computed_value_follows_from_those_before_it() -> None:
    known: dict[str, float] = {}
    for given in GIVEN.finditer(PAGE):
        names, values = re.findall(r"\w+", given["names"]), given["values"].split(", ")
        known |= {name: _number(value) for name, value in zip(names, values, strict=True)}
    assert len(known) == 22

    rows = list(COMPUTED.finditer(PAGE))
    assert len(rows) == 22
    for row in rows:
        known[row["name"]] = eval(row["formula"], {"__builtins__": {}}, dict(known))
        assert known[row["name"]] == pytest.approx(_number(row["value"]), rel=TOLERANCE), row[
            "name"
        ]


def _number(text: str) -> float:
    return float(text.replace(",", ""))
