"""Estimates of tokens without a tokenizer, and upper bounds."""

import json
from functools import cache
from pathlib import Path

import pytest

from turnfold.core.text.tokens import (
    Count,
    count_message,
    estimate,
    token_upper_bound,
)


@pytest.mark.parametrize(
    ("text", "slack"),
    [
        ("[480 lines and 12,345 tokens omitted]", 2.2),
        ("01JD3V8Z6W1Q9K5T2N7R4M0XYB#12", 1.6),
        ("/home/dev/project/shared/turnfold/core/tokens.py", 2.3),
        ("user-42@example.com", 2.0),
        ("3f2a9b6c-77d1-4c0e-9b1a-0a1b2c3d4e5f", 1.5),
    ],
)
def test_the_ceiling_is_near_on_what_we_write(count: Count, text: str, slack: float) -> None:
    assert count(text) <= token_upper_bound(text) <= slack * count(text)


@cache
def samples() -> dict[str, str]:
    """Texts of every class, long enough that chance does not decide."""
    prose = (
        "The service stores every message and evicts the old ones at once, so that nobody waits for a model. "
        "We talked about the budget for the trip to Lisbon last week, and she asked whether the hotel could be moved closer to the river. "
    )
    rows = [
        {
            "id": n,
            "name": f"item {n}",
            "price": n * 37 % 1000 / 10,
            "tags": ["new", "sale"],
            "ok": n % 2 == 0,
        }
        for n in range(100)
    ]
    return {
        "english": prose * 10,
        "chinese": "今天我想去北京游玩，请帮我推荐一个评分较高的景点，门票最好不要太贵。附近有没有适合一家人住的酒店？价格在五百元左右。"
        * 10,
        "japanese": "来週の土曜日に京都へ行きたいのですが、駅から近いホテルを探してもらえますか。朝食付きで、駐車場があるとうれしいです。"
        * 10,
        "korean": "다음 주 토요일에 부산으로 여행을 가려고 하는데 역에서 가까운 호텔을 찾아 주실 수 있나요? 조식이 포함되면 좋겠습니다. "
        * 10,
        "code": Path(count_message.__code__.co_filename).read_text(encoding="utf-8"),
        "json": json.dumps(rows),
        "json, indented": json.dumps(rows, indent=2),
        "base64": "".join(
            "iVBORw0KGgoAAAANSUhEUgAAB4AAAAQ4CAYAAADo08FDAAAgAElEQVR4nOzdeZwcZZ0/8E91z5VMQgIkBCYEEo4khFMOUVTu"[
                n % 60 :
            ]
            for n in range(60)
        ),
        "markdown table": "| name | tokens | share |\n| --- | ---: | ---: |\n"
        + "".join(f"| `chat-{n}.jsonl` | {n * 1_237:,} | {n / 7:.2f}% |\n" for n in range(100)),
    }


@pytest.mark.proves("T3")
@pytest.mark.parametrize("kind", list(samples()))
def test_the_estimate_is_near_without_a_tokenizer(count: Count, kind: str) -> None:
    text = samples()[kind]

    assert 0.9 <= estimate(text) / count(text) <= 1.15


def test_nothing_is_estimated_as_nothing() -> None:
    assert estimate("") == token_upper_bound("") == 0


ESTIMATES = {
    "a": 199,
    "A": 199,
    "a b c": 399,
    "Ab": 199,
    "aB": 299,
    "ABC": 239,
    "ABCDEFGHIJKLMNOPQ": 609,
    "an": 199,
    "MhBhfTrLqp0QzXw3kfMhBhfT/TrLqp0QzXw3kfMhBhfTrLqp0QzXw3kf": 3935,
    "theQuickBrownFox/JumpsOverTheLazyDogAndRunsAway/IntoTheWoods": 1736,
    "internationalizationandlocalization": 799,
    "extraordinarily": 399,
    "EXTRAORDINARILYLONG": 669,
    " I": 199,
    "x=1": 399,
    "foo_bar": 321,
    "getUserName": 414,
    "12345": 299,
    "1.5": 399,
    "...": 100,
    "----------": 125,
    "=>!": 105,
    "\n\n": 1,
    "\t\t": 2,
    "    pass": 304,
    "é": 199,
    "naïveté": 302,
    "漢字": 299,
    "漢": 199,
    "ひらがな": 311,
    "カ": 152,
    "서울에서": 389,
    "Привет": 255,
    "नमस्ते": 321,
    "日本語 text": 499,
    "👍": 239,
    "。": 191,
    "aGVsbG8gd29ybGQgaG93IGFyZSB5b3UgdG9kYXkgbXkgZnJpZW5kIGl0IGlzIG5pY2U=": 4757,
    "/srv/data/alpha/beta/gamma/delta/epsilon/zeta/eta/theta": 1426,
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": 3843,
    "/USR/LOCAL/SHARE/DOCUMENTATION/PACKAGES/README/FIRSTEDITION": 1914,
    "can't": 309,
    "HelloWorld": 315,
    "it's": 304,
    "(a)": 220,
    "word,": 205,
    "#tag": 284,
    "$x": 279,
    "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z": 3082,
}
"""Texts, and the estimate for a hundred of each, line by line: what each kind of piece costs."""


@pytest.mark.proves("O10")
@pytest.mark.parametrize(("text", "tokens"), ESTIMATES.items())
def test_a_piece_of_text_is_estimated_as_before(text: str, tokens: int) -> None:
    assert estimate("\n".join([text] * 100)) == tokens
