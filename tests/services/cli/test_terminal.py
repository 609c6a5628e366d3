"""What commands print on terminals of 80, 120 and 200 columns, compared with tests/expected/cli/; to write that anew, run this as a module."""

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nats
import pytest

import turnfold.cli
from tests.running_system import System, client_of, eventually, running_system
from turnfold.cli.diagnoses import Finding
from turnfold.cli.doctor import show_findings
from turnfold.cli.run import print_panel
from turnfold.client import Session
from turnfold.client.http import ask_http

EXPECTED = Path(__file__).parents[2] / "expected" / "cli"
WIDTHS = (80, 120, 200)
SMALL = {
    "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "12",
    "TURNFOLD_POLICY__KEEP_AT_MOST_MESSAGES": "6",
    "TURNFOLD_POLICY__KEEP_MESSAGES": "4",
    "TURNFOLD_POLICY__MIN_GAIN_MESSAGES": "1",
    "TURNFOLD_POLICY__MIN_GAIN_TOKENS": "0",
    # A recall block names the minute of what it quotes, and one minute may follow another.
    "TURNFOLD_POLICY__RECALL_SHARE": "0",
}
LONG_AGENT = "support-eu-west-1.production.example"
LONG_SESSION = "tenants/0042/conversations/7f9c2ba4-e88f-11ee-a951-0242ac120002"
LONG = f"{LONG_AGENT} {LONG_SESSION}"
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is order 7341?"},
    {"role": "assistant", "content": "It left Ghent this morning."},
    {"role": "user", "content": "订单什么时候到？" * 12},
    {"role": "assistant", "content": None, "tool_calls": [{
        "id": "call-1", "type": "function",
        "function": {"name": "find_parcel", "arguments": '{"parcel": "PX-0001"}'}}]},
    {"role": "tool", "tool_call_id": "call-1", "content": "parcel PX-0001: " + "in transit, " * 80},
    {"role": "assistant", "content": "https://parcels.example/track/" + "PX-0001-" * 12},
]  # fmt: skip
"""Long words and wide characters, and a result that a small window has no room for."""

READS = (
    "--version",
    "-h",
    "history -h",
    "console",
    "sessions",
    "sessions --agent adda",
    "context ada talk",
    "context ada talk --full",
    "context ada long --max-tokens 4200",
    "context ada long --max-tokens 4200 --explain",
    "context ada long --max-tokens 4200 --explain --as-of 1",
    "context ada long --max-tokens 60",
    "context ada long --max-tokens 60 --explain",
    "context ada long --max-tokens 100",
    "context ada tall",
    "context ada tall --as-of 2020-01-01T00:00:00Z",
    "history ada talk",
    "history ada long --newest 3",
    "history ada long --state pending",
    "history ada long --newest 3 --as-of 1",
    "history ada long --newest 2 --as-of long-000#1",
    "history ada long --as-of 99",
    "history ada nothing",
    "search ada talk PX-0001",
    "search ada talk Ghent",
    "search ada talk nowhere",
    "summaries list ada long",
    "summaries show ada long 1",
    "summaries diff ada long 1 2",
    "audit",
    "audit ada long",
    "audit ada policy --details",
    "audit verify",
    f"audit {LONG}",
    "policy show ada policy",
    "deadletters list",
    "deadletters show 1",
    "deadletters show 9",
    "fly",
)
CHANGES = (
    "replay talk.json --agent replayed-{width}",
    "policy set ada policy --number max_live_messages=40",
    "summaries regenerate ada long",
    "summaries promote ada long 1",
    "restore ada tall",
    "erase ada nothing --yes",
    "erase replayed-{width} --yes",
    "deadletters replay 1",
    "keys new agent ada --json",
    "keys list",
)  # fmt: skip
FINDINGS = (
    Finding("system", "ok", "/var/lib/turnfold (nats://127.0.0.1:4222)"),
    Finding("streams", "failed", "TURNFOLD_EVENTS: max_bytes", "run `turnfold migrate`"),
    Finding("database", "ok", "postgresql+asyncpg://turnfold:***@database.production.example/turnfold, schema 1010"),
    Finding("dead letters", "warning", "3 events could not be stored",
            "see the reasons with `turnfold deadletters list`; after a fix run `turnfold deadletters replay --all`"),
)  # fmt: skip


READY: dict[str, Any] = {
    "nats_url": "nats://127.0.0.1:4222",
    "http_url": "http://127.0.0.1:8080",
    "worker_url": "http://127.0.0.1:8081",
    "database_url": "sqlite+aiosqlite:////home/developers/ada/projects/agents/support/.turnfold/turnfold.db",
    "pids": {"nats": 101, "worker": 102, "receiver": 103, "query": 104, "lane": 105},
}  # fmt: skip
"""What `turnfold up` runs, in a folder whose path is longer than a line."""


class Terminal(io.StringIO):
    """A terminal, as far as commands look at it."""

    def isatty(self) -> bool:
        return True


def normalized(text: str) -> str:
    """The text without what differs between runs, each part of the same length."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = re.sub(
        r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{3})?",
        lambda found: f"2026-01-02{found[1]}03:04:05{'.678' if found[2] else ''}",
        text,
    )
    text = re.sub(r"\b\d\d:\d\d:\d\d\.\d{3}\b", "03:04:05.678", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(?!:)", "2026-01-02 03:04", text)
    text = re.sub(r"^\d{4}-\d\d-\d\d +\n", "2026-01-02\n", text, flags=re.MULTILINE)
    text = re.sub(r"\b[0-9a-f]{64}\b", "5e" * 32, text)
    text = re.sub(r"(?<=  )[0-9a-f]{8}(?=\s*$)", "5e5e5e5e", text, flags=re.MULTILINE)
    text = re.sub(r"\S+ \(nats://127.0.0.1:\d+\)", "DATA (nats://127.0.0.1:4222)", text)
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:8080", text)
    text = re.sub(r"agent-ada-\w+", "agent-ada-AAAAAAAA", text)
    text = re.sub(r"\bU[A-Z2-7]{55}\b", "U" + "A" * 55, text)
    text = re.sub(r"\b\d{15,19}\b", "1234567890123456789", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def run(words: str, width: int) -> str:
    """What a command prints on a terminal, and its status if that is not 0."""
    out, err = Terminal(), io.StringIO()
    mask = os.umask(0o077)
    status: Any = 0
    with (
        patch.dict(os.environ, {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            turnfold.cli.main(shlex.split(words))
        except SystemExit as ended:
            status = ended.code or 0
        finally:
            os.umask(mask)
    said = "".join(
        line for line in err.getvalue().splitlines(keepends=True) if "system: " not in line
    )
    told = f"(status {status})\n" if status else ""
    return f"$ turnfold {words}\n{normalized(out.getvalue() + said)}{told}\n"


def fixed(width: int) -> str:
    """The output of doctor and up for fixed paths, ports and processes."""
    printed = ""
    columns = {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}
    shows: dict[str, Callable[[], None]] = {
        "up": lambda: print_panel(READY),
        "doctor": lambda: show_findings(FINDINGS),
    }
    for words, show in shows.items():
        out = Terminal()
        with patch.dict(os.environ, columns), contextlib.redirect_stdout(out):
            show()
        printed += f"$ turnfold {words}\n{normalized(out.getvalue())}\n"
    return printed


async def publish(session: Session, messages: list[dict[str, Any]]) -> None:
    """Publish one event after the other; each is stored, and covered by a summary, before the next."""
    for number in range(0, len(messages), 2):
        await session.turn_completed(
            messages[number : number + 2], event_id=f"{session.key.session_id}-{number:03d}"
        )

        async def is_settled() -> bool:
            window = await session.context(wait_ms=5_000)
            return window.fresh and not (await session.status())["messages_pending"]

        await eventually(is_settled)


async def fill(system: System) -> None:
    """Sessions of all kinds: short, long, with an evicted part that can be restored, and with long ids."""
    async with client_of(system) as client:
        await publish(client.session("ada", "talk"), TALK)
        for name, turns in (("long", 11), ("tall", 7)):
            messages = [
                {"role": role, "content": f"{text} {number}?"}
                for number in range(turns)
                for role, text in (("user", "What is in box"), ("assistant", "Tea and tin"))
            ]
            await publish(client.session("ada", name), messages)
        await publish(client.session(LONG_AGENT, LONG_SESSION), TALK[:2])
        await publish(client.session("ada", "policy"), TALK[:2])
        await client.session("ada", "policy").policy(overrides={"max_live_messages": 30})
        bus = await nats.connect(system.nats_url)
        await bus.jetstream().publish("turn.completed", b"{}")
        await bus.close()

        async def is_refused() -> bool:
            path = "/v1/deadletters"
            return bool(
                (await asyncio.to_thread(ask_http, system.http_url, path, token=None))[
                    "dead_letters"
                ]
            )

        await eventually(is_refused)


async def transcripts() -> Mapping[int, str]:
    """Everything that the commands print, by width."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "talk.json").write_text(json.dumps(TALK[:2]))
        async with running_system(folder / "data", environ=SMALL) as system:
            await fill(system)
            return await asyncio.to_thread(_all, folder)


def _all(folder: Path) -> dict[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNFOLD_")}
    environ = kept | {"TURNFOLD_DATA_DIR": str(folder / "data")}
    with patch.dict(os.environ, environ, clear=True), contextlib.chdir(folder):
        printed = {
            width: fixed(width) + "".join(run(words, width) for words in READS) for width in WIDTHS
        }
        # One width after the other: each finds what the changes before it have left.
        for width in WIDTHS:
            printed[width] += "".join(run(words.format(width=width), width) for words in CHANGES)
    return printed


@pytest.fixture(scope="module")
def printed() -> Mapping[int, str]:
    return asyncio.run(transcripts())


@pytest.mark.proves("V6", "C80")
@pytest.mark.parametrize("width", WIDTHS)
def test_commands_print_what_is_expected_on_a_terminal(
    printed: Mapping[int, str], width: int
) -> None:
    assert printed[width] == (EXPECTED / f"{width}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for columns, text in asyncio.run(transcripts()).items():
        (EXPECTED / f"{columns}.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {EXPECTED}\n")
