"""Print the size and shape of the source, beside the targets: `python -m tests.house`.

Files, functions and lines beyond a target are listed below the table. See docs/decisions/0025.
"""

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from radon.complexity import cc_visit
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
SOURCE = ("shared", "services", "migrations")
STATEMENTS_AT_START = 20_370
"""Statements on the commit where the measuring began, without migrations, `testing/` and schemas of answers."""

LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60
COMPLEXITY = 15
COLUMNS = 100

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One source file: its path below the root, its text, and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def statements(self) -> int:
        return sum(isinstance(node, ast.stmt) for node in ast.walk(self.tree))

    def functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def comments(self) -> int:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(
            token.type == tokenize.COMMENT
            and not token.string.startswith(("# noqa", "# type:", "# fmt:"))
            for token in tokens
        )


def main() -> None:
    """Print the table; exit with 1 if a target is missed."""
    everything = modules()
    source = [module for module in everything if "/testing/" not in module.path]
    table = Table("figure", "now", "target")
    is_met = True
    for name, now, target, is_good in figures(everything, source):
        table.add_row(name, now, target, style=None if is_good else "red")
        is_met &= is_good
    console = Console(width=100)
    console.print(table)
    for line in beyond_targets(source):
        console.print(line, markup=False, highlight=False)
    sys.exit(not is_met)


def modules() -> list[Module]:
    """Read all files of the source."""
    paths = [path for root in SOURCE for path in sorted((ROOT / root).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return [Module(path, text, ast.parse(text)) for path, text in texts.items()]


def beyond_targets(source: list[Module]) -> Iterator[str]:
    """Name each file, function and line that is longer or more complex than its target."""
    for module in source:
        if module.lines > LINES_OF_A_FILE:
            yield f"{module.path}: {module.lines} lines"
        for node in module.functions():
            if length_of(node) > LINES_OF_A_FUNCTION:
                yield f"{module.path}:{node.lineno}: {node.name} has {length_of(node)} lines"
        for block in cc_visit(module.text):
            if block.letter in "FM" and block.complexity > COMPLEXITY:
                yield f"{module.path}:{block.lineno}: {block.name} has cc {block.complexity}"
        for number, line in enumerate(module.text.splitlines(), 1):
            if len(line) > COLUMNS:
                yield f"{module.path}:{number}: {len(line)} columns"


def length_of(node: Function) -> int:
    """Return the lines of a function."""
    return (node.end_lineno or 0) - node.lineno + 1


def figures(everything: list[Module], source: list[Module]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield each figure: its name, what it is now, its target, and whether that is reached."""
    schemas = ("contracts/answers/", "contracts/event_models.py", "contracts/notice_models.py")
    statements = sum(
        module.statements
        for module in source
        if not any(part in module.path for part in schemas)
        and not module.path.startswith("migrations")
    )
    most = round(STATEMENTS_AT_START * 0.95)
    yield "statements", f"{statements:,}", f"<= {most:,}", statements <= most

    testing = sum(module.lines for module in everything if "/testing/" in module.path)
    yield "lines in testing/", f"{testing:,}", "<= 600", testing <= 600

    folders = Counter(
        str(Path(module.path).parent)
        for module in source
        if "turnfold/core/" in module.path or "turnfold/store/" in module.path
        if not module.path.endswith("__init__.py")
    )
    folder, modules = folders.most_common(1)[0]
    short = folder.removeprefix("shared/turnfold/")
    yield "largest folder of core, store", f"{modules} ({short})", "<= 15", modules <= 15

    roots = [
        module.path
        for module in source
        if Path(module.path).parent == Path("shared/turnfold")
        and not module.path.endswith("__init__.py")
    ]
    yield "modules in the package root", str(len(roots)), "<= 4", len(roots) <= 4

    largest = max(source, key=lambda module: module.lines)
    name = f"{largest.lines} ({Path(largest.path).name})"
    yield "largest file, lines", name, f"<= {LINES_OF_A_FILE}", largest.lines <= LINES_OF_A_FILE

    lengths = {
        f"{node.name} in {module.path}:{node.lineno}": length_of(node)
        for module in source
        for node in module.functions()
    }
    longest = max(lengths, key=lambda name: lengths[name])
    yield (
        "longest function, lines",
        f"{lengths[longest]} ({longest})",
        f"<= {LINES_OF_A_FUNCTION}",
        lengths[longest] <= LINES_OF_A_FUNCTION,
    )
    median = statistics.median(lengths.values())
    ninth = statistics.quantiles(lengths.values(), n=10)[-1]
    yield (
        "function lines, median and p90",
        f"{median:.0f}, {ninth:.0f}",
        "8, 22",
        median <= 8 and ninth <= 22,
    )

    blocks = [
        (block.complexity, f"{block.name} in {Path(module.path).name}")
        for module in source
        for block in cc_visit(module.text)
        if block.letter in "FM"
    ]
    worst = max(blocks)
    above = sum(complexity > COMPLEXITY for complexity, _ in blocks)
    yield (
        "radon cc, highest",
        f"{worst[0]} ({worst[1]})",
        f"<= {COMPLEXITY}",
        worst[0] <= COMPLEXITY,
    )
    yield "functions above cc 15", str(above), "0", above == 0

    classes = Counter(
        node.name
        for module in everything
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    )
    repeated = [name for name, count in classes.items() if count > 1]
    yield (
        "class names used more than once",
        f"{len(repeated)} {', '.join(repeated)[:40]}",
        "0",
        not repeated,
    )

    comments = sum(module.comments() for module in source)
    share = comments / sum(module.lines for module in source)
    yield "comment lines", f"{share:.1%}", "about 2%", 0.015 <= share <= 0.03

    long = sum(len(line) > COLUMNS for module in source for line in module.text.splitlines())
    yield "lines over 100 columns", f"{long:,}", "0", long == 0

    words = sum(len(path.read_text().split()) for path in (ROOT / "docs").glob("*.md"))
    yield "words of docs/*.md", f"{words:,}", "<= 22,000", words <= 22_000


if __name__ == "__main__":
    main()
