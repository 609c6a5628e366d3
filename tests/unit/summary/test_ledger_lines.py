"""Lines in the ledger: names that recur stand there with the line that says what they are."""

import json
from base64 import b64encode
from struct import pack
from typing import Any

import pytest

from tests.histories import history
from tests.unit.summary.drafts import assistant, drafted, tool, user
from turnfold.core.recall.quotes import number_of_name
from turnfold.core.summary.ledger.name_uses import MOST_NAMES, NameUses
from turnfold.core.summary.source_messages import open_request
from turnfold.core.summary.sources import Draft, PreviousSummary, Source

DEFINITION = "def load_rates(currency):"
OTHER = "def old_rates(currency):"


def read(number: int, text: str) -> tuple[Source, Source]:
    """A call and its result."""
    return assistant("", number, ("read", "{}")), tool(text, number)


def lines_of(draft: Draft) -> list[str]:
    return [entry[5:] for entry in draft.ledger if entry.startswith("line ")]


def before(draft: Draft) -> PreviousSummary:
    return PreviousSummary(draft.text, json.loads(json.dumps(draft.sections)), draft.ledger)


@pytest.mark.proves("S11")
def test_a_name_that_recurs_stands_in_the_ledger_with_its_line() -> None:
    draft = drafted(
        *read(1, f"import os\n{DEFINITION}\n{OTHER}\n"),
        *read(2, "42: load_rates('CHF')\n"),
    )

    assert lines_of(draft)[0] == DEFINITION
    assert OTHER not in lines_of(draft)
    origin = draft.sections["provenance"][draft.ledger.index(f"line {DEFINITION}")]
    assert origin[0] == ["e1#2"]


@pytest.mark.proves("S11")
def test_what_is_used_often_and_lately_comes_first() -> None:
    first = drafted(
        *read(1, f"{OTHER}\n{DEFINITION}"),
        *read(2, "old_rates(1)"),
        *read(3, "load_rates(1)"),
        *read(4, "old_rates(2)"),
    )
    following = ("load_rates(3)", "load_rates(4)")
    noticed = drafted(
        *read(1, f"{OTHER}\n{DEFINITION}"),
        *read(2, "old_rates(1)"),
        *read(3, "load_rates(1)"),
        *read(4, "old_rates(2)"),
        following=following,
    )
    later = drafted(*read(5, "load_rates(3)"), *read(6, "load_rates(4)"), previous=first)

    assert "old_rates" in lines_of(first)[0]
    assert "load_rates" in lines_of(noticed)[0]
    assert "load_rates" in lines_of(later)[0]


@pytest.mark.proves("S11")
def test_nothing_is_told_twice_and_what_users_state_stays_by_itself() -> None:
    draft = drafted(
        user("Keep src/fixed.py as it is, see OPS-4711.", 1),
        *read(2, "src/app.py:12: the job KX-90210 runs late\nOPS-4711 of src/app.py"),
        *read(3, "src/app.py:12: KX-90210"),
    )

    whole = "\n".join(draft.ledger)
    assert [whole.count(value) for value in ("KX-90210", "src/fixed.py")] == [1, 1]
    values = [entry for entry in draft.ledger if entry.startswith(("id ", "path ", "ticket "))]
    assert sorted(values) == ["path src/fixed.py", "ticket OPS-4711"]


@pytest.mark.proves("S11")
def test_a_line_about_a_modified_file_alone_is_not_told_beside_the_file() -> None:
    edit = ("edit", '{"file_path": "/srv/app/src/rates.py"}')
    draft = drafted(
        assistant("", 1, edit),
        tool("The file /srv/app/src/rates.py has been updated.", 1),
        assistant("", 2, edit),
        tool("The file /srv/app/src/rates.py has been updated.", 2),
        *read(3, f"modified:   src/rates.py\n{DEFINITION}"),
        *read(4, "modified:   src/rates.py\nrows = load_rates(1)"),
    )

    assert "modified /srv/app/src/rates.py" in draft.ledger
    assert lines_of(draft) == [DEFINITION]


@pytest.mark.proves("S11")
def test_a_value_told_by_a_line_is_not_lost_with_the_line() -> None:
    first = drafted(*read(1, "job KX-90210 of run_queue"), *read(2, "run_queue: KX-90210 waits"))
    room = 12 + 20
    crowd = [*read(3, "x"), *read(4, "y")]
    second = drafted(*crowd, previous=first, ledger_max_tokens=room)

    assert lines_of(first)
    assert "KX-90210" in "\n".join(second.ledger) or second.sections["left_out"]["marks"]


@pytest.mark.proves("S11")
def test_what_identifies_nothing_in_the_output_of_tools_leaves_with_its_line() -> None:
    first = drafted(
        *read(1, "def run_queue(KX-90210):  # 4.17.2 at 10:45"),
        *read(2, "of the jobs in run_queue, KX-90210 waits again for what came long before it"),
    )
    second = drafted(*read(3, "x"), *read(4, "y"), previous=first, ledger_max_tokens=36)

    assert lines_of(first) == ["def run_queue(KX-90210):  # 4.17.2 at 10:45"]
    assert "ticket KX-90210" in second.ledger
    assert [value for value in ("4.17.2", "10:45") if value in "\n".join(second.ledger)] == []


@pytest.mark.proves("S11")
def test_what_every_project_holds_and_names_alone_are_no_lines() -> None:
    text = "see README.md and node_modules in JavaScript\nsrc/app/main.py\n"

    draft = drafted(*read(1, text), *read(2, text), *read(3, text))

    assert lines_of(draft) == []
    assert "src/app/main.py" in "\n".join(draft.ledger)


@pytest.mark.proves("S11")
def test_lines_are_for_conversations_with_tools() -> None:
    draft = drafted(user(f"Look: {DEFINITION}", 1), user("load_rates again", 2))

    assert lines_of(draft) == []
    assert draft.sections["names"] == ""


@pytest.mark.proves("S11", "C54")
@pytest.mark.parametrize(
    "stored",
    [None, 7, "no base64!", "AAAA", b64encode(pack("<IeB", 1, float("nan"), 3)).decode()],
)
def test_an_unreadable_record_of_names_counts_as_empty(stored: Any) -> None:
    assert NameUses.of(PreviousSummary("", {"names": stored})).as_json() == ""


@pytest.mark.proves("S11")
def test_the_record_of_names_keeps_those_used_most() -> None:
    uses = NameUses.of(None)
    uses.add_covered([range(2 * MOST_NAMES), [number_of_name("load_rates")]])

    again = NameUses.of(PreviousSummary("", {"names": uses.as_json()}))
    again.add_following(["load_rates(1)"])

    assert list(again.weights()) == [number_of_name("load_rates")]
    assert len(uses.as_json()) < 6 * MOST_NAMES * 2


@pytest.mark.proves("S11")
def test_what_probably_nobody_names_again_has_no_entry_even_if_there_is_room() -> None:
    def running(number: int, *commands: str) -> Source:
        calls = [("bash", json.dumps({"command": command})) for command in commands]
        return assistant("", number, *calls)

    installer = "Get:7 libc6-dev 2.36-9 in /var/lib/apt/lists/deb.example_dists_main"
    first = drafted(
        user("Pack it for ticket OPS-4711.", 1),
        running(2, "make install", "make docs"),
        tool(f"{installer}\nwrote job KX-90210", 2),
        assistant("It is booked as BK-5512.", 3),
    )
    second = drafted(running(4, "make docs"), tool("job KX-90210 waits", 4), previous=first)

    assert first.ledger == ("ticket OPS-4711", "ticket BK-5512", first.ledger[-1])
    assert second.ledger == (
        "ticket OPS-4711",
        "command make docs",
        "line job KX-90210 waits",
        "ticket BK-5512",
        second.ledger[-1],
    )
    assert second.ledger[-1].startswith("left_out ")


@pytest.mark.proves("S11")
def test_the_open_request_goes_when_it_is_answered() -> None:
    carried = PreviousSummary("", {}, ("request Book it.", "id KX-1"))
    calling = {"role": "assistant", "content": "I look.", "tool_calls": [{}]}
    answer = {"role": "assistant", "content": "Done."}

    assert open_request(carried, (), [calling]) == "Book it."
    assert open_request(carried, (), [calling, answer]) is None
    assert open_request(None, (), []) is None


@pytest.mark.proves("S11")
def test_the_open_request_is_the_newest_that_the_version_covers() -> None:
    said = [
        {"role": "user", "content": "Book it."},
        {"role": "assistant", "content": "Booked."},
        {"role": "user", "content": "Now cancel it."},
    ]
    told = history(said)
    covered = [
        (message, json.dumps(body), False)
        for message, body in zip(told.stored.messages, said, strict=True)
    ]

    assert open_request(None, covered[:1], ()) == "Book it."
    assert open_request(None, covered[:2], ()) is None
    assert open_request(None, covered, [{"role": "user", "content": "Wait."}]) == "Now cancel it."


@pytest.mark.parametrize(
    ("texts", "request_"),
    [
        (["Book it.", "[Request interrupted by user]"], "Book it."),
        (["Book it.", "<system-reminder>\nThe calendar changed.\n</system-reminder>"], "Book it."),
        (["[Request interrupted by user for tool use]"], None),
        (["<task>Book it.</task>", "<task>Cancel it.</task>"], "<task>Cancel it.</task>"),
        (["\n<task>Book it.</task>", "\n<task>Stop.</task>"], "\n<task>Stop.</task>"),
        (["<note>The calendar changed.</note>", "Book it."], "Book it."),
    ],
)
@pytest.mark.proves("S11")
def test_a_notice_of_the_agent_is_no_open_request(texts: list[str], request_: str | None) -> None:
    said = [{"role": "user", "content": text} for text in texts]
    covered = [
        (message, json.dumps(body), False)
        for message, body in zip(history(said).stored.messages, said, strict=True)
    ]

    assert open_request(None, covered, ()) == request_
