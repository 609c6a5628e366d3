"""No test compares a measured time with a limit: on a busy machine it would fail; benchmarks measure."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
CLOCKS = frozenset({"monotonic", "perf_counter", "process_time", "thread_time", "elapsed"})


def names_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def names_of_times(module: ast.Module) -> set[str]:
    """The clocks, and the names of what is computed from them: variables and functions."""
    times = set(CLOCKS)
    while True:
        found = set(times)
        for node in ast.walk(module):
            if isinstance(node, ast.Assign) and not times.isdisjoint(names_in(node.value)):
                found.update(name for target in node.targets for name in names_in(target))
            elif (
                isinstance(node, ast.Return)
                and node.value
                and not times.isdisjoint(names_in(node.value))
            ):
                found.update(
                    function.name
                    for function in ast.walk(module)
                    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                    and node in ast.walk(function)
                )
        if found == times:
            return times
        times = found


def limits_of_times(source: str) -> list[int]:
    """The lines of assertions that a time is short enough."""
    module = ast.parse(source)
    times = names_of_times(module)
    lines = []
    for node in ast.walk(module):
        if not isinstance(node, ast.Assert):
            continue
        for compared in ast.walk(node.test):
            if not isinstance(compared, ast.Compare):
                continue
            values = [compared.left, *compared.comparators]
            for short, operator, long in zip(values, compared.ops, values[1:], strict=False):
                lesser = short if isinstance(operator, ast.Lt | ast.LtE) else long
                if isinstance(
                    operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE
                ) and not times.isdisjoint(names_in(lesser)):
                    lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("began = time.monotonic()\nassert time.monotonic() - began < 2", [2]),
        (
            "def spent():\n    return process_time() - began\nassert any(spent() < 1 for _ in turns)",
            [3],
        ),
        ("assert 9 > answer.elapsed.total_seconds()", [1]),
        ("began = time.monotonic()\nwaited = time.monotonic() - began\nassert waited >= 0.4", []),
        ("while time.monotonic() < deadline:\n    assert tokens < 4", []),
    ],
)
def test_limits_of_times_are_found(source: str, lines: list[int]) -> None:
    assert limits_of_times(source) == lines


def test_no_test_asserts_that_a_time_is_short() -> None:
    modules = sorted(TESTS.rglob("test_*.py"))

    found = [
        f"{module.relative_to(TESTS)}:{line}"
        for module in modules
        for line in limits_of_times(module.read_text())
    ]

    assert len(modules) > 300
    assert found == []
