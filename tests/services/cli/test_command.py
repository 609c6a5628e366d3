"""The command `turnfold` ends as promised: 0 done, 1 failed with one line, 2 wrong usage."""

import asyncio
import os
import pty
import shutil
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT
from unittest.mock import Mock

import pytest

from tests.running_system import command
from turnfold.cli.demo import demo
from turnfold.errors import StartError


def turnfold(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an interpreter of its own, for tests of what that does; others fork it."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "turnfold.cli", *arguments],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.proves("O3")
def test_help_names_every_command_that_runs_the_system() -> None:
    helped = turnfold("--help", COLUMNS="120")

    assert helped.returncode == 0
    assert all(
        f" {name} " in helped.stdout
        for name in ("up", "worker", "query", "proxy", "migrate", "doctor")
    )


@pytest.mark.proves("O3")
def test_the_version_is_told() -> None:
    told = turnfold("--version")

    assert (told.returncode, told.stdout.strip().count(".")) == (0, 2)


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    "arguments",
    [
        ("summaries", "fly"),
        ("up", "--nats-port", "many"),
        ("up", "--nats-port", "70000"),
        ("worker", "--fast"),
        ("deadletters", "replay", "--reason", "nosuch"),
        ("summaries", "regenerate", "--all", "--style", "nosuch"),
    ],
)
async def test_wrong_usage_ends_with_status_2(arguments: tuple[str, ...]) -> None:
    assert (await command(*arguments)).status == 2


@pytest.mark.proves("O3")
@pytest.mark.parametrize("arguments", [("restore", "ada", "s-1", "7"), ("erase", "ada", "s-1")])
def test_a_question_is_no_part_of_the_output(arguments: tuple[str, ...]) -> None:
    person, terminal = pty.openpty()
    os.write(person, b"n\n")
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "turnfold.cli", *arguments, "--json"],
        env=os.environ | {"TURNFOLD_NATS_URL": "nats://127.0.0.1:1"},
        stdin=terminal,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(person)
    os.close(terminal)

    assert (ended.returncode, ended.stdout.strip()) == (1, "")
    assert "the system nats://127.0.0.1:1" in ended.stderr


@pytest.mark.proves("O3")
def test_a_command_that_is_interrupted_ends_though_the_server_is_silent() -> None:
    # A shell starts what runs in the background with this signal ignored, and so its children.
    program = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from turnfold.client import http
http.HTTP_SECONDS = 3600
from turnfold.cli import main
main(["sessions"])
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        http_port = str(server.getsockname()[1])
        named = {"TURNFOLD_NATS_URL": "nats://127.0.0.1:1", "TURNFOLD_HTTP_PORT": http_port}
        with subprocess.Popen(
            [sys.executable, "-P", "-c", program], env=os.environ | named, stderr=PIPE
        ) as command:
            connection, _ = server.accept()
            command.send_signal(SIGINT)
            try:
                _, err = command.communicate(timeout=60)
            finally:
                command.kill()
                connection.close()

    assert (command.returncode, b"Traceback" in err) == (130, False)


@pytest.mark.proves("O3")
def test_streams_that_are_closed_or_full_cause_no_traceback() -> None:
    command = f"{sys.executable} -P -m turnfold.cli"

    ended = [
        subprocess.run(
            f"{command} {words}",
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for words in ("--help >/dev/full", "--help >&-", "replay - <&-", "replay - <&- 2>&-")
    ]

    assert (ended[0].returncode, ended[0].stderr) == (1, "turnfold: No space left on device\n")
    assert (ended[1].returncode, ended[1].stderr) == (0, "")
    assert [one.returncode for one in ended[2:]] == [1, 1]
    assert ended[2].stderr.startswith("turnfold: ")
    assert "Traceback" not in ended[2].stderr


@pytest.mark.proves("O3", "A4")
def test_an_instruction_that_is_no_text_is_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "prompt"
    path.write_bytes(b"\xff\xfe")

    ended = turnfold("summaries", "regenerate", "ada", "--prompt", str(path), COLUMNS="300")

    assert ended.returncode == 2
    assert "is not text in UTF-8" in ended.stderr


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    "arguments",
    [
        ("sessions", "--agent", "\udcff"),
        ("up", "--data-dir", "{folder}/caf\udce9", "--nats-port", "0", "--http-port", "0"),
        ("up", "--data-dir", "~nobody-here/x"),
    ],
)
def test_a_name_that_cannot_be_used_ends_a_command_with_one_line(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ended = turnfold(
        *(word.format(folder=tmp_path) for word in arguments), TURNFOLD_LOG_FORMAT="console"
    )

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("turnfold: ")
    assert "Traceback" not in ended.stderr


@pytest.mark.proves("O3")
def test_an_output_that_cannot_show_a_text_names_the_remedy(tmp_path: Path) -> None:
    arguments = ("keys", "new", "agent", "語", "--dir", str(tmp_path))

    ended = turnfold(*arguments, PYTHONIOENCODING="latin-1")

    assert ended.returncode == 1
    assert ended.stderr == (
        "turnfold: '\\u8a9e' is not possible in latin-1; set PYTHONIOENCODING=utf-8\n"
    )


async def test_keys_stay_as_they_were_if_the_accounts_cannot_be_written(tmp_path: Path) -> None:
    in_keys = ("--dir", str(tmp_path / "keys"))
    key = (await command("keys", "new", "worker", *in_keys, "--json")).rows[0]["key"]
    nats = ("--nats", str(tmp_path / "absent" / "nats-users.conf"))

    made = await command("keys", "new", "agent", "ada", *in_keys, *nats)
    revoked = await command("keys", "revoke", key, *in_keys, *nats)

    assert (made.status, revoked.status) == (1, 1)
    assert "cannot be written" in made.err
    listed = await command("keys", "list", *in_keys, "--json")
    assert [row["name"] for row in listed.rows] == [key]


@pytest.mark.proves("O3")
@pytest.mark.parametrize("kind", [("new", "worker"), ("token", "--operator")])
@pytest.mark.parametrize("name", ["file", "file/keys"])
async def test_a_directory_of_keys_that_cannot_be_written_is_told_with_the_remedy(
    kind: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    ended = await command("keys", *kind, "--dir", str(tmp_path / name))

    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"turnfold: {tmp_path}/{name} cannot be written (Not a dir")
    assert "name another directory with --dir" in ended.err


@pytest.mark.proves("V6")
@pytest.mark.parametrize("word", ["-h", "--help"])
async def test_help_for_a_command_may_be_asked_for_before_its_name(word: str) -> None:
    asked = await command(word, "summaries", "diff")

    assert (asked.status, asked.out) == (0, (await command("summaries", "diff", word)).out)
    assert "turnfold summaries diff" in asked.out
    assert "Run a worker" in (await command(word, "worker")).out


@pytest.mark.proves("O3")
@pytest.mark.parametrize("name", ["up", "demo"])
async def test_an_empty_data_directory_is_wrong_usage_and_not_the_current_one(name: str) -> None:
    ended = await command(name, "--data-dir", "", environ={"COLUMNS": "300"})

    assert ended.status == 2
    assert "must name a directory" in ended.err


@pytest.mark.proves("O3", "V6")
def test_a_wrong_command_is_answered_with_the_one_that_is_close_to_it() -> None:
    ended = turnfold("sesions")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "turnfold: `turnfold` has no command 'sesions'; did you mean 'sessions'?"
        " `turnfold -h` lists all\n"
    )


@pytest.mark.proves("O3", "G9")
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("context", "support", "-home-mia-shop/7", "--max-tokens", "8000"), 1),
        (("summaries", "list", "--json", "support", "-home-mia-shop/7"), 1),
        (("search", "support", "-tmp-shop/7", "-rf", "--limit", "3"), 1),
        (("context", "support", "-json"), 2),
        (("context", "support", "mia", "-x"), 2),
    ],
)
async def test_an_id_may_begin_with_a_dash_and_a_wrong_option_is_told(
    arguments: tuple[str, ...], status: int
) -> None:
    ended = await command(*arguments, environ={"TURNFOLD_NATS_URL": "nats://127.0.0.1:1"})

    assert ended.status == status
    assert ("No such option" if status == 2 else "no server answers") in ended.err


@pytest.mark.proves("V6")
def test_a_shell_completes_commands_with_the_script_that_the_command_prints() -> None:
    script = turnfold("completion", "bash")
    asked = {"_TURNFOLD_COMPLETE": "complete_bash", "COMP_WORDS": "turnfold h", "COMP_CWORD": "1"}
    completed = turnfold(**asked)

    assert (script.returncode, completed.returncode) == (0, 0)
    assert "_TURNFOLD_COMPLETE=complete_bash" in script.stdout
    assert completed.stdout.split() == ["history"]


@pytest.mark.proves("O3", "O5")
@pytest.mark.parametrize("name", ["up", "worker", "query", "migrate", "doctor"])
async def test_a_misspelt_setting_ends_every_command_with_one_line(
    name: str, tmp_path: Path
) -> None:
    ended = await command(name, environ={"TURNFOLD_DATADIR": str(tmp_path)})

    assert (ended.status, ended.out) == (1, "")
    assert (
        ended.err
        == "turnfold: there is no setting TURNFOLD_DATADIR: did you mean TURNFOLD_DATA_DIR?\n"
    )


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--data-dir", "{}"), "{} cannot be used (Not a directory); choose another --dat"),
        (("up", "--data-dir", "{}/data"), "{}/data cannot be used (Not a directory); choose anot"),
        (("demo", "--data-dir", "{}"), "{}/demo.log: Not a directory"),
    ],
)
def test_a_data_directory_that_is_a_file_is_said_to_be_no_directory(
    words: Sequence[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    ended = turnfold(*(word.format(tmp_path / "file") for word in words))

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"turnfold: {said.format(tmp_path / 'file')}")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.proves("O3")
async def test_a_demo_that_fails_on_a_full_disk_names_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_SERVER", str(tmp_path / "none"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=4_096))

    with pytest.raises(StartError) as failed:
        await asyncio.to_thread(demo, data_dir=tmp_path)

    assert f"; the disk of {tmp_path} is full (4,096 bytes are free)" in str(failed.value)


@pytest.mark.proves("O3", "O8")
@pytest.mark.parametrize("name", ["migrate", "worker", "query", "doctor --json"])
async def test_a_file_that_is_no_database_ends_a_command_with_the_remedy(
    name: str, tmp_path: Path
) -> None:
    database = tmp_path / "notes 1.txt"
    database.write_text("Nothing of this is a database. " * 100)

    ended = await command(
        *name.split(), environ={"TURNFOLD_DATABASE_URL": f"sqlite+aiosqlite:///{database}"}
    )

    remedy = f" {database} is not a SQLite database; correct TURNFOLD_DATABASE_URL or move it"
    assert ended.status == 1
    assert remedy in " ".join((ended.out + ended.err).split())
    assert "Traceback" not in ended.err


@pytest.mark.proves("O3", "O8")
@pytest.mark.parametrize("name", ["migrate", "doctor --json"])
async def test_a_place_where_no_database_can_be_is_to_be_corrected_and_not_tried_again(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    url = f"sqlite+aiosqlite:///{tmp_path}/file/turnfold.db"

    ended = await command(*name.split(), environ={"TURNFOLD_DATABASE_URL": url})

    assert ended.status == 1
    assert "correct TURNFOLD_DATABASE_URL" in ended.out + ended.err
    assert "try again later" not in ended.out + ended.err


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("format", "first"),
    [("console", "Starting NATS, a worker and a query service."), ("json", '"system.starting"')],
)
async def test_up_reports_at_once_what_it_starts_and_prints_nothing_before_it_is_ready(
    tmp_path: Path, format: str, first: str
) -> None:
    words = ("up", "--data-dir", str(tmp_path), "--nats-port", "0", "--http-port", "0")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "turnfold.cli", *words),
        env=os.environ | {"TURNFOLD_LOG_FORMAT": format},
        stdout=PIPE,
        stderr=PIPE,
    )
    assert child.stdout
    assert child.stderr

    said = (await child.stderr.readline()).decode()
    child.terminate()
    printed, _ = await child.communicate()

    assert first in said
    assert child.returncode == 0
    assert printed == b"" or printed.decode().startswith("╭")


@pytest.mark.proves("O3")
def test_a_command_whose_package_is_missing_names_the_extra() -> None:
    ended = turnfold("mcp", "support", "user-42")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "turnfold: turnfold.integrations.mcp needs the module mcp;"
        " install it with: pip install 'turnfold[mcp]'\n"
    )


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        (["mcp"], "typer", "mcp"),
        (["sessions"], "typer", "server"),
        ([], "typer", "server"),
        (["worker"], "structlog", "server"),
    ],
)
def test_a_client_without_the_packages_of_a_command_is_told_what_to_install(
    words: list[str], module: str, extra: str
) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-P", "-c"),
            f"import sys; sys.modules['{module}'] = None; import turnfold.cli; turnfold.cli.main()",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr == (
        f"turnfold: `{' '.join(['turnfold', *words])}` needs the module {module}, and"
        " `pip install turnfold` brings the client alone;"
        f" install the commands with: pip install 'turnfold[{extra}]'\n"
    )
