"""What `turnfold up` shows a person when it is ready."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnfold.cli.up import DATA_DIR, panel_printer, print_panel

READY = {
    "nats_url": "nats://127.0.0.1:4222",
    "http_url": "http://127.0.0.1:8080",
    "worker_url": "http://127.0.0.1:8081",
    "database_url": "sqlite+aiosqlite:///turnfold.db",
    "proxy_url": "http://127.0.0.1:8090",
    "pids": {},
}


def test_the_panel_names_the_base_url_of_each_kind_of_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_panel(READY)

    shown = capsys.readouterr().out
    assert "http://127.0.0.1:8090/v1  (OPENAI_BASE_URL)" in shown
    assert "http://127.0.0.1:8090  (ANTHROPIC_BASE_URL)" in shown


@pytest.mark.parametrize(
    ("data_dir", "where"),
    [(DATA_DIR, "(in this folder)"), (Path("/d a"), "(with TURNFOLD_DATA_DIR='/d a')")],
)
def test_the_panel_says_where_commands_find_the_system(
    capsys: pytest.CaptureFixture[str], data_dir: Path, where: str
) -> None:
    print_panel(READY, data_dir)

    assert where in " ".join(capsys.readouterr().out.replace("│", "").split())


def test_a_later_report_names_only_the_processes(capsys: pytest.CaptureFixture[str]) -> None:
    report = panel_printer(DATA_DIR)

    report(READY | {"pids": {"nats": 7}})
    panel = capsys.readouterr().out
    report(READY | {"pids": {"nats": 7, "model": 9}})

    assert "turnfold is ready" in panel
    assert capsys.readouterr().out == "processes: nats 7, model 9\n"


@pytest.mark.parametrize("name", ["a[/b]", "[draft] notes", ":cat:"])
def test_the_panel_shows_a_path_as_it_is(capsys: pytest.CaptureFixture[str], name: str) -> None:
    url = f"sqlite+aiosqlite:////{name}/t.db"

    print_panel(READY | {"database_url": url})

    assert url in capsys.readouterr().out


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"caf\\xe9\\udcff"), ("utf-8", b"\\udcff")]
)
def test_the_panel_shows_a_path_that_its_output_cannot_encode(encoding: str, shown: bytes) -> None:
    ready = READY | {"database_url": "sqlite+aiosqlite:////caf\xe9\udcff/t.db"}

    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from turnfold.cli.up import print_panel\nprint_panel({ready!a})",
        ],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, b"")
    assert shown in ended.stdout


@pytest.mark.proves("L1", "O2")
@pytest.mark.parametrize("output", ["a pipe without a reader", "/dev/full"])
def test_a_panel_that_cannot_be_written_does_not_end_the_system(output: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    if output == "/dev/full":
        os.close(writer)
        writer = os.open(output, os.O_WRONLY)
    program = f"from turnfold.cli.up import print_panel\nfor _ in range(2): print_panel({READY!r})"

    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False
    )

    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")
