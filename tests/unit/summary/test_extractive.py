"""The summary without a model: what it keeps, how large it gets, and what code carries beside it."""

import json

import pytest

from tests.unit.summary.drafts import UUID, assistant, drafted, reading, tool, user
from turnfold.core.summary.redaction import redact
from turnfold.core.summary.sentences import SentenceKind, sentence_kinds, sentences
from turnfold.core.summary.sources import Draft
from turnfold.core.summary.tool_calls.actions import actions, file_changes
from turnfold.core.summary.tool_calls.arguments import shell_command


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
        ("bash", '{"command": "awk \'$1 > 0.5\' a.csv > b.csv"}', [("b.csv", "modified")]),
        (
            "bash",
            '{"command": "sudo tee /etc/app.conf > /dev/null <<EOF\\nx\\nEOF"}',
            [("/etc/app.conf", "modified")],
        ),
        ("bash", '{"command": "cp a.txt /b/a.txt 2> /dev/null"}', [("/b/a.txt", "modified")]),
        (
            "bash",
            '{"command": "rm old.txt > run.log"}',
            [("run.log", "modified"), ("old.txt", "modified")],
        ),
        ("bash", '{"command": "cat a.txt > /dev/stderr"}', [("a.txt", "read")]),
        ("bash", '{"command": "echo \'a -> b > c.txt\'"}', []),
        ("bash", '{"command": "python -c \'\\nif x > 0.5:\\n    pass\'"}', []),
        ("bash", '{"command": "sed -i s/main-new/main/g x.ts"}', [("x.ts", "modified")]),
        ("apply_patch", '{"input": "*** Update File: src/q.py\\n@@"}', [("src/q.py", "modified")]),
        ("shell", '{"command": ["bash", "-lc", "cat src/y.py"]}', [("src/y.py", "read")]),
        ("shell", '{"command": ["rm", "old.txt"]}', [("old.txt", "modified")]),
        ("shell", '{"command": ["head", "-c", "9", "src/y.py"]}', [("src/y.py", "read")]),
        (
            "shell",
            '{"commands": ["cat a.txt", "touch b.txt"]}',
            [("a.txt", "read"), ("b.txt", "modified")],
        ),
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
                ("shell", '{"command": ["bash", "-lc", "cat y.py"]}'),
                ("shell", '{"command": ["make", "all"]}'),
            )
        ]
    )

    assert [action.text for action in done] == ["npm test", "make all"]


def test_an_action_says_whether_it_was_a_command() -> None:
    calls = (("bash", '{"command": "make install"}'), ("send_mail", '{"to": "ada"}'))

    found = actions([assistant("", 3, *calls)])

    assert [(one.order, one.text, one.is_command) for one in found] == [
        (0, "make install", True),
        (0, "send_mail(to=ada)", False),
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


@pytest.mark.parametrize("sentence", ["这样可以？", "这样可以?", "これで大丈夫ですか。"])
def test_an_east_asian_question_ends_with_any_of_its_marks(sentence: str) -> None:
    assert SentenceKind.QUESTION in sentence_kinds(sentence, is_user=True)
    assert SentenceKind.QUESTION not in sentence_kinds("这样可以。", is_user=True)


@pytest.mark.parametrize("name", ["command", "cmd", "input"])
def test_a_shell_runs_what_stands_in_any_of_the_usual_arguments(name: str) -> None:
    assert shell_command("Bash", {name: "ls -la"}) == "ls -la"
    assert shell_command("Bash", {name: ["ls", "-la"]}) == "ls -la"
    assert shell_command("Bash", {name: {"ls": "-la"}}) is None
    assert shell_command("read_file", {name: "ls -la"}) is None


@pytest.mark.proves("S6")
def test_the_text_names_the_files_that_were_modified_and_those_that_were_read() -> None:
    edit = ("edit", '{"path": "/srv/a.py", "oldText": "x", "newText": "y"}')

    draft = drafted(
        user("Please fix the login page."), assistant("", 1, edit), reading("/srv/b.py")
    )

    assert "Files modified: /srv/a.py" in draft.text.splitlines()
    assert "Files read: /srv/b.py" in draft.text.splitlines()


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


@pytest.mark.proves("S10")
def test_the_prose_of_a_model_outlasts_many_lines_of_one_eviction() -> None:
    facts = [
        "The user is moving the billing service from Heroku to Hetzner.",
        "The certificate renewal is done by Caddy and not by certbot.",
        "The database dump is copied every night to the Falkenstein bucket.",
        "The user's colleague Priya approves every change of the firewall.",
    ]
    by_model = Draft(
        text="\n".join(facts), sections={"context": " ".join(facts)}, ledger=(), kind="llm"
    )
    said = [
        message
        for number in range(24)
        for message in (
            user(f"Please look at panel {number} and say why its line goes up after a restart."),
            assistant(f"The line of panel {number} goes up because its exporter counts twice."),
        )
    ]

    draft = drafted(*said, previous=by_model)

    assert all(fact in draft.text for fact in facts)


def test_narrative_summary_is_carried_without_its_sections() -> None:
    narrative = Draft(
        text="Mia asked for a refund of order KX-1. It was granted.",
        sections={},
        ledger=(),
        kind="llm",
    )

    draft = drafted(user("Please book a hotel."), previous=narrative)

    assert "Mia asked for a refund of order KX-1." in draft.text


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
        "Bearer\tabcdefghijklmnop1234",
        "Basic dXNlcjpwYXNzd29yZA==",
        "Basic Zm9vYmFyYmF6cXV4cXV4",
        "redis://:hunter2secret@cache",
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
    for title in (
        "Visual Basic\n================",
        "# Basic\n\n----------------",
        "Basic\n/usr/share/doc/",
        "the basic responsibilities of a bearer authentication-service",
        "Basic Responsibilities",
        "Visual Basic ================",
    ):
        assert redact(title) == title


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


def test_a_question_is_no_longer_open_once_the_user_has_spoken() -> None:
    first = drafted(
        user("Please move the billing tables to the new cluster."),
        assistant("I moved them. Shall I drop the old copies afterwards?"),
    )

    answered = drafted(user("No, keep them.", 2), assistant("They stay.", 3), previous=first)
    unanswered = drafted(assistant("", 2, ("bash", '{"command": "ls"}')), previous=first)

    assert first.sections["open_questions"] == ["Shall I drop the old copies afterwards?"]
    assert answered.sections["open_questions"] == []
    assert unanswered.sections["open_questions"] == first.sections["open_questions"]


def test_an_open_question_that_a_model_wrote_stays_until_a_model_resolves_it() -> None:
    question = "Which region does the standby run in?"
    written = Draft(
        text=f"Left open:\n- {question}",
        sections={"open_questions": [question]},
        ledger=(),
        kind="llm",
    )

    for number in range(2):
        written = drafted(user("Go on.", number), assistant("Done."), previous=written)

    assert written.sections["open_questions"] == [question]


@pytest.mark.parametrize(
    ("printed", "errors"),
    [
        ("  isError: true,\n  content: [],", []),
        ("lastError: null", []),
        ("  error: message.error,", []),
        ("requests.exceptions.SSLError: no certificate", ["requests.exceptions.SSLError: no certificate"]),
        ("_BuildError: no target", ["_BuildError: no target"]),
        ("Error: listen EADDRINUSE", ["Error: listen EADDRINUSE"]),
        ("error: undefined function get/2", ["error: undefined function get/2"]),
    ],
)  # fmt: skip
def test_a_field_in_code_is_no_error(printed: str, errors: list[str]) -> None:
    draft = drafted(user("Please fix the build."), tool(printed, 1))

    assert draft.sections.get("errors", []) == errors


@pytest.mark.parametrize(
    ("sentence", "is_constraint"),
    [
        ("Make sure the port stays 8443.", True),
        ("Please make sure the tests pass.", True),
        ("Deploy it, and make sure the tests pass.", True),
        ("I want you to make sure the tests pass.", True),
        ("I want to make sure my letter is good.", False),
        ("How can I make sure my talk is engaging?", False),
    ],
)
def test_what_the_user_wants_to_be_sure_of_is_no_constraint(
    sentence: str, is_constraint: bool
) -> None:
    kinds = sentence_kinds(sentence, is_user=True)

    assert (SentenceKind.CONSTRAINT in kinds) == is_constraint


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


@pytest.mark.parametrize("path", ["C:\\work\\a.py", "docs/\u00fcber.md", "\u6587\u6863/a.md"])
@pytest.mark.proves("S6")
def test_a_file_that_is_written_whole_has_its_path_to_the_letter(path: str) -> None:
    arguments = json.dumps({"path": path, "content": "x = 1\n" * 10_000})

    draft = drafted(user("Write it."), assistant("", 1, ("write_file", arguments)))

    assert draft.sections["file_changes"] == [{"path": path, "action": "modified"}]
    assert f"modified {path}" in draft.ledger
