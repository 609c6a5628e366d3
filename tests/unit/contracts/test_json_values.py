"""The faster reader of JSON, and the standard library's beside it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.contracts.json_values import json_object, read_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=20
)
EDGES = [
    b"", b"{", b"[1, 2", b'{"a": 1,}', b"nul", b'"\xff"', b'"\x01"', b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"),
    b'"\\ud800"', b'"\\ud83d\\ude00 \\u0000"', b'{"a": 1, "a": 2}', b" [1]\n", b"1 2", b"NaN", b"-Infinity", b"1e400",
    b"-0", b"-0.0", b"5e-324", b"2.2250738585072011e-308", b"123456789012345678901234567890", b"9" * 5_000,
    b"[" * 300 + b"]" * 300, b"[" * 100_000,
]  # fmt: skip


def outcome(read: Callable[[bytes], Any], data: bytes) -> tuple[object, str]:
    """The value with its type, by its text, or the error that was raised."""
    try:
        value = read(data)
    except (ValueError, RecursionError) as error:
        return type(error), str(error)
    return type(value), repr(value)


@given(VALUES, st.booleans())
def test_values_are_those_of_the_standard_library(value: Any, is_ascii: bool) -> None:
    written = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")

    assert outcome(read_json, written) == outcome(json.loads, written)


@pytest.mark.parametrize("data", EDGES, ids=lambda data: repr(data[:12]))
def test_edges_and_errors_are_those_of_the_standard_library(data: bytes) -> None:
    assert outcome(read_json, data) == outcome(json.loads, data)


@pytest.mark.parametrize("text", ["{}", '{"a": "\\ud800"}', '{"a": "\ud800"}'])
def test_an_object_is_read_from_a_text(text: str) -> None:
    assert json_object(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000])
def test_what_is_no_object_gives_none(text: str) -> None:
    assert json_object(text) is None
