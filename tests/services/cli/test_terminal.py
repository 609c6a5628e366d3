"""What commands print on terminals of 80, 120 and 200 columns, compared with tests/expected/cli/; to write that anew, run this as a module."""

import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nats
import pytest
from typer.main import get_group

from tests.environment import clean_environ
from tests.running_system import System, client_of, eventually, running_system
from tests.terminal_output import Terminal, columns, normalized, run, run_service
from turnfold.cli.application import application
from turnfold.cli.diagnoses import Finding
from turnfold.cli.doctor import show_findings
from turnfold.cli.up import announce, print_panel
from turnfold.client import Session
from turnfold.client.http import ask_http
from turnfold.process.supervisor import SystemConfig
from turnfold.settings import Settings

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
    "search ada talk ''",
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
    "history ada talk --state folded",
    "summaries show ada talk 0",
    "deadletters show first",
    "mcp ada talk",
    "completion bash",
    "completion zsh",
    "completion fish",
    "completion tcsh",
    "demo talk.json",
    "demo nothing.json",
    "up",
    "up --data-dir two --nats-port {nats_port}",
    "TURNFOLD_DATA_DIR=none worker",
    "TURNFOLD_DATA_DIR=none query",
    "TURNFOLD_DATA_DIR=none migrate",
    "TURNFOLD_DATA_DIR=none sessions",
    "TURNFOLD_HTTP_HOST=0.0.0.0 up --data-dir two",
    "proxy",
    "proxy --upstream ftp://models.example",
)
"""Commands that change nothing."""
CHANGES = (
    "replay talk.json --agent replayed-{width}",
    "policy set ada policy --number max_live_messages=40",
    "summaries regenerate ada long",
    "summaries regenerate adda",
    "summaries promote ada long 1",
    "summaries promote ada long 1 --json",
    "compact ada talk",
    "compact ada tal",
    "restore ada tall",
    "erase ada nothing --yes",
    "erase replayed-{width} --yes",
    "deadletters replay 1",
    "deadletters replay 99",
    "keys new agent ada --json --dir keys-{width}",
    "keys new worker --dir keys-{width}",
    "keys token --dir keys-{width}",
    "keys token ada --dir keys-{width}",
    "keys list --dir keys-{width}",
    "keys nats --dir none",
    "keys revoke tf_guessed --dir keys-{width}",
    "keys new ada --dir keys-{width}",
)  # fmt: skip
SERVICES = {
    "worker": "worker.standby",
    "TURNFOLD_HTTP_PORT=0 query": "query.started",
    "TURNFOLD_HTTP_PORT={http_port} query": "choose another port",
    "proxy --upstream http://127.0.0.1:9/v1 --port 0": "turnfold proxy: ",
    "proxy --upstream http://127.0.0.1:9/v1 --port {http_port}": "choose another port",
    "migrate": "system.migrated",
}
"""Commands that go on, or set up their process: each runs in one of its own, until it prints this."""
SERVICES_AT_ONCE = 2
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
    "proxy_url": "http://127.0.0.1:8090",
    "database_url": "sqlite+aiosqlite:////home/developers/ada/projects/agents/support/.turnfold/turnfold.db",
    "pids": {"nats": 101, "worker": 102, "receiver": 103, "query": 104, "lane": 105},
}  # fmt: skip
"""What `turnfold up` runs, in a folder whose path is longer than a line."""


def fixed(width: int) -> str:
    """The output of doctor and up for fixed paths, ports and processes."""
    printed = ""
    plan = SystemConfig(data_dir=Path(".turnfold"), proxy_upstream="https://models.example/v1")
    shows: dict[str, tuple[Callable[[], object], ...]] = {
        "up --proxy https://models.example/v1": (
            lambda: announce(plan, Settings(), lambda: None),
            lambda: print_panel(READY),
        ),
        "doctor": (lambda: show_findings(FINDINGS),),
    }
    for words, parts in shows.items():
        out = Terminal()
        with (
            patch.dict(os.environ, columns(width)),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
        ):
            for show in parts:
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


async def transcripts() -> Mapping[str, str]:
    """Everything that the commands print, by the name of the file that has it."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "talk.json").write_text(json.dumps(TALK))
        async with running_system(folder / "data", environ=SMALL) as system:
            await fill(system)
            printed = await asyncio.to_thread(_all, folder, system)
            for width in WIDTHS:
                printed[f"services-{width}"] = await _services(width, folder, system)
        words = {str(folder): "/home/ada"} | dict.fromkeys(_ports(system).values(), "8080")
        return {name: _replaced(text, words) for name, text in printed.items()}


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text


def _environment(folder: Path) -> dict[str, str]:
    return clean_environ({"TURNFOLD_DATA_DIR": str(folder / "data")})


def _ports(system: System) -> dict[str, str]:
    return {
        "nats_port": system.nats_url.rpartition(":")[2],
        "http_port": system.http_url.rpartition(":")[2],
    }


def _all(folder: Path, system: System) -> dict[str, str]:
    reads = [words.format(**_ports(system)) for words in READS]
    with patch.dict(os.environ, _environment(folder), clear=True), contextlib.chdir(folder):
        printed = {
            str(width): fixed(width) + "".join(run(words, width) for words in reads)
            for width in WIDTHS
        }
        # One width after the other: each finds what the changes before it have left.
        for width in WIDTHS:
            printed[str(width)] += "".join(
                run(words.format(width=width), width) for words in CHANGES
            )
            printed[f"help-{width}"] = "".join(
                run(f"{words} -h".strip(), width) for words in commands()
            )
    return printed


async def _services(width: int, folder: Path, system: System) -> str:
    places = asyncio.Semaphore(SERVICES_AT_ONCE)

    async def printed_by(command: str, told: str) -> str:
        async with places:
            environ = _environment(folder)
            return await run_service(command.format(**_ports(system)), told, width, environ)

    return "".join(await asyncio.gather(*(printed_by(*service) for service in SERVICES.items())))


def commands() -> list[str]:
    """The names of all commands and groups, the application itself first."""
    return list(_names(get_group(application()), ""))


def _names(group: Any, path: str) -> Iterator[str]:
    yield path
    for name in group.list_commands(None) if hasattr(group, "commands") else ():
        yield from _names(group.commands[name], f"{path} {name}".strip())


@pytest.fixture(scope="module")
def printed() -> Mapping[str, str]:
    return asyncio.run(transcripts())


@pytest.mark.timeout(600)
@pytest.mark.proves("V6", "C80")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("part", ["", "help-", "services-"])
def test_commands_print_what_is_expected_on_a_terminal(
    printed: Mapping[str, str], part: str, width: int
) -> None:
    name = f"{part}{width}"

    assert printed[name] == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.proves("V6")
@pytest.mark.parametrize("width", WIDTHS)
def test_every_command_has_an_expected_output_beside_its_help(width: int) -> None:
    texts = [(EXPECTED / f"{part}{width}.txt").read_text() for part in ("", "services-")]
    shown = re.findall(r"^\$ .*?\bturnfold ([^\n]*)$", "\n".join(texts), re.MULTILINE)
    _, *names = commands()
    leaves = [name for name in names if not any(other.startswith(f"{name} ") for other in names)]

    missing = [
        name for name in leaves if not any(f"{one} ".startswith(f"{name} ") for one in shown)
    ]

    assert not missing
    assert {"proxy", "summaries diff", "keys token"} <= set(leaves)


@pytest.mark.proves("V6", "C80")
@pytest.mark.parametrize("width", WIDTHS)
def test_a_help_is_as_wide_as_the_terminal_at_most_and_shows_no_type_of_python(width: int) -> None:
    text = (EXPECTED / f"help-{width}.txt").read_text()

    assert max(map(len, text.splitlines())) <= width
    assert not re.findall(r"<\w+[>|]|\bValue error\b|…", text)


@pytest.mark.proves("F1", "L7")
async def test_a_search_does_not_count_its_hits_as_all_if_its_answer_has_no_room_for_more(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path / "data") as system, client_of(system) as client:
        session = client.session("ada", "long")
        for _ in range(3):
            await session.turn_completed([{"role": "user", "content": "sesame " * 120_000}])
        window = await session.context(wait_ms=5_000)

        with patch.dict(os.environ, _environment(tmp_path), clear=True):
            printed = await asyncio.to_thread(run, "search ada long sesame", 80)

    assert window.fresh
    assert "the best 2 matches\n" in printed


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for file, text in asyncio.run(transcripts()).items():
        (EXPECTED / f"{file}.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {EXPECTED}\n")
