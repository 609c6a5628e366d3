"""The tokenizer as its makers publish it, to compare ours with; its vocabulary comes with litellm."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import tiktoken

CACHE = "TIKTOKEN_CACHE_DIR"


def vocabularies() -> Path:
    """The folder of vocabulary files."""
    spec = find_spec("litellm")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "litellm_core_utils", "tokenizers")


@cache
def reference() -> Callable[[str], int]:
    """What counts the o200k_base tokens of a text, slowly."""
    with _offline():
        encode = tiktoken.get_encoding("o200k_base").encode_ordinary
    return lambda text: len(encode(text))


@contextmanager
def _offline() -> Generator[None]:
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(vocabularies())
    try:
        yield
    finally:
        os.environ.pop(CACHE)
        if before is not None:
            os.environ[CACHE] = before
