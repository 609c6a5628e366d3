"""How a newcomer meets the system: publish, ask, see the summary come, stop, start again."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import turnfold
from tests.process_table import parts_alive
from tests.running_system import System, client_of, command, eventually, running_system, wait_until
from turnfold.core.history.validation import validation_errors

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
SMALL = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20"}


def exchange(number: int) -> list[Json]:
    """One turn: a question, a look at the order, and the answer."""
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "find_order", "arguments": f'{{"order": {7000 + number}}}'},
    }
    return [
        {"role": "user", "content": f"Where is order {7000 + number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": f"order {7000 + number}: parcel PX-{number:04d}, on its way",
        },
        {
            "role": "assistant",
            "content": f"Order {7000 + number} is on its way as parcel PX-{number:04d}.",
        },
    ]


@pytest.mark.proves("W1", "W5", "E2", "S4", "L5", "L7", "F1", "O2")
async def test_an_agent_publishes_asks_and_finds_its_old_turns_in_a_summary(tmp_path: Path) -> None:
    async with (
        running_system(tmp_path / "data", environ=SMALL) as system,
        turnfold.connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("support", "user-42")
        await session.turn_completed(
            [{"role": "system", "content": "You help customers of a parcel service."}]
        )

        # What was published is in the next window, every time.
        for number in range(12):
            await session.turn_completed(exchange(number), model="gpt-4.1")
            window = await session.context(max_tokens=50_000, wait_ms=5_000)
            assert window.fresh
            assert window.account.total == 1 + 4 * (number + 1)
            assert window.messages[0]["role"] == "system"
            assert window.messages[-4:] == exchange(number)
            assert not validation_errors(window.messages)

        # Old turns have left the window, and a summary speaks for them.
        async def summarised() -> turnfold.Window | None:
            seen = await session.context(max_tokens=50_000, placement="user")
            return (
                seen
                if seen.summary and not seen.account.pending_shown + seen.account.pending_digested
                else None
            )

        window = await eventually(summarised)
        assert window.summary is not None
        assert window.account.covered > 0
        assert window.account.shown + window.account.covered + window.account.folded == 49
        assert "Conversation Summary" in json.dumps(window.messages[:3])

        # Nothing is lost: the originals are all there, and words that left the window are found.
        originals = [stored async for stored in session.originals()]
        assert [stored.message for stored in originals[1:]] == [
            message for number in range(12) for message in exchange(number)
        ]
        assert {stored.state for stored in originals} == {"live", "covered"}
        assert "PX-0000" in json.dumps((await session.search("PX-0000"))[0].message)

        # Each step of it stands in the audit.
        assert {"evicted", "summary_start", "summary_done"} <= {
            row["phase"] async for row in session.audit_trail()
        }
        verified = await system.command("audit", "verify")
        assert verified.status == 0, verified


@pytest.mark.proves("W1", "W6", "O2", "X2")
async def test_the_same_journey_needs_nothing_but_http(tmp_path: Path) -> None:
    async with (
        running_system(tmp_path / "data", environ=SMALL) as system,
        system.http() as http,
    ):
        path = f"/v1/agents/support/sessions/{quote('user 42/語', safe='')}"

        for number in range(12):
            event = {
                "type": "turn.completed",
                "event_id": f"e{number}",
                "agent_id": "support",
                "session_id": "user 42/語",
            }
            published = await http.post(
                f"{path}/events", json=event | {"messages": exchange(number)}
            )
            assert published.status_code == 200, published.text
            asked = await http.get(
                f"{path}/context",
                params={"max_tokens": 50_000, "after": published.json()["seq"], "wait_ms": 5_000},
            )
            assert asked.json()["fresh"], asked.text
            assert asked.json()["messages"][-4:] == exchange(number)

        async def summarised() -> Json | None:
            seen: Json = (await http.get(f"{path}/context", params={"max_tokens": 50_000})).json()
            return seen if seen["summary"] and not seen["pending"]["messages"] else None

        window = await eventually(summarised)
        assert window["account"]["covered"] > 0
        unchanged = await http.get(
            f"{path}/context",
            params={"max_tokens": 50_000},
            headers={"If-None-Match": window["etag"]},
        )
        assert unchanged.status_code == 304
        version = window["summary"]["version"]
        assert (await http.get(f"{path}/summaries/{version}")).json()["text"] == window["summary"][
            "text"
        ]
        assert (
            len((await http.get(f"{path}/history", params={"limit": 100})).json()["messages"]) == 48
        )
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.proves("L1", "L2", "L10", "L11", "O2", "O3", "O4")
async def test_a_system_is_refused_a_second_time_stopped_and_started_again_without_any_difference(
    tmp_path: Path,
) -> None:
    async def seen_by(system: System) -> list[Any]:
        async with client_of(system) as client:
            session = client.session("support", "user-42")
            await eventually(lambda: _nothing_pending(session))
            # Windows tell how far the search index has come, which follows behind the summaries.
            await wait_until(lambda: _is_indexed(system))
            windows = [
                (await session.context(max_tokens=size)).raw for size in (1_500, 4_000, 50_000)
            ]
            return [
                windows,
                await session.summaries(),
                [row async for row in session.audit_trail()],
            ]

    # The budgets of the windows below must not make messages leave between them.
    environ = SMALL | {"TURNFOLD_POLICY__FOLLOW_BUDGET": "false"}
    async with running_system(tmp_path / "data", environ=environ) as system:
        async with client_of(system) as client:
            for number in range(15):
                await client.session("support", "user-42").turn_completed(
                    exchange(number), event_id=f"e{number}"
                )
            await client.session("support", "user-42").context(wait_ms=5_000)

        # What is taken already is said in one line, and the system that runs is not disturbed.
        port = system.nats_url.rpartition(":")[2]
        second, elsewhere = await asyncio.gather(
            command(
                "up",
                "--json",
                "--data-dir",
                str(system.data_dir),
                "--nats-port",
                "0",
                "--http-port",
                "0",
            ),
            command(
                "up",
                "--json",
                "--data-dir",
                str(tmp_path / "other"),
                "--nats-port",
                port,
                "--http-port",
                "0",
            ),
        )
        assert (second.status, second.out, elsewhere.status, elsewhere.out) == (1, "", 1, "")
        assert f"a system already runs on {system.data_dir}" in second.err
        assert (
            f"port {port} of 127.0.0.1 is in use; choose another with --nats-port" in elsewhere.err
        )
        assert second.err.count("\n") == elsewhere.err.count("\n") == 1

        # A stop signal in the middle of work: it ends in good order, and leaves nobody behind.
        before = await seen_by(system)
        async with client_of(system) as client:
            busy = client.session("support", "busy")
            await asyncio.gather(
                *(
                    busy.turn_completed(exchange(number), event_id=f"b{number}")
                    for number in range(100)
                )
            )
        assert await system.stop() == 0
        assert not parts_alive(system.lines)
        assert not (system.data_dir / "turnfold.json").exists()
        assert "Traceback" not in system.words()

        # The same directory, other ports, other processes: the same answers, and all that was acknowledged.
        await system.start()
        assert await seen_by(system) == before
        async with client_of(system) as client:
            await eventually(lambda: _holds(client.session("support", "busy"), 400))
            session = client.session("support", "user-42")
            await session.turn_completed(exchange(14), event_id="e14")
            await session.turn_completed(exchange(15), event_id="e15")
            window = await session.context(max_tokens=50_000, wait_ms=5_000)
            assert window.account.total == 64


def _is_indexed(system: System) -> bool:
    count: int
    with closing(sqlite3.connect(system.data_dir / "turnfold.db")) as database:
        rows = database.execute("SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL")
        (count,) = rows.fetchone()
        return count == 0


async def _nothing_pending(session: turnfold.Session) -> bool:
    return not (await session.status())["messages_pending"]


async def _holds(session: turnfold.Session, messages: int) -> bool:
    try:
        return bool((await session.status())["messages_total"] == messages)
    except turnfold.UnknownSession:  # nothing of it is stored yet
        return False


def test_make_clean_keeps_the_conversations_of_turnfold_up(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".turnfold", ".venv"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()

    subprocess.run(["make", "clean"], cwd=tmp_path, check=True)

    assert {path.name for path in tmp_path.iterdir()} == {".turnfold", "Makefile"}


@pytest.mark.parametrize(
    "name",
    [
        str(path.relative_to(ROOT))
        for folder in (".ci", "scripts", "deploy")
        for path in sorted((ROOT / folder).iterdir())
        if path.is_file() and path.read_bytes().startswith((b"#!/bin/sh", b"#!/usr/bin/env bash"))
    ],
)
def test_a_script_works_in_its_checkout_although_the_shell_looks_for_folders_elsewhere(
    name: str, tmp_path: Path
) -> None:
    """A script that CDPATH leads into another project deletes the `.venv` or the `dist` of that."""
    here, there = (tmp_path / place / Path(name).parent for place in ("here", "there"))
    for folder in (here, there):
        (folder.parent / "secrets").mkdir(parents=True)
        folder.mkdir()
    script = here / Path(name).name
    text = (ROOT / name).read_text()
    end = text.index("\n", text.index("\ncd ") + 1)
    script.write_text(f"{text[:end]}\npwd -P\n")

    ended = subprocess.run(
        ["bash" if name == ".ci/run" else "sh", name],
        cwd=here.parent,
        env=os.environ | {"CDPATH": str(there.parent)},
        check=True,
        capture_output=True,
        text=True,
    )

    is_of_secrets = name == "deploy/make-secrets"
    assert ended.stdout == f"{here.parent / 'secrets' if is_of_secrets else here.parent}\n"
