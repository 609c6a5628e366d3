"""Exact values of a text: each is whole, and none is a part of another one."""

import pytest

from turnfold.core.text.values import MAX_SCANNED_CHARACTERS, Value, values_in


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("It costs €12,50 now.", [Value("price", "€12,50")]),
        ("It costs €1.234,56, no more.", [Value("price", "€1.234,56")]),
        ("It costs $12,34,567.", [Value("price", "$12,34,567")]),
        ("It costs $12,345.67.", [Value("price", "$12,345.67")]),
        ("The total is 12,345.67 in all.", [Value("number", "12,345.67")]),
        ("The total is 12,345.67, or less.", [Value("number", "12,345.67")]),
        (
            "Höchstens 1.250,00 € und 14.900 €.",
            [Value("price", f"{n} €") for n in ("1.250,00", "14.900")],
        ),
        ("Il coûte 12 450,00 €.", [Value("price", "12 450,00 €")]),
        ("Zusammen 1.234.567,89 Euro.", [Value("number", "1.234.567,89")]),
        ("The row of 1'234.50 is lost.", [Value("number", "1'234.50")]),
        (
            "CHF 1’234’567.50 and 1,23,456.78",
            [Value("number", n) for n in ("1’234’567.50", "1,23,456.78")],
        ),
        ("('1','234.50')", [Value("number", "234.50")]),
        ("0.125,17,3 at 10.0.0.5", [Value("number", "0.125"), Value("host", "10.0.0.5")]),
        ("It took 1,234.5 ms.", [Value("measure", "1,234.5 ms")]),
        ("It costs $5, $10 or $2,544.", [Value("price", f"${n}") for n in ("5", "10", "2,544")]),
        ("The budget is 500,000-800,000.", []),
        ("It has 500,000-800,000 bytes.", [Value("measure", "500,000-800,000 bytes")]),
        ("It weighs 12,000kg.", [Value("measure", "12,000kg")]),
        ("Write a 5,000-word essay.", []),
        (
            "A 30-minute call for a 6-year-old.",
            [Value("measure", "30-minute"), Value("measure", "6-year-old")],
        ),
        ("Order 30-minute-7 of ab12-cd.", [Value("id", "30-minute-7"), Value("id", "ab12-cd")]),
        ("Write 5,000-8,000-word essays for 500,000-800,000-900,000.", []),
        ("On 4821-fix-login.", [Value("id", "4821-fix-login")]),
        ("On 7-fix-login-twice.", [Value("id", "7-fix-login-twice")]),
        ('Serve(":9443", a)', [Value("host", ":9443")]),
        ("At 9:45 am. Or at 4:10 PM.", [Value("time", "9:45 am"), Value("time", "4:10 PM")]),
        ("At 9:45 a.m. Or at 4:10 p.m.", [Value("time", "9:45 a.m."), Value("time", "4:10 p.m.")]),
        ("Call 010-8888,020-99999.", [Value("phone", "010-8888"), Value("phone", "020-99999")]),
    ],
)
@pytest.mark.proves("S6")
def test_a_number_is_whole_whatever_separates_its_digits(text: str, values: list[Value]) -> None:
    assert values_in(text) == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Call +4915112345678 today.", [Value("phone", "+4915112345678")]),
        ("Call +1-555-123-4567 today.", [Value("phone", "+1-555-123-4567")]),
        ("+src/app/main.py", [Value("path", "src/app/main.py")]),
        ("+2345", [Value("number", "2345")]),
        ("+2024-05-20", [Value("date", "2024-05-20")]),
    ],
)
@pytest.mark.proves("S6")
def test_a_phone_number_keeps_its_plus_and_an_added_line_has_none(
    text: str, values: list[Value]
) -> None:
    assert values_in(text) == values


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        (
            "https://en.wikipedia.org/wiki/C_(language)",
            ["https://en.wikipedia.org/wiki/C_(language)"],
        ),
        (
            "[C](https://en.wikipedia.org/wiki/C_(language)).",
            ["https://en.wikipedia.org/wiki/C_(language)"],
        ),
        ("(see https://example.org/a)", ["https://example.org/a"]),
        ("https://example.org/a(b", ["https://example.org/a"]),
        ("https://example.org/a?key=" + "x7" * 200, []),
    ],
)
@pytest.mark.proves("S6")
def test_an_address_is_whole_or_left_out(text: str, urls: list[str]) -> None:
    assert values_in(text) == [Value("url", url) for url in urls]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Open /home/josé/notes/todo.md now.", []),
        ("Open /home/jose\u0301/notes/todo.md now.", []),
        ("Mail rené.dupont@example.com.", []),
        ("Открой /home/иван/notes/todo.md и src/main.py.", [Value("path", "src/main.py")]),
        ("Größe 1920×1080, größer als /etc/hosts.deny", [Value("path", "/etc/hosts.deny")]),
        ("请修改src/main.py文件", [Value("path", "src/main.py")]),
    ],
)
@pytest.mark.proves("S6")
def test_the_rest_of_a_word_beside_a_letter_is_no_value(text: str, values: list[Value]) -> None:
    assert [value for value in values_in(text) if value.kind != "number"] == values


@pytest.mark.parametrize("blanks", range(MAX_SCANNED_CHARACTERS - 12, MAX_SCANNED_CHARACTERS + 2))
@pytest.mark.proves("S6")
def test_a_value_at_the_end_of_what_is_read_is_whole_or_left_out(blanks: int) -> None:
    found = values_in(" " * blanks + "/srv/a/b.py and /srv/c/d.py")

    assert set(found) <= {Value("path", "/srv/a/b.py"), Value("path", "/srv/c/d.py")}
    assert (Value("path", "/srv/a/b.py") in found) is (blanks + 11 <= MAX_SCANNED_CHARACTERS)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1496:def total():\n1497:    return 4711\n1498:", ["4711"]),
        ("  1496\tdef total():\n  1497\t    return rate(1496)", ["1496"]),
        ("(12 more lines above)\n1496: total\n1498: rate", ["1496", "1498"]),
        ("73412: shipped\n81277: paid", ["73412", "81277"]),
    ],
)
@pytest.mark.proves("S6")
def test_the_numbers_of_lines_in_a_listing_are_no_values(text: str, values: list[str]) -> None:
    assert values_in(text) == [Value("number", value) for value in values]


@pytest.mark.parametrize("text", ['{"input_tokens":17915,"x":1}', r"{\"input_tokens\":17915}"])
@pytest.mark.proves("S6")
def test_a_number_after_a_key_is_no_port(text: str) -> None:
    assert values_in(text) == [Value("number", "17915")]
