"""How commands print stored texts, which anybody may have written."""

import contextlib
import io
import json
from collections import Counter

import pytest
from rich.console import Console
from rich.text import Text

from tests.terminal_output import Terminal
from turnfold.cli.audit_tables import show_trails
from turnfold.cli.context import show_message
from turnfold.cli.output import console, one_line, print_rows, show_json
from turnfold.cli.tables import show_table, show_text

ODD = "a\x1b]52;c;cHduZWQ=\x1b\\ \x1b[2J b\x9b31m \x7f\ud800"
"""A text that sets the clipboard of a terminal and clears it, and ends in half a character."""
SPACED = "会话\u3000一  二\u200d"
"""An id may contain white space of all kinds, but no control characters."""
CONTROLLING = {"\x1b", "\x9b", "\x7f", "\ud800"}


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal without colors."""
    monkeypatch.setenv("TERM", "dumb")
    return Terminal()


def show_list(out: Terminal, *, as_json: bool = False) -> None:
    """Print a list of one row."""
    row = {"session_id": SPACED, "subject": ODD}
    with contextlib.redirect_stdout(out):
        print_rows("list", ("session_id", "subject"), [row], as_json=as_json, empty="")


@pytest.mark.proves("O3")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_list_shows_ids_as_they_are_and_nothing_that_controls_a_terminal(
    out: Terminal, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> None:
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)

    show_list(out)

    assert SPACED in out.getvalue()
    assert not CONTROLLING & set(out.getvalue())


@pytest.mark.proves("O3")
def test_json_is_read_as_it_was_stored_and_controls_no_terminal(out: Terminal) -> None:
    show_list(out, as_json=True)

    assert json.loads(out.getvalue()) == {"session_id": SPACED, "subject": ODD}
    assert not CONTROLLING & set(out.getvalue())


@pytest.mark.proves("O3")
@pytest.mark.parametrize("details", [True, False])
def test_an_audit_trail_shows_nothing_that_controls_a_terminal(
    out: Terminal, *, details: bool
) -> None:
    row = {
        "agent_id": "ada", "session_id": SPACED, "at": "2026-01-02T03:04:05.678Z",
        "phase": "policy", "hash": "5e" * 32, "details": json.dumps({"session_model": ODD, "preset": ODD}),
    }  # fmt: skip

    with contextlib.redirect_stdout(out):
        show_trails(console(), [row], details=details)

    assert "preset a" in " ".join(out.getvalue().split())
    assert not CONTROLLING & set(out.getvalue())


@pytest.mark.proves("O3")
def test_a_message_is_shown_with_its_own_spaces_and_joiners_but_in_its_order(
    out: Terminal,
) -> None:
    text = "第一\u3000节: 10\u202f000\xa0€ 👩\u200d💻 می\u200cخواهم"

    with contextlib.redirect_stdout(out):
        show_message(
            console(), {"role": "user", "content": f"{text}\r\nend\rover\u202etxt"}, SPACED
        )

    assert SPACED in out.getvalue()
    assert out.getvalue().splitlines()[1:] == [f"{' ' * 10}{text}", f"{' ' * 10}end�over�txt"]
    assert one_line(f"{text}\r\nend\u202e.") == f"{text}  end ."


@pytest.mark.proves("O3")
def test_a_row_that_turns_its_direction_is_seen_to_do_so(out: Terminal) -> None:
    with contextlib.redirect_stdout(out):
        show_table(console(), "", ["agent_id"], [{"agent_id": "a\u202eb"}])
        show_json({"agent_id": "a\u202eb"})

    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "agent",
        "a�b",
        '{"agent_id": "a\\u202eb"}',
    ]


@pytest.mark.proves("O3")
@pytest.mark.parametrize("said", [{"refusal": "I cannot."}, {"audio": {"transcript": "I cannot."}}])
def test_a_message_without_content_is_shown_with_what_it_says_elsewhere(
    out: Terminal, said: dict[str, object]
) -> None:
    with contextlib.redirect_stdout(out):
        show_message(console(), {"role": "assistant", "content": None, **said}, "")

    assert "I cannot." in out.getvalue()


@pytest.mark.proves("A1")
def test_an_eviction_that_waits_for_its_summary_is_not_shown_as_one_of_no_messages(
    out: Terminal,
) -> None:
    row = {
        "agent_id": "ada", "session_id": "s", "at": "2026-01-02T03:04:05.678Z", "hash": "5e" * 32,
        "phase": "selective_start", "details": json.dumps({"trigger": "request", "live": 60}),
    }  # fmt: skip

    with contextlib.redirect_stdout(out):
        show_trails(console(), [row], details=False)

    assert "request: 60 live" in out.getvalue()
    assert "evicted" not in out.getvalue()


@pytest.mark.parametrize("columns", range(60, 140, 7))
def test_two_columns_of_text_share_the_width_and_neither_is_cut(columns: int) -> None:
    found = "sqlite+aiosqlite:///./turnfold.db: " + "the database cannot be used now " * 3
    advice = "no server took a connection at nats://127.0.0.1:4222 within 3 s; " * 2 + "start one"
    row = {"check": "bus", "outcome": "failed", "found": found, "advice": advice}
    printed = io.StringIO()

    show_table(
        Console(file=printed, width=columns), "", list(row), [row],
        texts=("found", "advice"), headings=2,
    )  # fmt: skip

    shown = Counter(printed.getvalue().split())
    assert Counter(f"{found} {advice}".split()) <= shown


@pytest.mark.proves("O3")
def test_lines_break_between_arabic_words_also_if_these_have_marks_of_vowels() -> None:
    words = ["\u0623\u0633\u0628\u0648\u0639\u064b\u0627", "\u0643\u0627\u0645\u0644"] * 9
    stream = io.StringIO()

    show_text(Console(file=stream, width=20), Text(" ".join(words)))

    assert stream.getvalue().split() == words
