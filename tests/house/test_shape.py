"""The shape of the source keeps the targets that it has reached; see docs/decisions/0025."""

import ast
from collections.abc import Iterator

from tests.house.__main__ import beyond_targets, figures, modules
from tests.house.journey import ROOT, stages

OPEN = {"statements"}
"""The figures whose targets are not reached yet; `make house` prints them."""


def test_no_figure_that_reached_its_target_leaves_it() -> None:
    everything = modules()
    source = [module for module in everything if "/testing/" not in module.path]

    missed = {name: now for name, now, _, is_good in figures(everything, source) if not is_good}

    assert {name: now for name, now in missed.items() if name not in OPEN} == {}
    assert [*beyond_targets(source)] == []


def test_what_contributors_read_to_follow_an_event_exists_and_is_little() -> None:
    """`make house` checks in a running system that it runs in this order."""
    read = stages()

    assert [
        stage for stage in read if stage.name not in _functions((ROOT / stage.path).read_text())
    ] == []
    assert len({stage.path for stage in read}) <= 25
    assert 30 <= len(read) <= 50


def _functions(text: str) -> set[str]:
    return set(_names(ast.parse(text)))


def _names(scope: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _names(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
