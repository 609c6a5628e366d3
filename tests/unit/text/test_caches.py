"""An erasure leaves no copy of a text in the caches of functions."""

import ast
import gc
from pathlib import Path
from weakref import ref

import pytest

import turnfold
from turnfold.core.text.caches import cached_text, forget_texts

ROOT = Path(turnfold.__file__).parents[2]
WITHOUT_TEXTS = {
    "cli/up.py": "a logger",
    "client/recovery.py": "sizes of models",
    "client/token_counter.py": "the counter",
    "turnfold_query/asyncapi.py": "the description",
    "contracts/events.py": "ids as tokens of a subject",
    "core/eviction/budgets.py": "numbers",
    "core/eviction/limits.py": "numbers by model",
    "core/summary/redaction.py": "patterns of the installation",
    "core/text/caches.py": "the decorator itself",
    "operations/policy.py": "policies",
    "operations/query/planning.py": "policies",
    "store/database/message_rows.py": "ids of compactions",
    "store/query/recall.py": "minutes",
    "turnfold_query/handlers.py": "ids of sessions",
}
"""Caches that an erasure may leave, and what they hold: nothing that anybody said."""


@pytest.mark.proves("X9")
def test_texts_are_cached_only_where_an_erasure_reaches() -> None:
    """A new cache is either emptied with all others, or listed here with what it holds."""
    users = set()
    for path in [*ROOT.glob("shared/**/*.py"), *ROOT.glob("services/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            is_name = isinstance(node, ast.Name | ast.Attribute)
            if is_name and ast.unparse(node).removeprefix("functools.") in ("lru_cache", "cache"):
                users.add(str(path.relative_to(ROOT)).removeprefix("shared/turnfold/"))

    assert {name.removeprefix("services/") for name in users} == WITHOUT_TEXTS.keys()


class Text(str):
    """A text that says whether it is still held."""

    __slots__ = ("__weakref__",)


@pytest.mark.proves("X9")
def test_forgetting_lets_go_of_arguments_and_results() -> None:
    @cached_text(8)
    def echoed(text: str) -> list[str]:
        return [text]

    said = Text("the secret")
    held = ref(said)
    echoed(said)
    del said
    gc.collect()
    assert held() is not None

    forget_texts()
    gc.collect()

    assert held() is None
