"""The ledger of a summary without a model: which exact values it keeps, and how they are carried on."""

import json
from typing import Any

import pytest

from tests.unit.summary.drafts import UUID, assistant, count, drafted, reading, tool, user
from turnfold.core.summary.extractive.evidence import collect_evidence, with_evidence
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.ledger.candidates import Origin
from turnfold.core.summary.ledger.entries import entry_values
from turnfold.core.summary.sentences import SentenceKind, sentence_kinds
from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob
from turnfold.core.text.values import Value, values_in


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"the job {UUID} failed", Value("uuid", UUID)),
        (
            "at commit 8851afb5cabae5df91a979048f765601.",
            Value("hash", "8851afb5cabae5df91a979048f765601"),
        ),
        ("look at /srv/app/config.toml, please", Value("path", "/srv/app/config.toml")),
        ("and in packages/core/src/main.ts too", Value("path", "packages/core/src/main.ts")),
        ("see https://example.org/a?b=1&c=2.", Value("url", "https://example.org/a?b=1&c=2")),
        ("it listens on 10.0.0.5:5433", Value("host", "10.0.0.5:5433")),
        ("localhost:8080 is taken", Value("host", "localhost:8080")),
        ("fixed in OPS-1234", Value("ticket", "OPS-1234")),
        ("fixed in #4588", Value("ticket", "#4588")),
        ("since v2.3.1-rc1", Value("version", "v2.3.1-rc1")),
        ("mail mia@example.com today", Value("email", "mia@example.com")),
        ("on 2024-05-20", Value("date", "2024-05-20")),
        ("on May 27, 2024", Value("date", "May 27, 2024")),
        ("it costs $2,544 now", Value("price", "$2,544")),
        ("it took 350 ms", Value("measure", "350 ms")),
        ("预算100-150元左右", Value("measure", "100-150元")),
        ("3月14日出发", Value("date", "3月14日")),
        ("reservation HAT229", Value("id", "HAT229")),
        ("at 9:30 am", Value("time", "9:30 am")),
    ],
)
@pytest.mark.proves("C41")
def test_exact_value_is_found_as_it_stands(text: str, value: Value) -> None:
    assert value in values_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "utf8 and x2 took 17ms",
        "\x1b[31mred\x1b[39m and [2mpale[22m",
        "</status> and <b>",
        "see e.g. this and/or that",
        "in 2024",
    ],
)
def test_ordinary_words_are_no_values(text: str) -> None:
    assert [value for value in values_in(text) if value.kind != "measure"] == []


@pytest.mark.proves("S5", "S6", "C41")
def test_values_and_newest_request_are_in_the_artifact_verbatim() -> None:
    request = "Now roll it back\nto 1.4.2, and <tell> me why." + " x" * 400
    values = [
        UUID,
        "8851afb5cabae5df91a979048f765601",
        "/srv/app/config.toml",
        "https://example.org/a?b=1",
        "10.0.0.5:5433",
        "OPS-1234",
    ]
    draft = drafted(
        user("Deploy."),
        tool("\n".join(["noise " * 400, *values, "noise " * 400])),
        assistant("Done."),
        newest_request=request,
    )

    artifact = "\n".join([draft.text, *draft.ledger])
    assert [value for value in values if value not in artifact] == []
    assert draft.ledger[0] == f"request {request[:500]}"


@pytest.mark.proves("S6")
def test_ledger_stays_within_its_cap_and_counts_what_it_left_out() -> None:
    draft = drafted(
        user(" ".join(f"/srv/data/file-{number}.csv" for number in range(300))),
        ledger_max_tokens=400,
    )

    assert sum(count(entry) for entry in draft.ledger) <= 400 + len(draft.ledger)
    assert (
        draft.ledger[-1]
        == f"left_out {300 - len(draft.ledger) + 1} more values, which search finds"
    )
    assert len(draft.sections["provenance"]) == len(draft.ledger)


@pytest.mark.proves("S6")
def test_decisions_constraints_commands_and_error_lines_stand_in_the_ledger_to_the_letter() -> None:
    failed = "Traceback (most recent call last):\nError: the port is out of range"

    def fixing(number: int) -> tuple[Source, Source]:
        run = ("bash", '{"command": "cd /w && npm run check -- --fix && ls"}')
        return assistant("", number, run), tool(failed, number, is_error=True)

    first = drafted(
        user("Let's go with exponential backoff. You must never touch the billing tables.", 1),
        *fixing(2),
        user("就选这家。预算不能超过500元。", 4),
    )
    draft = drafted(*fixing(5), previous=first)

    assert {
        "decision Let's go with exponential backoff.",
        "constraint You must never touch the billing tables.",
        "command npm run check -- --fix",
        "error Error: the port is out of range",
        "decision 就选这家。",
        "constraint 预算不能超过500元。",
    } <= set(draft.ledger)


@pytest.mark.proves("S6")
def test_decisions_beyond_the_newest_few_are_left_out_and_counted() -> None:
    draft = drafted(
        *(
            user(f"Let's go with the {color} one.", number)
            for number, color in enumerate("red blue green black white grey".split())
        )
    )

    assert [entry for entry in draft.ledger if entry.startswith("decision ")] == [
        f"decision Let's go with the {color} one." for color in ("grey", "white", "black", "green")
    ]
    assert draft.ledger[-1] == "left_out 2 more values, which search finds"


@pytest.mark.parametrize(
    ("consent", "decision"),
    [
        ("That works for me.", "Let's use the second database for all new orders."),
        ("就这样。", "我决定把所有的新订单都存到第二个数据库里面。"),
        ("それでいいです。", "新しい注文はすべて第二のデータベースに保存することに決めました。"),
    ],
)
@pytest.mark.proves("S11")
def test_a_decision_that_says_what_was_decided_outlasts_words_of_consent(
    consent: str, decision: str
) -> None:
    draft = drafted(
        user(decision, 1),
        *(
            user(f"{word} {consent}", at)
            for at, word in enumerate(["", "Yes!\n", "OK.\n", "Great!\n", "Fine.\n"], start=2)
        ),
    )

    first = next(entry for entry in draft.ledger if entry.startswith("decision "))
    assert first == f"decision {decision}"


@pytest.mark.parametrize(
    "decision",
    ["No, let's use Redis.", "Let's go with A.", "那就改用第三个。", "Redisに決めた。"],
)
@pytest.mark.proves("S6", "S11")
def test_a_short_decision_that_says_what_was_decided_precedes_older_ones(decision: str) -> None:
    older = [
        f"Let's use the {word} database for all orders." for word in "red blue tan grey".split()
    ]
    draft = drafted(*(user(text, at) for at, text in enumerate([*older, decision])))

    first = next(entry for entry in draft.ledger if entry.startswith("decision "))
    assert first == f"decision {decision}"


@pytest.mark.proves("S2", "O10")
@pytest.mark.parametrize(
    "text", ["Thanks, could you book it", "Hi, I need a room", "sure, can you"]
)
def test_a_request_that_begins_politely_is_a_request_of_a_user_and_politeness_of_an_assistant(
    text: str,
) -> None:
    assert SentenceKind.REQUEST in sentence_kinds(text, is_user=True)
    assert sentence_kinds(text, is_user=False) == {SentenceKind.FILLER}


@pytest.mark.proves("S2", "O10")
@pytest.mark.parametrize("max_tokens", [20, 40])
def test_of_two_errors_the_newer_one_stays(max_tokens: int) -> None:
    draft = drafted(
        tool("Error: the first disk is full", 0, is_error=True),
        user("Go on please with the next one.", 1),
        assistant("I continue with it now as you said.", 2),
        tool("Error: the second disk is full", 3, is_error=True),
        max_tokens=max_tokens,
    )

    assert draft.sections["errors"] == ["Error: the second disk is full"]


@pytest.mark.proves("S2", "O10")
@pytest.mark.parametrize("max_tokens", [40, 60, 80])
def test_the_first_request_of_all_stays_while_newer_ones_come(max_tokens: int) -> None:
    first = "Please build the whole warehouse report for me."
    before = PreviousSummary(
        "x",
        {"tasks": [first, "Then send it to the office in Oslo, too."], "context": "It went on."},
        (),
    )
    newer = tuple(
        user(f"Please check the shelf number {number} in hall {number} again.", number)
        for number in range(6)
    )

    draft = extract(SummaryJob(sources=newer, previous=before, max_tokens=max_tokens), count=count)

    assert draft.sections["tasks"][0] == first


@pytest.mark.proves("S6", "O10")
def test_of_equal_values_the_newest_stand_first_then_those_that_were_carried() -> None:
    first = drafted(
        *(user(f"It is /srv/{name}.toml.", number) for number, name in enumerate("abc"))
    )

    second = drafted(
        *(user(f"It is /srv/{name}.toml.", number) for number, name in enumerate("de", start=3)),
        previous=first,
    )

    assert [entry for entry in first.ledger if entry.startswith("path")] == [
        f"path /srv/{name}.toml" for name in "cba"
    ]
    assert [entry for entry in second.ledger if entry.startswith("path")] == [
        f"path /srv/{name}.toml" for name in "edcba"
    ]


@pytest.mark.proves("S6", "O10")
def test_of_equal_values_that_tools_printed_the_newest_stand_first_then_those_that_were_carried() -> (
    None
):
    first = drafted(*(tool(f"/srv/{name}.toml", number) for number, name in enumerate("abc")))

    second = drafted(
        *(tool(f"/srv/{name}.toml", number) for number, name in enumerate("de", start=3)),
        previous=first,
    )

    assert [entry for entry in first.ledger if entry.startswith("path")] == [
        "path " + " ".join(f"/srv/{name}.toml" for name in "cba")
    ]
    assert [entry for entry in second.ledger if entry.startswith("path")] == [
        "path " + " ".join(f"/srv/{name}.toml" for name in "edcba")
    ]


@pytest.mark.proves("S6", "C54", "O10")
@pytest.mark.parametrize("forgotten", [None, True, "7", 1.5, [7]])
@pytest.mark.parametrize("marks", [None, 7, "not base64!", "QUJ", ["QUJD"]])
def test_a_damaged_record_of_what_was_left_out_counts_as_empty(
    forgotten: object, marks: object
) -> None:
    damaged = {"left_out": {"forgotten": forgotten, "marks": marks, "until": 7}}
    before = PreviousSummary("They spoke.", damaged, ("path /srv/a.toml",))

    draft = extract(SummaryJob(sources=(user("It is /srv/b.toml."),), previous=before), count=count)

    assert draft.ledger == ("path /srv/b.toml", "path /srv/a.toml")
    assert draft.sections["left_out"] == {"forgotten": 0, "marks": "", "until": "e0#0"}


@pytest.mark.proves("S6", "F3", "C54", "O10")
@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([[], ["e7#0"]], ["e7#0"]),
        ([[], ["e7#0", 7, None, ["e8#0"]]], ["e7#0"]),
        ([["e6#0"]], []),
        ([[], "e7#0"], []),
        ("damaged", []),
        (None, []),
        ({"1": ["e7#0"]}, []),
    ],
)
def test_a_damaged_list_of_sources_says_of_a_line_no_more_than_it_does(
    sources: object, expected: list[str]
) -> None:
    before = PreviousSummary(
        "Constraints\n- You must never touch the billing tables.",
        {"sources": sources, "constraints": [BILLING]},
        (),
    )

    draft = extract(
        SummaryJob(sources=(user("Good morning, and well met."),), previous=before), count=count
    )

    line = draft.text.split("\n").index(f"- {BILLING}")
    assert draft.sections["sources"][line] == expected
    assert len(draft.sections["sources"]) == len(draft.text.split("\n"))


BILLING = "You must never touch the billing tables."


@pytest.mark.proves("S6", "F3")
def test_value_names_the_first_and_the_newest_message_that_hold_it() -> None:
    draft = drafted(
        user("It is in /srv/a.toml.", 1),
        user("Look at /srv/a.toml.", 2),
        user("And /srv/a.toml again.", 3),
    )

    assert draft.sections["provenance"][draft.ledger.index("path /srv/a.toml")][0] == [
        "e1#0",
        "e3#0",
    ]


@pytest.mark.proves("S6")
def test_path_inside_another_one_is_not_told_again() -> None:
    draft = drafted(tool("src/core/setup.ts\nsetup.ts\ncore/setup.ts", 1))

    assert [entry for entry in draft.ledger if "setup.ts" in entry] == ["path src/core/setup.ts"]


@pytest.mark.proves("S6")
def test_what_the_user_named_outranks_what_a_tool_printed() -> None:
    noise = " ".join(f"/usr/lib/x86/file-{number}.so" for number in range(200))
    draft = drafted(
        user("The config is /srv/app/config.toml."), tool(noise, 1), ledger_max_tokens=120
    )

    assert draft.ledger[0] == "path /srv/app/config.toml"
    assert draft.sections["provenance"][0][0] == ["e0#0"]


@pytest.mark.proves("S6", "O10")
def test_the_name_of_a_tag_that_closes_itself_is_no_value() -> None:
    assert values_in("<user42x /> runs v2<br3x/>of it") == [Value("version", "v2")]


@pytest.mark.parametrize(
    ("stored", "origin"),
    [
        ([["m#0"], 60], Origin(("m#0",), 60, 1)),
        ([["m#0"], 60, 3], Origin(("m#0",), 60, 3)),
        ([["m#0"], 60, "3"], Origin(("m#0",), 60, 1)),
        (["m#0", 900], Origin(("m#0",), 200, 1)),
    ],
)
def test_the_origin_of_a_value_is_read_as_any_version_stored_it(
    stored: Any, origin: Origin
) -> None:
    assert entry_values("path /srv/a.py", stored) == [(Value("path", "/srv/a.py"), origin)]


def test_letters_before_a_unit_make_an_id_of_it() -> None:
    assert Value("id", "3XMS") in values_in("the part 3XMS of the machine")
    assert values_in("it took 17MS in all") == []


@pytest.mark.parametrize(
    ("later", "files"),
    [
        (user("Please add an index.", 2), [("modified", "model")]),
        (reading("/srv/app/db.py"), [("read", None)]),
        (assistant("", 3, ("edit", '{"path": "/srv/app/db.py"}')), [("modified", None)]),
    ],
)
@pytest.mark.proves("S6", "C46")
def test_a_file_is_modified_only_if_a_call_modified_it_whatever_a_model_says(
    later: Source, files: list[tuple[str, str | None]]
) -> None:
    said = user("Look at /srv/app/db.py, but do not change it.")
    claimed = {"file_changes": [{"path": "/srv/app/db.py", "action": "modified"}], "context": "Ok."}
    by_model = Draft(text="Ok.", sections=claimed, ledger=(), kind="llm")
    evidence = collect_evidence(SummaryJob(sources=(said,)), [said], count=count)

    draft = drafted(later, previous=with_evidence(by_model, evidence))

    found = draft.sections["file_changes"]
    assert [(change["action"], change.get("by")) for change in found] == files
    is_modified = files == [("modified", None)]
    assert ("modified /srv/app/db.py" in draft.ledger) is is_modified


@pytest.mark.proves("S6")
def test_a_sentence_that_the_ledger_cuts_shows_it() -> None:
    said = (
        "Let's go with the cheapest option and charge whatever is missing to the gift card and then "
        "to the credit card from my profile, as long as the total cost doesn't exceed $500."
    )

    draft = drafted(user(said))

    (entry,) = [entry for entry in draft.ledger if entry.startswith("decision")]
    assert entry.endswith("…")
    assert said.startswith(entry.removeprefix("decision ").removesuffix("…"))
    assert drafted(user("Please book it now.", 2), previous=draft).ledger.count(entry) == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("make check 2>&1 | tail -5; make check 2>/dev/null; make check", ["make check"]),
        ("sudo ls -la /srv; sudo -n make install", ["sudo -n make install"]),
        ("sudo -u app cat a.log; sudo -u app make install", ["sudo -u app make install"]),
        ('grep -l a *.c | xargs grep -l "b c" | sort | uniq -c', []),
        ("ls | xargs -n 1 npm test; ls | xargs", ["xargs -n 1 npm test"]),
        ("python load.py <<< 'a b' && make", ["python load.py <<< 'a b'"]),
        (
            "git commit -m \"$(cat <<'EOF'\nFix it\nEOF\n)\" && git push origin main",
            ["git push origin main"],
        ),
        ('git commit -m "Fix it\n\nAs agreed."', ['git commit -m "Fix it As agreed."']),
    ],
    ids=["errors", "sudo", "user", "xargs", "run", "string", "document", "lines"],
)
@pytest.mark.proves("S11")
def test_a_command_of_the_ledger_is_one_whole_line_and_told_once(
    command: str, told: list[str]
) -> None:
    run = ("bash", json.dumps({"command": command}))
    first = drafted(user("Do it."), assistant("", 1, run))
    draft = drafted(assistant("", 2, run), previous=first)

    commands = [entry for entry in draft.ledger if entry.startswith("command ")]
    assert commands == [f"command {step}" for step in told]


def test_the_text_shows_where_a_command_was_given_a_document() -> None:
    commands = "sudo -n python3 <<EOF\nprint(1)\nEOF\nmake check; make check 2>&1"
    draft = drafted(user("Do it."), assistant("", 1, ("bash", json.dumps({"command": commands}))))

    assert "- python3 <<…; make check" in draft.text.split("\n")


@pytest.mark.proves("S11")
def test_what_every_project_holds_is_a_value_only_if_the_user_states_it() -> None:
    draft = drafted(
        user("Start with package.json."),
        assistant("", 1, ("bash", '{"command": "make check > /dev/null"}')),
        tool("README.md\npackage.json\n127.0.0.1\nsrc/rates.py", 2),
        assistant("I looked at README.md and go.mod, too, and at port 8080.", 3),
        tool("src/rates.py", 4),
    )

    values = " ".join(e for e in draft.ledger if not e.startswith("command ")).split()
    assert [name for name in ("package.json", "src/rates.py") if name not in values] == []
    common = ("README.md", "/dev/null", "127.0.0.1", "go.mod", "8080")
    assert [name for name in common if name in values] == []


@pytest.mark.proves("S11")
def test_a_digit_in_a_word_that_a_tool_printed_is_no_value() -> None:
    printed = "a 2-space indent, a 3-column grid and b1 in KX-12 steps"
    first = drafted(user("Make a 4-column page."), tool(printed, 1))
    draft = drafted(tool(printed, 2), previous=first)

    values = " ".join(draft.ledger).split()
    named = ("4-column", "2-space", "3-column", "b1", "KX-12")
    assert [name for name in named if name in values] == ["4-column", "KX-12"]


@pytest.mark.proves("S11")
def test_measures_that_only_tools_printed_have_no_entry_beside_calls() -> None:
    run = " ".join(f"took {at}.4 ms" for at in range(20))
    first = drafted(
        user("Keep it below 350 ms."), reading("/srv/app/main.py"), tool(run, 1), tool(run, 2)
    )
    second = drafted(assistant("A call takes 270 ms.", 3), tool(run, 4), previous=first)
    third = drafted(assistant("It still takes 270 ms.", 5), tool(run, 6), previous=second)

    assert [entry for entry in third.ledger if entry.startswith("measure ")] == [
        "measure 350 ms",
        "measure 270 ms",
    ]
