"""What `turnfold search` shows of a message."""

import pytest

from turnfold.cli.search import AROUND, snippet_of


@pytest.mark.proves("O3", "F1")
@pytest.mark.parametrize(
    ("text", "q", "marked"),
    [
        ("The garden is planted\nin a Quincunx.", "quincunx", ["Quincunx"]),
        ("x" * 5_000 + " at /srv/app and " + "y" * 5_000, "/srv/app", ["/srv/app"]),
        ("planted in a garden", "garden planted", ["planted", "garden"]),
        ("我把琥珀色的吊坠放在书房", "吊坠", ["吊坠"]),
        ("\x1b[31mred\x1b[0m alert", "red alert", ["red", "alert"]),
        ("nothing of the kind", "*", []),
    ],
)
def test_a_snippet_shows_where_the_query_stands_on_one_line(
    text: str, q: str, marked: list[str]
) -> None:
    snippet, places = snippet_of(text, q)

    assert [snippet[start:end] for start, end in places] == marked
    assert len(snippet) <= AROUND + 2
    assert snippet.isprintable()
