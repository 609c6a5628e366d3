"""The summary without a model: what it keeps, how large it gets, and what code carries beside it."""

import json
import time
from typing import Any

import pytest

from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.ledger.candidates import Origin
from turnfold.core.summary.ledger.entries import entry_values
from turnfold.core.summary.redaction import redact
from turnfold.core.summary.sentences import SentenceKind, sentence_kinds, sentences
from turnfold.core.summary.sources import (
    Draft,
    PreviousSummary,
    Source,
    SummaryJob,
    head_and_tail,
    word_count,
)
from turnfold.core.summary.tool_calls.actions import MAX_FILES, actions, commands_of, file_changes
from turnfold.core.summary.tool_calls.arguments import argument_texts, shell_command
from turnfold.core.text.lines import clip
from turnfold.core.text.values import Value, values_in

UUID = "3f2a8c1e-9b7d-4e55-8a10-6c2f0d9e7b31"


def count(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // 3 + 1


def user(text: str, number: int = 0) -> Source:
    return Source(f"e{number}#0", "user", text)


def assistant(text: str, number: int = 0, *calls: tuple[str, str]) -> Source:
    return Source(f"e{number}#1", "assistant", text, calls)


def tool(text: str, number: int = 0, *, is_error: bool = False) -> Source:
    return Source(f"e{number}#2", "tool", text, tool_name="bash", is_error=is_error)


def drafted(
    *sources: Source,
    previous: Draft | None = None,
    newest_request: str | None = None,
    ledger_max_tokens: int = 2_000,
    **more: Any,
) -> Draft:
    before = (
        None
        if previous is None
        else PreviousSummary(previous.text, previous.sections, previous.ledger)
    )
    job = SummaryJob(
        sources=sources,
        previous=before,
        newest_request=newest_request,
        ledger_max_tokens=ledger_max_tokens,
        **more,
    )
    return extract(job, count=count)


def test_request_decision_constraint_and_result_stand_under_their_headings() -> None:
    draft = drafted(
        user("Please implement the retry queue. You must never touch the billing tables."),
        assistant("The retry queue is implemented and all 45 tests pass."),
        user("Let's go with exponential backoff."),
    )

    assert draft.sections["tasks"] == ["Please implement the retry queue."]
    assert draft.sections["constraints"] == ["You must never touch the billing tables."]
    assert draft.sections["decisions"] == ["Let's go with exponential backoff."]
    assert "The retry queue is implemented and all 45 tests pass." in draft.sections["context"]
    assert draft.text.startswith("The user asked:\n- Please implement the retry queue.")


def test_chinese_conversation_is_told_in_chinese() -> None:
    draft = drafted(
        user("你好，我叫张曼婷，很高兴认识你。"),
        assistant("你好，张曼婷，有什么能帮到你的吗？"),
        user("可以帮我推荐一个评分4.5分以上的酒店吗？预算不能超过500元。"),
        assistant("为您推荐北京云天酒店，电话是010-63553377，价格是420元。"),
        user("就选这家。"),
    )

    assert "用户提出：\n- 可以帮我推荐一个评分4.5分以上的酒店吗？" in draft.text
    assert draft.sections["facts"] == ["你好，我叫张曼婷，很高兴认识你。"]
    assert draft.sections["constraints"] == ["预算不能超过500元。"]
    assert draft.sections["decisions"] == ["就选这家。"]
    assert {"phone 010-63553377", "measure 500元", "measure 420元"} <= set(draft.ledger)


def test_japanese_conversation_is_told_in_japanese() -> None:
    draft = drafted(
        user("名古屋に行くんですけど、いい観光名所を紹介してもらえませんか？"),
        assistant("無料駐車場完備の古川美術館は、いかがでしょうか？予約番号は85832です。"),
    )

    assert draft.text.startswith("ユーザーの依頼：\n- 名古屋に行くんですけど")
    assert "予約番号は85832です。" in draft.text


def test_politeness_leaves_no_line() -> None:
    draft = drafted(
        user("Fix the login page."),
        assistant("Sure, happy to help!"),
        user("Thank you so much!"),
        assistant("You're welcome."),
    )

    assert draft.text == "The user asked:\n- Fix the login page."


@pytest.mark.proves("S6", "C46")
def test_modified_wins_over_read_and_is_carried_over_versions() -> None:
    first = drafted(
        user("Fix it."),
        assistant(
            "",
            1,
            ("read", '{"path": "/srv/a.py"}'),
            ("edit", '{"path": "/srv/a.py", "oldText": "x", "newText": "y"}'),
        ),
        assistant("", 2, ("Read", '{"file_path": "/srv/b.py"}')),
    )
    second = drafted(
        user("And now?"), assistant("", 3, ("read", '{"path": "/srv/a.py"}')), previous=first
    )

    assert second.sections["file_changes"] == [
        {"path": "/srv/b.py", "action": "read"},
        {"path": "/srv/a.py", "action": "modified"},
    ]
    assert "modified /srv/a.py" in second.ledger


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("str_replace_editor", '{"command": "view", "path": "/w/a.c"}', [("/w/a.c", "read")]),
        (
            "str_replace_editor",
            '{"command": "str_replace", "path": "/w/a.c"}',
            [("/w/a.c", "modified")],
        ),
        (
            "mcp__sandbox__sandbox_write",
            '{"path": "/tmp/x.sh", "content": "rm -rf /"}',
            [("/tmp/x.sh", "modified")],
        ),
        (
            "Bash",
            '{"command": "cat > /tmp/y.sh <<EOF\\ncat /etc/passwd\\nEOF"}',
            [("/tmp/y.sh", "modified")],
        ),
        ("bash", '{"command": "cd /w && sed -i s/a/b/ src/x.ts"}', [("src/x.ts", "modified")]),
        ("bash", '{"command": "head -5 README.md"}', [("README.md", "read")]),
        ("bash", '{"command": "sed -i s/main-new/main/g x.ts"}', [("x.ts", "modified")]),
        ("apply_patch", '{"input": "*** Update File: src/q.py\\n@@"}', [("src/q.py", "modified")]),
        ("search_direct_flight", '{"origin": "JFK"}', []),
        ("read", "not json", []),
    ],
)
@pytest.mark.proves("S6", "C46")
def test_files_are_read_from_calls(
    name: str, arguments: str, expected: list[tuple[str, str]]
) -> None:
    changes = file_changes(None, [assistant("", 1, (name, arguments))])

    assert [(change.path, change.action) for change in changes] == expected


def test_commands_that_only_look_around_are_not_told() -> None:
    done = actions(
        [
            assistant(
                "",
                1,
                ("bash", '{"command": "cd /w && ls -la | grep \\"a|b\\" && npm test"}'),
                ("bash", '{"command": "cat x.py"}'),
            )
        ]
    )

    assert [action.text for action in done] == ["npm test"]


def test_an_action_says_whether_it_was_a_command() -> None:
    calls = (("bash", '{"command": "make install"}'), ("send_mail", '{"to": "ada"}'))

    found = actions([assistant("", 3, *calls)])

    assert [(one.message_id, one.text, one.is_command) for one in found] == [
        ("e3#1", "make install", True),
        ("e3#1", "send_mail(to=ada)", False),
    ]


def test_calls_that_changed_the_world_are_told_and_lookups_are_not() -> None:
    done = actions(
        [
            assistant(
                "",
                1,
                ("get_user_details", '{"user_id": "mia_li_3668"}'),
                ("cancel_reservation", '{"reservation_id": "GV1N64"}'),
            )
        ]
    )

    assert [action.text for action in done] == ["cancel_reservation(reservation_id=GV1N64)"]


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
    draft = drafted(
        user("Let's go with exponential backoff. You must never touch the billing tables.", 1),
        assistant("", 2, ("bash", '{"command": "cd /w && npm run check -- --fix && ls"}')),
        tool(
            "Traceback (most recent call last):\nValueError: port 99999 is out of range",
            3,
            is_error=True,
        ),
        user("就选这家。预算不能超过500元。", 4),
    )

    assert {
        "decision Let's go with exponential backoff.",
        "constraint You must never touch the billing tables.",
        "command npm run check -- --fix",
        "error ValueError: port 99999 is out of range",
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
def test_a_damaged_count_of_what_was_left_out_is_read_from_the_last_entry_of_the_ledger(
    forgotten: object, marks: object
) -> None:
    damaged = {"left_out": {"forgotten": forgotten, "marks": marks, "until": 7}}
    before = PreviousSummary(
        "They spoke.", damaged, ("path /srv/a.toml", "left_out 41 more values, which search finds")
    )

    draft = extract(SummaryJob(sources=(user("It is /srv/b.toml."),), previous=before), count=count)

    assert draft.ledger == (
        "path /srv/b.toml",
        "path /srv/a.toml",
        "left_out 41 more values, which search finds",
    )
    assert draft.sections["left_out"] == {"forgotten": 41, "marks": "", "until": "e0#0"}


@pytest.mark.proves("S6", "C54", "O10")
@pytest.mark.parametrize(
    "entry",
    [
        "left_out many",
        "left_out -3 more values",
        "left_out 12345678901 more values",
        "left_out ",
        "left_outs 7",
    ],
)
def test_a_count_that_is_no_number_is_none(entry: str) -> None:
    before = PreviousSummary("They spoke.", {}, ("path /srv/a.toml", entry))

    draft = extract(SummaryJob(sources=(user("It is /srv/b.toml."),), previous=before), count=count)

    assert draft.sections["left_out"]["forgotten"] == 0


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


@pytest.mark.proves("S10")
def test_ten_compactions_of_equal_volume_do_not_grow_the_summary() -> None:
    def batch(number: int) -> list[Source]:
        return [
            source
            for turn in range(number * 12, number * 12 + 12)
            for source in (
                user(
                    f"Please check host-{turn:03}.example.org:8{turn:03} and tell me whether release 1.{turn:03}.0 is on it.",
                    turn,
                ),
                assistant(
                    f"Release 1.{turn:03}.0 is installed on host-{turn:03}, and the check of {turn + 100} files passed.",
                    turn,
                ),
            )
        ]

    drafts: list[Draft] = []
    for number in range(10):
        drafts.append(drafted(*batch(number), previous=drafts[-1] if drafts else None))

    sizes = [count("\n".join([draft.text, *draft.ledger])) for draft in drafts]
    assert max(count(draft.text) for draft in drafts) <= 1_200
    assert max(count(draft.text) for draft in drafts[1:]) <= count(drafts[0].text) * 1.1
    assert max(sizes) <= 1_200 + 2_100
    assert all(draft.text.count("The user asked:") == 1 for draft in drafts)


@pytest.mark.proves("C42")
def test_early_facts_outlive_filler_and_five_compactions() -> None:
    facts = [
        ("My dog is called Biscuit.", "Biscuit"),
        ("I am allergic to peanuts.", "peanuts"),
        ("My sister lives in Porto.", "Porto"),
        ("Our staging database listens on 10.0.0.5:5433.", "10.0.0.5:5433"),
        ("My user id is mia_li_3668.", "mia_li_3668"),
        ("The contract number is KX-20417.", "KX-20417"),
        ("I work as a cartographer.", "cartographer"),
        ("From now on answer in metric units.", "metric"),
    ]
    turns = [
        source
        for number, (fact, _) in enumerate(facts)
        for source in (user(fact, number), assistant("Noted, thank you for telling me.", number))
    ]
    for number in range(48):
        turns.append(
            user(
                f"Can you tell me something about topic {number}, for instance how people thought of it in the past?",
                100 + number,
            )
        )
        turns.append(
            assistant(
                f"Topic {number} has a long history. People in many countries wrote about it, and opinions changed over time.",
                100 + number,
            )
        )

    draft: Draft | None = None
    size = len(turns) // 5 + 1
    for start in range(0, len(turns), size):
        draft = drafted(*turns[start : start + size], previous=draft)

    assert draft is not None
    artifact = "\n".join([draft.text, *draft.ledger])
    assert [answer for _, answer in facts if answer not in artifact] == []


@pytest.mark.parametrize("sentence", ["这样可以？", "这样可以?", "これで大丈夫ですか。"])
def test_an_east_asian_question_ends_with_any_of_its_marks(sentence: str) -> None:
    assert SentenceKind.QUESTION in sentence_kinds(sentence, is_user=True)
    assert SentenceKind.QUESTION not in sentence_kinds("这样可以。", is_user=True)


@pytest.mark.parametrize("name", ["command", "cmd", "input"])
def test_a_shell_runs_what_stands_in_any_of_the_usual_arguments(name: str) -> None:
    assert shell_command("Bash", {name: "ls -la"}) == "ls -la"
    assert shell_command("Bash", {name: ["ls", "-la"]}) is None
    assert shell_command("read_file", {name: "ls -la"}) is None


def reading(*paths: str) -> Source:
    """Return an answer that reads these files."""
    return assistant("", 9, *[("read", json.dumps({"path": path})) for path in paths])


@pytest.mark.proves("S6")
def test_the_text_names_the_files_that_were_modified_and_those_that_were_read() -> None:
    edit = ("edit", '{"path": "/srv/a.py", "oldText": "x", "newText": "y"}')

    draft = drafted(
        user("Please fix the login page."), assistant("", 1, edit), reading("/srv/b.py")
    )

    assert "Files modified: /srv/a.py" in draft.text.splitlines()
    assert "Files read: /srv/b.py" in draft.text.splitlines()


@pytest.mark.proves("S6", "C46")
def test_files_leave_a_full_text_before_its_last_three_lines_do_and_the_newest_file_last() -> None:
    paths = [f"/srv/{name}/{'deep/' * 12}{name}.py" for name in ("one", "two", "six", "ten")]
    said = (
        user("Please implement the retry queue."),
        assistant("The retry queue is implemented and all 45 tests pass."),
        user("Let's go with exponential backoff."),
        tool("nothing to see\n" * 900),
    )
    lines = ["retry queue", "45 tests pass", "exponential backoff"]

    whole = drafted(*said, reading(*paths), max_tokens=2_000).text
    short = drafted(*said, reading(*paths), max_tokens=count(whole) - 60).text

    assert all(line in whole for line in [*lines, *paths])
    assert all(line in short for line in lines)
    assert [path in short for path in paths] == [False, False, False, True]


def test_summary_of_a_model_is_carried_on_by_the_extractive_one() -> None:
    sections = {
        "decisions": ["Postgres was chosen."],
        "constraints": [],
        "open_questions": [],
        "file_changes": ["src/db.py"],
        "context": "The store was rebuilt.",
    }
    by_model = Draft(
        text="It was decided:\n- Postgres was chosen.", sections=sections, ledger=(), kind="llm"
    )

    draft = drafted(user("Please add an index."), previous=by_model)

    assert draft.sections["decisions"] == ["Postgres was chosen."]
    assert "The store was rebuilt." in draft.sections["context"]
    assert draft.sections["file_changes"] == [{"path": "src/db.py", "action": "modified"}]


def test_narrative_summary_is_carried_without_its_sections() -> None:
    narrative = Draft(
        text="Mia asked for a refund of order KX-1. It was granted.",
        sections={},
        ledger=(),
        kind="llm",
    )

    draft = drafted(user("Please book a hotel."), previous=narrative)

    assert "Mia asked for a refund of order KX-1." in draft.text


@pytest.mark.parametrize(
    "sources",
    [
        [user("ok")],
        [tool("42")],
        [assistant("", 1, ("get_weather", "{}"))],
        [user("   "), tool("x")],
        [user("\x00\ud800 hm")],
    ],
)
def test_anything_at_all_gives_some_text(sources: list[Source]) -> None:
    draft = drafted(*sources)

    assert draft.text.strip()
    draft.text.encode()


@pytest.mark.proves("C32")
def test_nothing_gives_no_text() -> None:
    assert drafted(Source("e0#0", "system", "You are an agent.")).text == ""


def test_summary_is_smaller_than_what_it_stands_for() -> None:
    sources = [
        user(
            f"Please look at file number {number}. I think it should say something else about the weather.",
            number,
        )
        for number in range(30)
    ]

    draft = drafted(*sources)

    assert (
        count(draft.text) + sum(map(count, draft.ledger))
        < sum(count(source.text) for source in sources) * 0.7
    )


@pytest.mark.parametrize("max_tokens", [20, 60, 200])
@pytest.mark.proves("S4")
def test_token_cap_holds(max_tokens: int) -> None:
    sources = [
        user(f"Please implement part {number} of the plan and never break build {number}.", number)
        for number in range(40)
    ]

    assert count(drafted(*sources, max_tokens=max_tokens).text) <= max_tokens


def test_narrative_style_keeps_to_its_words() -> None:
    sources = [
        user(f"Please implement part {number} of the plan and never break build {number}.", number)
        for number in range(60)
    ]

    assert word_count(drafted(*sources, style="narrative", max_words=80).text) <= 80


def test_same_job_gives_the_same_draft() -> None:
    sources = [
        user("Fix /srv/a.py at 10.0.0.1:80."),
        assistant("Done.", 1, ("edit", '{"path": "/srv/a.py"}')),
    ]

    assert drafted(*sources) == drafted(*sources)


@pytest.mark.proves("X4")
def test_secrets_reach_neither_text_nor_ledger() -> None:
    key = "sk-abcdefghijklmnopqrstuvwxyz123456"
    draft = drafted(
        user(
            f"Please use the key {key} and password=hunter2hunter2 for postgres://app:s3cr3tpw@db:5432/x."
        ),
        newest_request=f"use {key}",
    )

    artifact = "\n".join([draft.text, *draft.ledger])
    assert not any(secret in artifact for secret in (key, "hunter2hunter2", "s3cr3tpw"))
    assert "[REDACTED:key]" in artifact


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "a1B2" * 9,
        "AKIAABCDEFGHIJKLMNOP",
        "xoxb-1234567890-abcdef",
        "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4",
        "Bearer abcdefghijklmnop1234",
    ],
)
@pytest.mark.proves("X4")
def test_well_known_secrets_are_redacted(secret: str) -> None:
    assert secret.rsplit(maxsplit=1)[-1] not in redact(f"header: {secret} end")


@pytest.mark.proves("X4")
def test_private_key_is_redacted_even_when_cut_off() -> None:
    assert redact("a -----BEGIN RSA PRIVATE KEY-----\nMIIE...\n") == "a [REDACTED:private_key]"


def test_ordinary_text_is_not_redacted() -> None:
    text = f"The token count is 1200; monkey: banana, task-1234567890, hash {'a1' * 20}, {UUID}."

    assert redact(text) == text


def test_cut_texts_say_how_much_is_missing() -> None:
    assert (
        head_and_tail("a" * 10 + "b" * 5 + "c" * 10, 10, 10)
        == "a" * 10 + "\n[… 5 characters left out …]\n" + "c" * 10
    )
    assert clip("one two three four", 15) == "one two three…"


def test_time_is_linear_in_the_input() -> None:
    def seconds(factor: int) -> float:
        sources = [
            user("啊" * 16_000 * factor),
            tool("x" * 16_000 * factor),
            tool(("0" * 50 + "/") * 300 * factor),
            user("a." * 8_000 * factor),
        ]
        start = time.perf_counter()
        drafted(*sources)
        return time.perf_counter() - start

    seconds(1)

    assert min(seconds(4) for _ in range(3)) < max(min(seconds(1) for _ in range(3)) * 16, 0.5)


@pytest.mark.proves("S2", "O10")
@pytest.mark.parametrize(
    ("text", "is_user", "sense"),
    [
        ("できれば静かな部屋", True, SentenceKind.CONSTRAINT),
        ("ホテルは予約してある", True, SentenceKind.DECISION),
        ("駅前でお土産を探して", True, SentenceKind.REQUEST),
        ("お名前は花子", True, SentenceKind.FACT),
        ("ご予約は完了", False, SentenceKind.RESULT),
        ("请找安静的房间", True, SentenceKind.REQUEST),
        ("就选这家酒店", True, SentenceKind.DECISION),
    ],
)
def test_a_sentence_of_the_east_is_understood_by_the_words_of_its_own_language(
    text: str, is_user: bool, sense: SentenceKind
) -> None:
    assert sentence_kinds(text, is_user=is_user) == {sense}


@pytest.mark.proves("S6", "O10")
def test_the_name_of_a_tag_that_closes_itself_is_no_value() -> None:
    assert values_in("<user42x /> runs v2<br3x/>of it") == [Value("version", "v2")]


@pytest.mark.proves("X5", "O10")
def test_no_more_than_two_hundred_arguments_of_a_call_are_looked_at() -> None:
    many = json.dumps({f"name{number}": f"text {number}" for number in range(300)})

    # The arguments as a whole are the first of two hundred.
    assert len(list(argument_texts(many))) == 199


def test_a_text_of_exactly_the_limit_is_not_clipped() -> None:
    assert clip("abcd efgh", 9) == "abcd efgh"
    assert len(clip("abcd efghi", 9)) <= 9


def test_the_oldest_modified_files_go_first_when_there_are_too_many() -> None:
    calls = [("edit", json.dumps({"path": f"/srv/{number}.py"})) for number in range(MAX_FILES + 2)]

    changes = file_changes(None, [assistant("", 1, *calls)])

    assert [change.path for change in changes] == [
        f"/srv/{number}.py" for number in range(2, MAX_FILES + 2)
    ]


def test_what_the_last_answer_asks_or_leaves_open_is_an_open_question() -> None:
    draft = drafted(
        user("Please move the billing tables to the new cluster."),
        assistant(
            "I moved three of the five billing tables. Shall I drop the old copies afterwards? "
            "I still need to move the two largest tables."
        ),
    )

    open_lines = " ".join(draft.sections["open_questions"])
    assert "drop the old copies" in open_lines
    assert "two largest tables" in open_lines


def test_the_last_answer_before_the_user_speaks_counts_more_than_those_between() -> None:
    between = "The checkout service reads its configuration from the environment."
    final = "The payment service writes its ledger to the second database."
    draft = drafted(
        user("Look at both services."),
        assistant(between, 1),
        assistant(final, 2),
        user("Thanks, go on.", 3),
    )

    assert final in draft.text
    assert between not in draft.text


def test_a_long_command_that_is_cut_does_not_end_with_a_space() -> None:
    command = "git commit -m " + "x" * 20 + " " + "y" * 40

    (step,) = commands_of("bash", json.dumps({"command": command}), max_characters=35)

    assert step == "git commit -m " + "x" * 20


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


@pytest.mark.proves("S6")
@pytest.mark.parametrize("alone", ["y", "3", "好", "}"])
def test_a_single_character_is_no_sentence(alone: str) -> None:
    assert list(sentences(f"The port is 8443.\n{alone}\nGo on.")) == ["The port is 8443.", "Go on."]


@pytest.mark.proves("S6")
@pytest.mark.parametrize(
    "request_",
    [
        "Please restart the build server <now>.",
        "<log>\ndisk full\n</log>\nPlease restart the build server.\n<env>prod</env>",
        "<log>disk full</log>\nPlease restart the build server.",
    ],
)
def test_what_an_agent_wrote_in_tags_under_the_name_of_its_user_is_no_request(
    request_: str,
) -> None:
    notice = "<status>\nPlease restart the build server now.\n</status>\n<env>prod</env>\n"

    first = user("Please move the billing tables to the new cluster.")

    noticed, asked = (drafted(first, user(text, 1)).text for text in (notice, request_))

    assert "restart" not in noticed
    assert "Please restart the build server" in asked
