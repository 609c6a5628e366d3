"""The blocks of code in the pages of the documentation, and what the comment before each says of it.

- `run: prints "…"`: it runs by itself, against a system that other blocks use too
- `file: NAME`, `step: prints "…"`: it is a file of a walk, or commands of it, in the order of the page
- `start: prints "…"`: a step that goes on until the end of the walk
- `not run: REASON`: no test can run it
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(
    r'^(?P<indent> *)(?:<!-- (?P<kind>run|file|step|start|not run): (?:prints "(?P<told>[^\n]+)"|'
    r"(?P<name>[^\n]+)) -->\n *)?```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
WALKED = ("file", "step", "start")


class Block(NamedTuple):
    """A block of a page: `told` is among what it prints, `name` is its file or why it is not run."""

    page: str
    kind: str
    told: str
    name: str
    language: str
    code: str


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in its order."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(
            page.name,
            match["kind"] or "",
            match["told"] or "",
            match["name"] or "",
            match["language"],
            textwrap.dedent(match["code"]),
        )
