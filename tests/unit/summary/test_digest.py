"""The digest made at eviction."""

import json

import pytest

from tests.histories import Said, assistant, counter, history, user
from turnfold.core.summary.eviction_digest import (
    DIGEST_MAX_TOKENS,
    DIGEST_MESSAGES,
    digest,
    digest_eviction,
)
from turnfold.core.summary.sources import Source


def count(text: str) -> int:
    return len(text.encode()) // 3 + 1


def turns(number: int) -> list[Source]:
    return [
        source
        for turn in range(number)
        for source in (
            Source(f"e{turn}#0", "user", f"Question {turn} about the weather"),
            Source(f"e{turn}#1", "assistant", "", (("get_weather", '{"city": "Oslo"}'),)),
            Source(f"e{turn}#2", "assistant", f"Answer {turn}"),
        )
    ]


@pytest.mark.proves("W3")
def test_each_message_has_a_line_and_calls_are_named() -> None:
    assert digest(turns(1), count=count)[0] == (
        "User: Question 0 about the weather\nAssistant: called get_weather(Oslo)\nAssistant: Answer 0"
    )


def test_path_of_a_call_is_shown() -> None:
    call = Source(
        "e0#0",
        "assistant",
        "",
        (
            ("edit", '{"path": "/srv/a.py", "oldText": "x"}'),
            ("list", "{}"),
            ("run", '{"command": "cd /srv\\nmake"}'),
            ("查询", '{"评分": "4.5分以上"}'),
        ),
    )

    assert (
        digest([call], count=count)[0]
        == "Assistant: called edit(/srv/a.py), list(), run(cd /srv make), 查询(4.5分以上)"
    )


@pytest.mark.parametrize("max_tokens", [0, 10, 25, 60, 300])
@pytest.mark.proves("W3")
def test_digest_fits_and_counts_exactly_what_it_left_out(max_tokens: int) -> None:
    sources = turns(40)

    text, _ = digest(sources, max_tokens=max_tokens, count=count)

    assert count(text) <= max_tokens or not text
    if text:
        mark, *lines = text.split("\n")
        older = int(mark.split(" earlier")[0].lstrip("("))
        assert older + len(lines) == len(sources)
        assert not lines or lines[-1] == "Assistant: Answer 39"


def letters(text: str) -> int:
    return len(text)


@pytest.mark.proves("W3", "O10")
def test_lines_are_shortened_by_the_number_of_messages_and_never_below_forty_characters() -> None:
    def line(number: int, *, max_tokens: int) -> str:
        said = [Source(f"e{turn}#0", "user", "x" * 1_000) for turn in range(number)]
        return digest(said, max_tokens=max_tokens, count=lambda _: 0)[0].split("\n")[-1]

    assert len(line(1, max_tokens=300)) == len("User: ") + 160
    assert len(line(9, max_tokens=300)) == len("User: ") + 100
    assert len(line(50, max_tokens=300)) == len("User: ") + 40
    assert all(line(number, max_tokens=300).endswith("…") for number in (1, 9, 50))


@pytest.mark.proves("W3", "O10")
def test_of_many_calls_four_are_named_and_the_rest_counted() -> None:
    def called(number: int) -> str:
        calls = tuple((f"t{place}", "{}") for place in range(number))
        return digest([Source("e0#0", "assistant", "On it", calls)], count=count)[0]

    assert called(4) == "Assistant: On it; called t0(), t1(), t2(), t3()"
    assert called(6) == "Assistant: On it; called t0(), t1(), t2(), t3() and 2 more"


@pytest.mark.proves("W3", "O10")
@pytest.mark.parametrize(
    ("max_tokens", "kept"),
    [(322, 20), (321, 18), (300, 17), (243, 13), (242, 12), (200, 9), (110, 3), (80, 1), (63, 0)],
)
def test_a_digest_that_is_too_long_loses_its_oldest_lines_and_counts_them(
    max_tokens: int, kept: int
) -> None:
    sources = [Source(f"e{number}#0", "user", f"no. {number:02}") for number in range(20)]

    text, _ = digest(sources, max_tokens=max_tokens, count=letters, older=3, silent=1)

    assert text.split("\n") == [
        f"({23 - kept} earlier messages and 1 without words of their own left out)",
        *(f"User: no. {number:02}" for number in range(20 - kept, 20)),
    ]


@pytest.mark.proves("W3", "O10")
def test_a_digest_of_three_lines_that_is_a_little_too_long_loses_one() -> None:
    sources = [Source(f"e{number}#0", "user", f"no. {number:02}") for number in range(3)]

    text, _ = digest(sources, max_tokens=100, count=letters, older=3, silent=1)

    assert text.split("\n")[1:] == ["User: no. 01", "User: no. 02"]


@pytest.mark.proves("W3", "O10")
def test_a_digest_without_room_for_its_first_line_is_empty() -> None:
    sources = [Source("e0#0", "user", "Good morning to you all")]

    assert digest(sources, max_tokens=20, count=letters) == ("", 0)


def test_nothing_gives_nothing() -> None:
    assert digest([], count=count)[0] == ""


@pytest.mark.proves("W3", "O10")
@pytest.mark.parametrize("empty", ["", " \n"])
def test_a_message_without_words_or_calls_has_no_line_and_is_counted(empty: str) -> None:
    sources = [Source("e0#0", "user", empty), Source("e1#0", "user", "Good morning.")]

    first, *lines = digest(sources, count=count)[0].split("\n")

    assert lines == ["User: Good morning."]
    assert first.startswith("(1 ")


def test_of_long_messages_no_more_is_counted_than_of_short_ones() -> None:
    def counted(length: int) -> list[str]:
        texts: list[str] = []

        def noted(text: str) -> int:
            texts.append(text)
            return count(text)

        sources = [Source(f"e{number}#0", "user", "word " * length) for number in range(25)]
        digest(sources, count=noted)
        return texts

    assert counted(100_000) == counted(400)


@pytest.mark.proves("W9")
@pytest.mark.parametrize("long", [" and much more of it" * 40, "以及更多的内容" * 40])
def test_the_first_request_of_many_messages_is_quoted_with_the_newest(long: str) -> None:
    said = [Said(user(f"My name is Ana Quiroga.{long}")), Said(assistant("Hello."))]
    for number in range(9):
        said += [Said(user(f"Step {number}:{long}")), Said(assistant(f"Answer {number}."))]
    evicted = history(said).stored.messages
    bodies = {one.position: json.dumps(of.body) for one, of in zip(evicted, said, strict=True)}

    text, tokens = digest_eviction(evicted, bodies, count=counter())

    lines = text.splitlines()
    left_out = len(said) - (len(lines) - 1)
    assert lines[0].startswith(f"User: My name is Ana Quiroga.{long[:20]}")
    assert lines[1] == f"({left_out} earlier messages left out)"
    assert lines[-1] == "Assistant: Answer 8."
    assert len(lines) == 1 + DIGEST_MESSAGES or not long.isascii()
    assert tokens <= DIGEST_MAX_TOKENS
