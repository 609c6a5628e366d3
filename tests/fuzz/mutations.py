"""Bytes like those of a corpus, and wrong in the ways that break readers; everything follows from the `Random` handed in."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

LONGEST = 16_384
NESTING = 3_000

TOKENS = (
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"0.1e-7", b"9" * 30, b"1" + b"0" * 400, b"-" + b"9" * 5_000, b"9223372036854775808",
    b'""', b"[]", b"{}", b"[[]]", b'{"a":{"a":[]}}', b'"a"', b"1", b'["tool"]', b'{"role":[]}', b'{"type":{}}',
    b"\\u0000", b"\\ud800", b"\\udfff\\ud800", b"\\u202e", b"\\", b"\x00", b"\x1b[2J", b"\x7f", b"\r\n", b"\xe2\x80\xa8", b"\xef\xbb\xbf",
    b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff\xfe", "é".encode(), "e\u0301".encode(), "漢字かな".encode(),
    "\U0001f469\u200d\U0001f680".encode(), "İıẞŉ".encode(), "\u0661".encode(),
    b"%00", b"%2F", b"%2e%2e", b"%", b"%zz", b"%C3%28", b"..", b".", b"*", b">", b"$JS.API.", b"#", b"#-1", b"#99999999999999999999",
    b"'", b"''--", b'" OR "', b" NEAR(", b":*", b" & | ! ( <->", b"</summary>", b"<think>", b"```json\n", b"{{", b"}}",
    b"9999-12-31T23:59:60+23:59", b"0001-01-01T00:00:00+14:00", b"2026-02-30T00:00:00Z",
)  # fmt: skip
"""What readers stumble over: numbers, escapes, encodings, brackets, and the syntax of what stands behind them."""


VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1.5, 1e300, 10**30, -(10**400), "", " ", "\0", "\ud800", "\x1b[2J", "e\u0301", "x" * 3_000, "a\n" * 40, "[]", "{", "NaN", "tool", "user",
    [], {}, [[]], [None], ["a"], [{}], {"": ""}, {"type": "text"}, {"type": []}, {"type": "text", "text": {}}, {"role": "user"}, {"id": "a", "function": None},
    {"type": "image_url", "image_url": "data:image/png;base64,"}, {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1e999]"}},
)  # fmt: skip
"""What stands in the place of a value, in something that remains JSON."""


def mutated(random: Random, corpus: Sequence[bytes]) -> bytes:
    """One of a corpus, changed one to five times; one in twenty is noise alone, and half of what is JSON remains so."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(64))
    data = random.choice(corpus)
    if random.random() < 0.5:
        try:
            return _with_odd_values(random, json.loads(data))
        except ValueError:
            pass
    for _ in range(random.randint(1, 5)):
        data = random.choice(MUTATIONS)(random, data, corpus)[:LONGEST]
    return data


def _with_odd_values(random: Random, value: Any) -> bytes:
    """JSON with some of its members exchanged, doubled or gone."""
    root = [value]
    for _ in range(random.randint(1, 4)):
        held: Any = root
        while (
            inner := [
                one
                for one in (held.values() if isinstance(held, dict) else held)
                if isinstance(one, list | dict) and one
            ]
        ) and (held is root or random.random() < 0.7):
            held = random.choice(inner)
        key = random.choice(list(held)) if isinstance(held, dict) else random.randrange(len(held))
        match random.randrange(4):
            case 0 if held is not root:
                del held[key]
            case 1 if isinstance(held, list):
                held.append(held[key] if held is not root else None)
            case _:
                held[key] = json.loads(json.dumps(random.choice(VALUES)))
        if not held:
            break
    return json.dumps(root[0], ensure_ascii=random.random() < 0.9).encode("utf-8", "surrogatepass")


def _flip(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x80"
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _insert(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(TOKENS) + data[at:]


def _replace_value(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Something else in the place of one JSON value, or of what looks like one."""
    start = data.find(b":", random.randint(0, len(data))) + 1
    ends = [end for end in (data.find(mark, start) for mark in b",}]") if end > start]
    return data[:start] + random.choice(TOKENS) + data[min(ends, default=len(data)) :]


def _delete(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _stretch(random, data)
    return data[:start] + data[end:]


def _repeat(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _stretch(random, data)
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


def _splice(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = random.choice(corpus)
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


def _truncate(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: random.randint(0, len(data))]


def _nest(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A part of it inside many brackets, closed or left open."""
    start, end = _stretch(random, data)
    depth = random.choice((3, 70, 970, NESTING))
    opened, closed = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    inner = data[start:end] if random.random() < 0.5 else b"1"
    return (
        data[:start]
        + opened * depth
        + inner
        + (closed * depth if random.random() < 0.8 else b"")
        + data[end:]
    )


def _stretch(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + random.choice((1, 4, 16, 64, 256)))


Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]
MUTATIONS: Sequence[Mutation] = (
    _flip,
    _insert,
    _insert,
    _replace_value,
    _replace_value,
    _delete,
    _repeat,
    _splice,
    _truncate,
    _nest,
)
