"""Exact values of a text: each is whole, and none is a part of another one."""

import pytest

from turnfold.core.text.values import Value, values_in


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("It costs €12,50 now.", [Value("price", "€12,50")]),
        ("It costs €1.234,56, no more.", [Value("price", "€1.234,56")]),
        ("It costs $12,34,567.", [Value("price", "$12,34,567")]),
        ("It costs $12,345.67.", [Value("price", "$12,345.67")]),
        ("The total is 12,345.67 in all.", [Value("number", "12,345.67")]),
        ("It took 1,234.5 ms.", [Value("measure", "1,234.5 ms")]),
        ("It costs $5, $10 or $2,544.", [Value("price", f"${n}") for n in ("5", "10", "2,544")]),
    ],
)
@pytest.mark.proves("S6")
def test_a_number_is_whole_whatever_separates_its_digits(text: str, values: list[Value]) -> None:
    assert values_in(text) == values
