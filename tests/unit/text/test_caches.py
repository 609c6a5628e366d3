"""An erasure leaves no copy of a text in the caches of functions."""

import ast
import asyncio
import gc
from pathlib import Path
from weakref import ref

import pytest

import turnfold
from turnfold.core.text.caches import cached_text, forget_texts
from turnfold.process import memory

ROOT = Path(turnfold.__file__).parents[2]
WITHOUT_TEXTS = {
    "cli/up.py": "a logger",
    "client/token_counter.py": "the counter",
    "turnfold_query/asyncapi.py": "the description",
    "contracts/events.py": "ids as tokens of a subject",
    "core/eviction/budgets.py": "numbers",
    "core/eviction/reported_limits.py": "numbers by model",
    "core/policy/meta.py": "beginnings that policies name",
    "core/text/caches.py": "the decorator itself",
    "model_info/context_windows.py": "sizes of models",
    "operations/policy.py": "policies",
    "operations/query/planning.py": "policies",
    "store/database/message_rows.py": "ids of compactions",
    "store/query/recalled_messages.py": "minutes",
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


@pytest.mark.proves("A6", "X9")
async def test_a_process_of_a_worker_forgets_without_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver, a summarizer and the worker beside them hold no connection for signals."""
    looked = asyncio.Event()
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(memory, "forget_texts", looked.set)
    forgetting = asyncio.create_task(memory.forget_and_return_memory())

    async with asyncio.timeout(30):
        await looked.wait()
    forgetting.cancel()


@pytest.mark.proves("A6", "X9")
def test_every_process_that_caches_texts_forgets_them() -> None:
    """The services are told of an erasure, or forget by themselves."""
    beside = {
        "services/turnfold_worker/app.py": "forget_and_return_memory",
        "services/turnfold_worker/receiver/child.py": "forget_and_return_memory",
        "shared/turnfold/models/child.py": "forget_and_return_memory",
        "services/turnfold_query/app.py": "erasure_follower(",
        "services/turnfold_query/lane/child.py": "erasure_follower(",
    }
    with_memory = {
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("shared/**/*.py"), *ROOT.glob("services/**/*.py")]
        if "import forget_and_return_memory" in (text := path.read_text())
        or "import return_freed_memory" in text
    }

    assert with_memory == beside.keys()
    assert all(name in (ROOT / path).read_text() for path, name in beside.items())
