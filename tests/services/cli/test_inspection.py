"""The client and the commands with the whole system behind them."""

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

import turnfold
from tests.running_system import TURNFOLD, command, eventually, running_system
from turnfold.cli import audit as audit_command
from turnfold.cli import sessions
from turnfold.cli.audit import audit
from turnfold.cli.connection import http_get
from turnfold.cli.context import context
from turnfold.client import Session, StoredMessage
from turnfold.core.history.audit_chain import seal
from turnfold.errors import UnknownSession
from turnfold.process.directory import LOCK_FILE, is_alive

Json = dict[str, Any]
USER = {"role": "user", "content": "Where is order 7341?"}
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.proves("W5", "E2", "L7", "S4", "A1", "F1")
async def test_an_agent_publishes_and_reads_its_own_writes_through_a_compaction(
    tmp_path: Path,
) -> None:
    small = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "50"}
    async with (
        running_system(tmp_path, environ=small) as system,
        turnfold.connect(system.nats_url) as client,
    ):
        session = client.session("support", "user.42 / 語")
        with pytest.raises(UnknownSession):
            await session.status()
        for number in range(30):
            await session.turn_completed(
                [
                    {"role": "user", "content": f"Question {number}?"},
                    {"role": "assistant", "content": "Yes."},
                ]
            )
            window = await session.context(max_tokens=100_000, wait_ms=5_000)
            assert window.fresh
            assert window.account.total == 2 * number + 2
            assert window.messages[-2]["content"] == f"Question {number}?"

        versions = await eventually(session.summaries)
        window = await session.context(placement="user")
        originals = [stored async for stored in session.originals()]
        trail = [row["phase"] async for row in session.audit_trail()]

        assert versions[0].version == 1
        assert window.summary is not None
        assert window.account.covered > 0
        assert window.account.total == 60
        assert len(originals) == 60
        assert originals[0].message == {"role": "user", "content": "Question 0?"}
        assert {"evicted", "summary_done"} <= set(trail)
        assert (await session.search("Question 0")).pop().message_id == originals[0].message_id
        assert await session.context(known=window, placement="user") is window


@pytest.mark.proves("O3", "L2", "A1", "F1", "F3")
async def test_a_replay_can_be_looked_at_and_repeated(tmp_path: Path) -> None:
    examples = [str(EXAMPLES / f"{name}.jsonl") for name in ("support-chat", "zh-travel")]
    chat = ("support", "support-chat")
    async with running_system(tmp_path) as system:
        first = await system.command("replay", *examples, "--speed", "25", "--json")
        again = await system.command("replay", *examples, "--json")

        assert first.status == 0, first.err
        assert [row["messages"] for row in first.rows] == [178, 201]
        assert all(row["summary_versions"] >= 2 and row["evictions"] >= 2 for row in first.rows)
        assert [row["messages"] for row in again.rows] == [178, 201]

        listed = await system.command("sessions", "--json")
        window = await system.command("context", *chat, "--json")
        readable = await system.command(
            "context", "travel-planner", "zh-travel", "--max-tokens", "4000"
        )
        versions = await system.command("summaries", "list", *chat, "--json")
        shown = await system.command("summaries", "show", *chat, "1")
        trail = await system.command("audit", *chat, "--json")
        verified = await system.command("audit", "verify")
        dead = await system.command("deadletters", "list", "--json")
        searched = await system.command("search", "travel-planner", "zh-travel", "爸妈", "--json")
        covered = ("--limit", "3", "--state", "covered")
        piped = await system.command("search", *chat, "order", *covered)
        nobody = await system.command("search", "support", "never", "order")
        wordless = await system.command("search", *chat, "?!")
        async with turnfold.connect(system.nats_url) as client:
            session = client.session(*chat)
            sources, entry = await session.expand(1, entry=1), (await session.summary(1)).ledger[1]

        assert {row["session_id"] for row in listed.rows} == {"support-chat", "zh-travel"}
        assert window.rows[0]["account"]["total"] == 178
        assert readable.status == 0
        assert "summary, version" in readable.out
        assert "祝您和爸妈旅途愉快" in readable.out
        assert len(versions.rows) == first.rows[0]["summary_versions"]
        assert "summary, version 1" in shown.out
        assert "evicted" in {row["phase"] for row in trail.rows}
        assert all(isinstance(row["details"], dict) for row in trail.rows)
        assert verified.status == 0, verified
        assert verified.out.count("intact") == 2
        assert (dead.status, dead.out) == (0, "")
        assert all("爸妈" in row["message"]["content"] for row in searched.rows)
        assert [line.split("\t")[2] for line in piped.out.splitlines()] == [
            "state",
            "covered",
            "covered",
            "covered",
        ]
        assert nobody.err.startswith("turnfold: agent 'support' has no session 'never';")
        assert (wordless.status, "contains no word" in wordless.err) == (1, True)
        told = [json.dumps(one["message"], ensure_ascii=False) for one in sources["messages"]]
        assert sources["how"] == "recorded"
        assert told
        assert all(any(value in one for value in entry.split()[1:]) for one in told)


TAMPERED = {
    "was changed": "UPDATE audit SET reason = 'another' WHERE ordinal = 2",
    "row 1 was changed": "UPDATE audit SET actor = 'key:SOMEBODY' WHERE ordinal = 1",
    "row 3 was changed": "UPDATE audit SET actor = '' WHERE ordinal = 3",
    "is missing": "DELETE FROM audit WHERE ordinal = 2",
    "row 3 is missing": """
        UPDATE audit SET ordinal = ordinal + 1000 WHERE ordinal > 2;
        INSERT INTO audit (agent_id, session_id, ordinal, at_ms, compaction_id, phase, reason, details, prev_hash, hash, actor)
        SELECT agent_id, session_id, 3, at_ms, compaction_id, phase, reason, details, prev_hash, hash, actor FROM audit WHERE ordinal = 2;
        UPDATE audit SET ordinal = ordinal - 999 WHERE ordinal > 1000
    """,
    "was added": """
        INSERT INTO audit (agent_id, session_id, ordinal, at_ms, compaction_id, phase, reason, details, prev_hash, hash, actor)
        SELECT agent_id, session_id, ordinal + 1, at_ms, compaction_id, phase, 'forged', '{}', hash,
               sealed(hash, agent_id, session_id, ordinal + 1, at_ms, compaction_id, phase, 'forged', NULL, NULL, '{}'), 'worker'
        FROM audit ORDER BY ordinal DESC LIMIT 1
    """,
    "the end is cut off": "DELETE FROM audit WHERE ordinal = (SELECT max(ordinal) FROM audit)",
}
"""What somebody does who may write to the database, by what the command says of it."""


@pytest.mark.proves("A1", "O3")
async def test_whoever_changes_removes_adds_or_cuts_off_audit_rows_is_found_out(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        session = client.session("support", "user.42 / 語")
        for number in range(30):
            await session.turn_completed(
                [
                    {"role": "user", "content": f"Question {number}?"},
                    {"role": "assistant", "content": "Yes."},
                ]
            )
        await session.context(wait_ms=5_000)
        await eventually(session.summaries)
        with contextlib.closing(
            sqlite3.connect(system.database, isolation_level=None)
        ) as connection:
            connection.create_function(
                "sealed", -1, lambda before, *values: seal(before, values, "worker")
            )
            # Who may write may also drop what protects the table; only the chain is left to tell.
            connection.executescript(
                "PRAGMA wal_autocheckpoint = 0; DROP TRIGGER audit_no_update; DROP TRIGGER audit_no_delete"
            )
            connection.execute("CREATE TEMP TABLE kept AS SELECT * FROM audit")
            assert (await system.command("audit", "verify")).status == 0
            for told, tampering in TAMPERED.items():
                connection.executescript(f"BEGIN; {tampering}; COMMIT")
                verified = await system.command("audit", "verify", "--json")
                connection.executescript(
                    "BEGIN; DELETE FROM audit; INSERT INTO audit SELECT * FROM kept; COMMIT"
                )
                assert verified.status == 1, told
                assert told in verified.rows[0]["verdict"]
                assert "was changed; compare it with a backup" in verified.err
            assert (await system.command("audit", "verify")).status == 0


@pytest.mark.proves("O1", "F2")
async def test_the_demo_shows_what_became_of_a_conversation_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    # A system of its own, whatever system the environment names.
    theirs = tmp_path / "theirs.db"
    config = tmp_path / "turnfold.toml"
    config.write_text(f'database_url = "sqlite+aiosqlite:///{theirs}"\n')
    odd = tmp_path / "odd.jsonl"
    odd.write_text(json.dumps({"id": "[/b] x", "messages": [USER]}) + "\n")
    ended = await command(
        "demo",
        str(EXAMPLES / "support-chat.jsonl"),
        str(odd),
        "--data-dir",
        str(tmp_path / "demo"),
        environ={
            "TURNFOLD_CONFIG": str(config),
            "TURNFOLD_DATABASE_URL": f"sqlite:///{theirs}",
            "TURNFOLD_PROXY_UPSTREAM": "http://127.0.0.1:1",
        },
    )
    out = ended.out

    assert ended.status == 0, ended.err
    assert not theirs.exists()
    assert "proxy (pid" not in out
    assert "support / support-chat" in out
    assert "replay / [/b] x" in out
    assert "summary, version" in out
    assert "audit trail" in out
    _, _, recalled = out.partition("asked now: What should I photograph")
    assert "take a photo of the box first" in " ".join(recalled.split())
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", out)]
    assert len(pids) >= 3
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.proves("O1")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals
) -> None:
    demo = subprocess.Popen(
        [*TURNFOLD, "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert demo.stdout
        shown = ""
        while "ready at" not in shown:
            line = demo.stdout.readline()
            assert line
            shown += line
        (data_dir,) = tmp_path.iterdir()
        has_ended = os.pidfd_open(json.loads((data_dir / LOCK_FILE).read_text())["up"])

        demo.send_signal(number)
        demo.communicate(timeout=60)

        assert select.select([has_ended], [], [], 60)[0]
        os.close(has_ended)
        assert number == signal.SIGKILL or not list(tmp_path.iterdir())
    finally:
        demo.kill()
        demo.wait()


@pytest.mark.proves("O3")
async def test_the_demo_starts_the_nats_server_that_is_named(tmp_path: Path) -> None:
    talk = tmp_path / "talk.json"
    talk.write_text(json.dumps([USER]))

    ended = await command(
        "demo", str(talk), environ={"TURNFOLD_NATS_SERVER": str(tmp_path / "none")}
    )

    assert ended.status == 1
    assert f"TURNFOLD_NATS_SERVER names {tmp_path / 'none'}" in ended.err


@pytest.mark.proves("O3")
async def test_all_dead_letters_are_listed_and_a_policy_without_numbers_is_shown(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path) as system:
        letters = 1_001
        bus = await nats.connect(system.nats_url)
        stream = bus.jetstream()
        for number in range(letters):
            await stream.publish("turn.completed.support.broken", f'{{"n": {number}'.encode())
        await bus.close()

        async def listed() -> list[Json]:
            ended = await system.command("deadletters", "list", "--json")
            assert ended.status == 0, ended.err
            return ended.rows if len(ended.rows) >= letters else []

        assert len(await eventually(listed)) == letters
        for name, value in (("mode", "manual"), ("preset", "rolling")):
            assert (await system.command("policy", "set", name, f"--{name}", value)).status == 0
            shown = await system.command("policy", "show", name, "--json")
            assert shown.status == 0, shown.err
            [policy] = shown.rows
            assert (policy[name], policy[f"{name}_from"]) == (value, "agent")
        assert (await system.command("policy", "show", "nobody")).status == 1


@pytest.mark.proves("O3")
async def test_a_pipe_gets_no_stored_text_that_controls_a_terminal(tmp_path: Path) -> None:
    odd = "\x1b]52;c;cHduZWQ=\x1b\\ red\x9b31m"
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        session = client.session("support", "会话\u3000一")
        await session.turn_completed([{"role": "user", "content": odd}])
        await session.context(wait_ms=5_000)
        bus = await nats.connect(system.nats_url)
        await bus.jetstream().publish("turn.completed.support.\x1b[2J", b"{")
        await bus.close()

        async def listed() -> str:
            out = (await system.command("deadletters", "list")).out
            return out if "not_json" in out else ""

        letters = await eventually(listed)
        sessions = (await system.command("sessions")).out
        history = (await system.command("history", "support", "会话\u3000一")).out

    assert sessions.splitlines()[1].split("\t")[:2] == ["support", "会话\u3000一"]
    assert "red" in history
    assert not {"\x1b", "\x9b"} & set(letters + history)


@pytest.mark.proves("W1")
async def test_a_window_is_shown_with_all_that_the_model_reads_in_each_format(
    tmp_path: Path,
) -> None:
    call = {"name": "find_parcel", "arguments": '{"parcel": "PX-0001"}'}
    items: list[Json] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "It may be lost."}]},
        {"type": "function_call", "call_id": "c-2", "name": "trace", "arguments": '{"by": "air"}'},
        {"type": "function_call_output", "call_id": "c-2", "output": "over Ghent"},
    ]
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        session = client.session("ada", "formats")
        await session.turn_completed(
            [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "refusal", "refusal": "Not that."}],
                    "tool_calls": [{"id": "c-1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c-1", "content": "in transit"},
            ]
        )
        await session.turn_completed(items, shape="responses")
        await session.context(wait_ms=5_000)
        shown = {
            shape: (await system.command("context", "ada", "formats", "--format", shape)).out
            for shape in ("openai", "anthropic", "responses")
        }

    for shape, text in shown.items():
        assert "None" not in text, shape
        for told in ("7341", "Not that.", "PX-0001", "in transit", "Where?", "air", "over Ghent"):
            assert told in text, (shape, told)
    assert "It may be lost." in shown["responses"]


@pytest.mark.proves("L7")
async def test_messages_without_a_place_in_any_window_are_not_explained_by_the_budget(
    tmp_path: Path,
) -> None:
    call = {"id": "c-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        session = client.session("ada", "odd")
        for rules in ("Be brief.", "Be kind."):
            await session.turn_completed([{"role": "system", "content": rules}, USER])
        await session.turn_completed([{"role": "assistant", "content": None, "tool_calls": [call]}])
        for call_id, content in (("c-1", "done"), ("c-1", "done"), ("c-2", "early")):
            await session.tool_result(call_id, content)
        await session.context(wait_ms=5_000)
        explained = await system.command("context", "ada", "odd", "--explain", "--json")
        piped = await system.command("context", "ada", "odd", "--explain")

    reasons = [row["shown"] for row in explained.rows]
    assert reasons == [
        "not shown: replaced by a newer system message",
        "whole",
        "whole",
        "whole",
        "whole",
        "whole",
        "not shown: copy of another result",
        "not shown: its call is not stored",
    ]
    heading, first, *_ = [line.split("\t") for line in piped.out.splitlines()]
    assert heading == ["messages", "first", "last", "state", "shown"]
    assert (first[0], *first[2:]) == ("system", "", "live", reasons[0])


@pytest.mark.proves("L7", "G3")
async def test_reasoning_that_no_item_follows_is_not_explained_by_the_budget(
    tmp_path: Path,
) -> None:
    thought: Json = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Lost?"}]}
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        session = client.session("ada", "thoughts")
        items: list[Json] = [USER, thought, {"role": "assistant", "content": "No."}, USER, thought]
        await session.turn_completed(items, shape="responses")
        await session.context(wait_ms=5_000)
        explained = await system.command(
            "context", "ada", "thoughts", "--explain", "--json", "--format", "responses"
        )

    reasons = [row["shown"] for row in explained.rows]
    assert reasons == ["whole"] * 4 + ["not shown: no item of its response follows"]


@pytest.mark.proves("A1", "O3")
@pytest.mark.parametrize("names", [["oldest", "older", "newer", "newest"], ["oldest", "b", "a"]])
async def test_a_session_that_gets_an_event_while_all_are_listed_is_verified_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    names: list[str],
) -> None:
    pages: list[str] = []
    async with running_system(tmp_path) as system:

        async def publish(name: str) -> None:
            async with turnfold.connect(system.nats_url) as client:
                await client.session("ada", name).turn_completed([USER])
                await client.session("ada", name).context(wait_ms=5_000)

        async def page(path: str) -> Json:
            answer = await http_get(path)
            pages.append(path)
            if len(pages) == 1:
                await publish("oldest")
            return answer

        for name in names:
            await publish(name)
        monkeypatch.setenv("TURNFOLD_DATA_DIR", str(tmp_path))
        monkeypatch.setattr(sessions, "PAGE", 2)
        monkeypatch.setattr(sessions, "http_get", page)
        await asyncio.to_thread(audit, ["verify"], as_json=True)

    verified = [json.loads(line)["session_id"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(verified) == sorted(names)


@pytest.mark.proves("A1", "O3")
async def test_an_audit_that_does_not_read_every_session_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        for name in ("oldest", "newer", "newest"):
            await client.session("ada", name).turn_completed([USER])
            await client.session("ada", name).context(wait_ms=5_000)
        await client.session("ada", "oldest").policy(mode="manual")
        monkeypatch.setenv("TURNFOLD_DATA_DIR", str(tmp_path))
        printed = []
        for page, limit in ((2, 1), (3, 1), (2, 0)):
            monkeypatch.setattr(audit_command, "PAGE", page)
            await asyncio.to_thread(audit, [], limit=limit, as_json=True)
            printed.append(capsys.readouterr())

    told = "only of the 2 sessions with the newest events"
    assert [("oldest" in one.out, told in one.err) for one in printed] == [
        (False, True),
        (True, False),
        (True, False),
    ]


@pytest.mark.proves("L7", "V6")
async def test_a_message_that_comes_between_window_and_history_is_explained_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_system(tmp_path) as system, turnfold.connect(system.nats_url) as client:
        session = client.session("ada", "busy")
        await session.turn_completed([USER])
        await session.context(wait_ms=5_000)
        loop = asyncio.get_running_loop()
        originals, late = Session.originals, iter([{"role": "user", "content": "And 7342?"}])

        async def publish() -> None:
            for message in late:
                await session.turn_completed([message])
                await session.context(wait_ms=5_000)

        async def delayed(chosen: Session, **fields: Any) -> AsyncIterator[StoredMessage]:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(publish(), loop))
            async for stored in originals(chosen, **fields):
                yield stored

        monkeypatch.setenv("TURNFOLD_DATA_DIR", str(tmp_path))
        monkeypatch.setattr(Session, "originals", delayed)
        await asyncio.to_thread(context, "ada", "busy", explain=True, as_json=True)

    explained = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["shown"] for row in explained] == ["whole", "whole"]


async def test_commands_without_a_system_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(json.dumps([USER]))
    environ = {"TURNFOLD_NATS_URL": "nats://127.0.0.1:1"}

    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "turnfold.cli",
        "replay",
        str(tmp_path / "talk.json"),
        stderr=subprocess.PIPE,
        env=os.environ | environ,
    )
    _, err = await asyncio.wait_for(child.communicate(), 30)

    assert child.returncode == 1
    assert err.decode().splitlines() == [
        "turnfold: no server answers at nats://127.0.0.1:1; start one with `turnfold up`, or set TURNFOLD_NATS_URL"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "only-an-agent"],
        ["context", "agent"],
        ["replay"],
        ["replay", "x", "--step", "word"],
        ["search", "agent", "session", "word", "--state", "retracted"],
    ],
)
async def test_a_command_called_the_wrong_way_ends_with_status_2(
    tmp_path: Path, arguments: list[str]
) -> None:
    ended = await command(*arguments, environ={"TURNFOLD_DATA_DIR": str(tmp_path)})

    assert (ended.status, bool(ended.err)) == (2, True)
