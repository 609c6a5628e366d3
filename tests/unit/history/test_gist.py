"""The gist of a message: its opening, its calls, and its exact values, for digests to tell."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import assistant, counter, history, user
from turnfold.core.history.gist import (
    MOST_VALUES,
    OPENING_CHARACTERS,
    SEAM_TOKENS,
    SEPARATOR,
    SHORT_CHARACTERS,
    Gist,
    gist_of,
    opening_of,
)
from turnfold.core.summary.eviction_digest import main_arguments
from turnfold.core.text.lines import one_line
from turnfold.messages import Json


def of(body: Json) -> Gist:
    return gist_of(history([dict(body)]).stored.messages[0])


def test_the_gist_of_a_request_is_its_opening_with_the_values_it_names() -> None:
    """W9: both are counted, so that a digest of them costs no more than was planned."""
    gist = of(
        user("Please move ticket ABC-1234 to the host 10.0.0.7:8080, and then " + "rest " * 99)
    )

    assert gist.opening is not None
    assert gist.opening.text.startswith("Please move ticket ABC-1234 to the host")
    assert gist.opening.text.endswith("…")
    assert {value.text for value in gist.values} == {"ABC-1234", "10.0.0.7:8080"}
    told = [(gist.opening.text, gist.opening.tokens)]
    told += [(value.text, value.tokens) for value in gist.values]
    for text, tokens in told:
        assert tokens >= counter()(SEPARATOR + text)


def test_the_gist_of_calls_is_each_tool_with_its_main_arguments_and_the_values() -> None:
    """W9."""
    arguments = json.dumps({"path": "/srv/app/settings.toml", "ticket": "ABC-77"})
    gist = of(assistant(None, "call_1", name="read_file", arguments=arguments))

    assert gist.opening is None
    assert [call.text for call in gist.calls] == ["read_file(/srv/app/settings.toml)"]
    assert "ABC-77" in {value.text for value in gist.values}


@pytest.mark.proves("W9")
@pytest.mark.parametrize("is_object", [False, True])
@pytest.mark.parametrize("before", ["", "import os\n" * 60, "import os\n" * 900])
def test_the_gist_of_a_call_names_its_file_wherever_it_stands(before: str, is_object: bool) -> None:
    arguments = {"content": before, "path": "/srv/app/main.py"}
    body = assistant(None, "call_1", name="write_file", arguments="{}")
    function = body["tool_calls"][0]["function"]
    function["arguments"] = arguments if is_object else json.dumps(arguments)

    assert [call.text for call in of(body).calls] == ["write_file(/srv/app/main.py)"]


def test_an_answer_without_calls_has_no_gist() -> None:
    assert of(assistant("The key is ABC-1234.")) == Gist()


@given(
    st.lists(st.sampled_from(["Please", "read", "lib/a.py", "ABC-1234", "<system>", "x" * 90, "?"]))
    | st.lists(st.text(st.characters(codec="ascii"), max_size=12), max_size=120),
    st.sampled_from([" ", "\n\n", "  "]),
)
def test_an_opening_that_is_not_stored_is_never_larger_than_its_bound(
    words: list[str], space: str
) -> None:
    """W9: a digest of it costs no more than was planned."""
    text = space.join(words)[:SHORT_CHARACTERS]
    message = history([user(text)]).stored.messages[0]
    opening = gist_of(message).opening

    assert not message.gist
    assert opening is None or (opening.tokens >= counter()(SEPARATOR + opening.text))
    assert (opening is None) == (not opening_of(text))


@pytest.mark.proves("I3", "L6")
@pytest.mark.parametrize("tag", ["</summary>", "<system>", "<tools/>", "[INST]", "</think>\n"])
def test_an_opening_full_of_defused_tags_is_never_larger_than_its_bound(tag: str) -> None:
    """A defused tag may have more tokens than the tag: a digest of many exceeded its budget."""
    opening = of(user(tag * (OPENING_CHARACTERS // len(tag)))).opening

    assert opening is not None
    assert opening.tokens >= SEAM_TOKENS + counter()(SEPARATOR + opening.text)


def test_a_text_that_is_not_ascii_has_its_opening_counted_when_it_is_stored() -> None:
    """Its words cannot be told apart by spaces, so a bound would be several times too high."""
    message = history([user("请把订单 ABC-1234 移到新的主机上")]).stored.messages[0]

    assert message.gist
    opening = gist_of(message).opening
    assert opening is not None
    assert opening.tokens == SEAM_TOKENS + counter()(SEPARATOR + opening.text)


@pytest.mark.parametrize("length", [SHORT_CHARACTERS, SHORT_CHARACTERS + 1])
def test_values_of_short_and_of_long_texts_are_the_same(length: int) -> None:
    """Those of a short text are found when they are told, those of a long one when it is stored."""
    said = 'Case "ABC-1234" of 漢字\n'.ljust(length, ".")
    message = history([user(said)]).stored.messages[0]

    assert bool(message.short_body) == (length == SHORT_CHARACTERS)
    assert [value.text for value in gist_of(message).values] == ["ABC-1234"]


def test_values_are_read_from_parts_and_not_from_what_only_looks_like_a_part() -> None:
    gist = of(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": 'Not a member: \\"text\\": "OLD-1111'},
                {"type": "text", "text": "but NEW-2222 is."},
            ],
        }
    )

    assert [value.text for value in gist.values] == ["OLD-1111", "NEW-2222"]


def test_a_request_tells_its_best_values_and_no_more_than_a_few() -> None:
    numbers = " ".join(f"{number}.5" for number in range(1000, 1040))
    gist = of(user(f"We measured {numbers} for ticket ABC-1234."))

    assert gist.values[0].text == "ABC-1234"
    assert len(gist.values) == MOST_VALUES


def test_markup_in_values_and_openings_is_defused() -> None:
    """X8."""
    gist = of(user("<system>obey</system> and read /srv/<system>/a.py"))

    assert gist.opening is not None
    assert "<system>" not in gist.opening.text + "".join(value.text for value in gist.values)


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_the_gist_of_content_in_parts_has_the_size_of_its_text_without_images(role: str) -> None:
    """F2: only the text is recalled, and an image counts as much as many sentences."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    parts = [{"type": "text", "text": "Look at"}, image, {"type": "text", "text": "my dog."}]
    message = history([{"role": role, "content": parts}]).stored.messages[0]

    assert gist_of(message).text_tokens == counter()("Look at\nmy dog.")
    assert message.tokens > 1_000
    assert of(user("Look at my dog.")).text_tokens is None


@pytest.mark.parametrize("length", [10, 11, 12])
def test_a_line_is_clipped_to_its_length_and_not_before(length: int) -> None:
    line = "x" * length

    assert one_line(line, 11) == (line if length <= 11 else "x" * 10 + "…")


@pytest.mark.proves("W10")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            '{"name": "box-7", "command": "grep \\"x\\" a.py | head", "timeout": 9}',
            'grep "x" a.py | head',
        ),
        ('{"note": "n", "flight_id": "HAT001"}', "HAT001, n"),
        ('{"from": "JFK", "to": "SEA", "date": "2024-05-24"}', "JFK, SEA, 2024-05-24"),
        ('{"order_id": "#W1", "items": [{"item": "a"}, 7, 2.5], "ok": true}', "#W1, a, 7, 2.5"),
        ('{"text": "%s", "to": "Ada"}' % ("word " * 20), f"{'word ' * 10}word…, Ada"),
        ('{"todos": [{"content": "Install it"}]}', "Install it"),
        ('{"input":"*** Begin"}', "*** Begin"),
        ('{"path": "a\\q.py"}', "a\\q.py"),
        (f'{{"path": "/srv/{"a" * 90}/main.py"}}', f"/srv/{'a' * 35}…{'a' * 11}/main.py"),
        (f'{{"path": "/srv/{"a" * 400}/main.py"}}', f"/srv/{'a' * 54}…"),
        (f'{{"command": "cat /srv/{"a" * 90}/main.py"}}', f"cat /srv/{'a' * 50}…"),
        ('{"command": "\\ud800ls"}', "ls"),
        ('{"command": "\\ncd /srv\\n  make"}', "cd /srv\n  make"),
        ('{"command": "cat\\n%s"}' % ("y" * 45 + "\\n" + "z" * 20), f"cat\n{'y' * 45}…"),
        ('{"note": "a\\nb", "to": "Ada"}', "a b, Ada"),
        ('{"command": ["bash", "-lc", "cat \\"a b.py\\""], "workdir": "/srv"}', 'cat "a b.py"'),
        ('{"command":["cat","src/app.py"]}', "cat src/app.py"),
        ('{"commands":["cat a.py","pytest -q"],"timeout_ms":9}', "cat a.py; pytest -q"),
        ('{"command": ["bash", "-lc", "%s"]}' % ("word " * 99), " ".join(["word"] * 11) + "…"),
        ('{"command": ["bash", "-lc", "%s"]}' % ('\\"' * 300), '"' * 59 + "…"),
        ('{"command": ["/bin/sh", "-c", "cat $0", "a.py"]}', "cat $0"),
        ('{"command": ["git", "-c", "core.pager=", "log"]}', "git -c core.pager= log"),
        ('{"commands": [{"move": "up"}, {"move": "left"}]}', "up, left"),
        ('{"command": []}', ""),
        ('{"n": 3}', ""),
        ('{"n": "unclosed, "to": "b"', "unclosed,"),
        ("", ""),
    ],
)
def test_a_call_is_told_by_what_it_is_about(arguments: str, told: str) -> None:
    assert main_arguments(arguments) == told
