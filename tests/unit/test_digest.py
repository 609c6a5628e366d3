"""The digest made at eviction."""

import time

import pytest

from turnfold.core.digest import digest
from turnfold.core.sources import Source


def count(text: str) -> int:
    return len(text.encode()) // 3 + 1


def turns(number: int) -> list[Source]:
    return [
        source
        for turn in range(number)
        for source in (
            Source(f"e{turn}#0", "user", f"Question {turn} about the weather"),
            Source(f"e{turn}#1", "assistant", "", (("get_weather", '{"city": "Oslo"}'),)),
            Source(f"e{turn}#2", "tool", "sunny", tool_name="get_weather"),
            Source(f"e{turn}#3", "assistant", f"Answer {turn}"),
        )
    ]


@pytest.mark.proves("W3")
def test_each_message_has_a_line_and_calls_are_named() -> None:
    assert digest(turns(1), count=count) == (
        "(1 without words of their own left out)\nUser: Question 0 about the weather\nAssistant: called get_weather(Oslo)\nAssistant: Answer 0"
    )


def test_failed_result_has_a_line() -> None:
    failed = Source("e0#2", "tool", "Error: no such city", tool_name="get_weather", is_error=True)

    assert digest([failed], count=count) == "get_weather failed: Error: no such city"


def test_path_of_a_call_is_shown() -> None:
    call = Source(
        "e0#0", "assistant", "", (("edit", '{"path": "/srv/a.py", "oldText": "x"}'), ("list", "{}"), ("查询", '{"评分": "4.5分以上"}'))
    )

    assert digest([call], count=count) == "Assistant: called edit(/srv/a.py), list(), 查询(4.5分以上)"


@pytest.mark.parametrize("max_tokens", [0, 10, 25, 60, 300])
@pytest.mark.proves("W3")
def test_digest_fits_and_counts_exactly_what_it_left_out(max_tokens: int) -> None:
    sources = turns(40)

    text = digest(sources, max_tokens=max_tokens, count=count)

    assert count(text) <= max_tokens or not text
    if text:
        mark, *lines = text.split("\n")
        older = int(mark.split(" earlier")[0].lstrip("("))
        assert older + 40 + len(lines) == len(sources)
        assert not lines or lines[-1] == "Assistant: Answer 39"


def test_nothing_gives_nothing() -> None:
    assert digest([], count=count) == ""


def test_long_messages_cost_no_more_than_short_ones() -> None:
    def seconds(length: int) -> float:
        sources = [Source(f"e{number}#0", "user", "word " * length) for number in range(25)]
        start = time.perf_counter()
        digest(sources, count=count)
        return time.perf_counter() - start

    seconds(100)

    assert min(seconds(100_000) for _ in range(5)) < min(seconds(400) for _ in range(5)) * 10 + 0.001
