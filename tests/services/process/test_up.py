"""`turnfold up` with a real nats-server and small substitutes for the services."""

import contextlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import nats
import pytest

from turnfold.access.identity import Identity
from turnfold.settings import read_settings
from turnfold.settings.urls import absolute_database_url
from turnfold.store.database.health import file_of

SERVICE = """
import os, signal, sys, time
from turnfold.process.ready import announce, follow_parent
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
follow_parent()
{body}
announce({pids})
time.sleep(600)
"""
UP = """
import asyncio, json, os, sys
from pathlib import Path
from turnfold.process.supervisor import SystemConfig, run
from turnfold.errors import StartError
given = json.loads(sys.argv[1])
paths = {name: Path(given[name]) for name in ("data_dir", "nats_server") if name in given}
plan = SystemConfig(environ=os.environ, **given | paths)
try:
    asyncio.run(run(
        plan,
        on_start=lambda: None,
        on_ready=lambda ready: print(json.dumps(ready), flush=True),
        log=lambda event, **fields: print(event, fields, file=sys.stderr, flush=True),
    ))
except StartError as error:
    sys.exit(f"turnfold: {error}")
"""


def service(body: str = "", pids: str = "{}") -> list[str]:
    """The command line of a stand-in that does `body`, then says that it is ready."""
    return [sys.executable, "-c", SERVICE.format(body=body, pids=pids)]


class Up:
    """One supervisor process and the ready lines it prints."""

    def __init__(self, data_dir: Path, *, wrapper: Sequence[str] = (), **plan: Any) -> None:
        commands = {
            "migrate": [sys.executable, "-c", ""],
            "worker": service(),
            "query": service(),
        } | plan.pop("commands", {})
        arguments = json.dumps(
            {"data_dir": str(data_dir), "nats_port": 0, "http_port": 0, "commands": commands} | plan
        )
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", UP, arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def ready(self, seconds: float = 20.0) -> dict[str, Any]:
        """The next ready line."""
        line = self._lines.get(timeout=seconds)
        assert line, f"it ended without a ready line: {self.ended()} {''.join(self.errors)}"
        found: dict[str, Any] = json.loads(line)
        return found

    def ended(self, seconds: float = 20.0) -> int:
        """Its exit status, once it ends by itself."""
        status = self.process.wait(timeout=seconds)
        for reader in self._readers:
            reader.join(timeout=seconds)
        return status

    def stop(self) -> int:
        """Its exit status after a stop signal."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def _read_lines(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr
        with self.process.stderr as lines:
            self.errors.extend(lines)


@contextlib.contextmanager
def up(data_dir: Path, **plan: Any) -> Generator[Up, None, None]:
    """A supervisor that does not outlive the test."""
    running = Up(data_dir, **plan)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
        running.ended()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it did not come true")
        time.sleep(0.01)


@pytest.mark.proves("O2")
async def test_the_ready_line_tells_where_everything_is_and_stands_in_the_data_directory(
    tmp_path: Path,
) -> None:
    with up(
        tmp_path / "data",
        commands={"worker": service(pids="{'worker': os.getpid(), 'model': os.getppid()}")},
    ) as system:
        ready = system.ready()

        connection = await nats.connect(ready["nats_url"])
        server = connection.connected_server_version
        await connection.close()

        file = tmp_path / "data" / "turnfold.json"
        assert server.major >= 2
        assert ready["database_url"] == f"sqlite+aiosqlite:///{tmp_path}/data/turnfold.db"
        assert ready["http_url"].startswith("http://127.0.0.1:")
        assert ready["http_host"] == "127.0.0.1"
        assert set(ready["pids"]) == {"nats", "worker", "model", "query"}
        assert all(is_alive(pid) for pid in ready["pids"].values())
        assert json.loads(file.read_text()) == ready
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.proves("O2", "O4")
def test_a_stop_signal_ends_every_process_and_takes_the_ready_line_away(tmp_path: Path) -> None:
    with up(tmp_path) as system:
        pids = system.ready()["pids"]

        status = system.stop()

        assert status == 0
        assert not [name for name, pid in pids.items() if is_alive(pid)]
        assert not (tmp_path / "turnfold.json").exists()


@pytest.mark.proves("O2")
def test_a_second_start_on_the_same_directory_is_refused_and_harms_nobody(
    tmp_path: Path,
) -> None:
    with up(tmp_path) as first:
        pids = first.ready()["pids"]

        with up(tmp_path) as second:
            status = second.ended()

        assert status == 1
        assert f"already runs on {tmp_path} (process {first.process.pid})" in "".join(second.errors)
        assert all(is_alive(pid) for pid in pids.values())
        assert (tmp_path / "turnfold.json").exists()


@pytest.mark.proves("L1", "O2")
@pytest.mark.parametrize("victim", ["worker", "query", "nats"])
def test_a_killed_part_is_started_again_on_the_same_ports(tmp_path: Path, victim: str) -> None:
    with up(tmp_path) as system:
        before = system.ready()

        os.kill(before["pids"][victim], signal.SIGKILL)
        after = system.ready()

        assert after["pids"][victim] != before["pids"][victim]
        assert {**after, "pids": 0} == {**before, "pids": 0}
        assert {
            name for name in after["pids"] if after["pids"][name] == before["pids"][name]
        } == set(before["pids"]) - {victim}
        assert json.loads((tmp_path / "turnfold.json").read_text()) == after


@contextlib.contextmanager
def lowered(pid: int, limit: int, most: int) -> Generator[None]:
    """Leave a process less of something while the body runs."""
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, limit, before)


@pytest.mark.proves("O2")
@pytest.mark.parametrize("victim", ["worker", "nats"])
@pytest.mark.parametrize(
    ("limit", "most", "event"),
    [
        (resource.RLIMIT_NOFILE, 3, "child.not_started"),
        (resource.RLIMIT_FSIZE, 0, "ready_line.not_written"),
    ],
)
def test_a_system_that_lacks_files_or_room_for_a_while_goes_on(
    tmp_path: Path, victim: str, limit: int, most: int, event: str
) -> None:
    with up(tmp_path) as system:
        before = system.ready()

        with lowered(system.process.pid, limit, most):
            os.kill(before["pids"][victim], signal.SIGKILL)
            wait_until(lambda: event in "".join(system.errors) or system.process.poll() is not None)
        after = system.ready()

        assert after["pids"][victim] != before["pids"][victim]
        assert {**after, "pids": 0} == {**before, "pids": 0}
        assert json.loads((tmp_path / "turnfold.json").read_text()) == after


@pytest.mark.proves("O3")
def test_a_system_that_cannot_write_its_ready_line_says_so_at_once(tmp_path: Path) -> None:
    # Set before the last process is ready, with which the line is written.
    body = (
        "import resource; "
        "resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))"
    )
    with up(tmp_path, commands={"query": service(body)}) as system:
        status = system.ended()

    assert status == 1
    assert f"{tmp_path} cannot be written (File too large)" in "".join(system.errors)


@pytest.mark.proves("O2")
def test_what_a_dead_part_started_ends_with_it(tmp_path: Path) -> None:
    body = "import subprocess; helper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with up(
        tmp_path, commands={"worker": service(body, "{'worker': os.getpid(), 'model': helper.pid}")}
    ) as system:
        before = system.ready()["pids"]

        os.kill(before["worker"], signal.SIGKILL)
        after = system.ready()["pids"]

        assert after["model"] != before["model"]
        wait_until(lambda: not is_alive(before["model"]))


@pytest.mark.proves("O2")
def test_a_replaced_helper_of_a_part_gives_a_new_ready_line(tmp_path: Path) -> None:
    with up(
        tmp_path,
        commands={"worker": service("announce({'model': 1}); time.sleep(1)", "{'model': 2}")},
    ) as system:
        assert system.ready()["pids"]["model"] in (1, 2)
        wait_until(
            lambda: json.loads((tmp_path / "turnfold.json").read_text())["pids"]["model"] == 2
        )


@pytest.mark.proves("L1", "O2")
def test_killing_the_supervisor_leaves_nobody_behind_and_the_directory_free(tmp_path: Path) -> None:
    with up(tmp_path) as system:
        pids = system.ready()["pids"]

        system.process.kill()
        with up(tmp_path) as next_one:
            again = next_one.ready()

            assert not set(pids.values()) & set(again["pids"].values())
            assert not [name for name, pid in pids.items() if is_alive(pid)]


@pytest.mark.proves("L1")
def test_a_server_that_outlives_its_supervisor_keeps_the_directory_locked(tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn-nats-server"
    deaf = tmp_path / "deaf"
    stubborn.write_text(
        f"#!{sys.executable}\nimport pathlib, signal, time\n"
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\npathlib.Path({str(deaf)!r}).touch()\ntime.sleep(600)\n"
    )
    stubborn.chmod(0o755)
    data = tmp_path / "data"
    with up(data, nats_server=str(stubborn)) as system:
        wait_until(deaf.exists)
        orphan = json.loads((data / "up.lock").read_text())["nats"]
        system.process.kill()
        system.ended()

    try:
        with up(data) as refused:
            assert refused.ended() == 1
            assert (
                f"process {orphan} (nats-server) of an earlier start still holds {data}"
                in "".join(refused.errors)
            )
    finally:
        os.kill(orphan, signal.SIGKILL)


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("option", "name"), [("--nats-port", "nats_port"), ("--http-port", "http_port")]
)
def test_a_port_in_use_is_said_at_once_with_the_option_that_changes_it(
    tmp_path: Path, option: str, name: str
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with up(tmp_path, **{name: port}) as system:
            status = system.ended()

    assert status == 1
    assert f"port {port} of 127.0.0.1 is in use; choose another with {option}" in "".join(
        system.errors
    )


@pytest.mark.proves("O3")
@pytest.mark.parametrize("part", ["migrate", "worker"])
def test_a_part_that_cannot_start_ends_the_system_and_its_words_are_seen(
    tmp_path: Path, part: str
) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('the database is not there')"]
    with up(tmp_path, commands={part: failing}) as system:
        status = system.ended()

    told = "".join(system.errors)
    assert status == 1
    assert "the database is not there" in told
    assert f"{part} could not start (exit status 1)" in told


def test_a_part_killed_before_it_was_ready_is_started_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    body = f"import pathlib; mark = pathlib.Path({str(mark)!r}); mark.exists() or (mark.touch(), os.kill(os.getpid(), 9))"
    with up(tmp_path / "data", commands={"query": service(body)}) as system:
        assert system.ready()["pids"]["query"]


def test_parts_get_the_settings_of_the_system_they_belong_to(tmp_path: Path) -> None:
    body = (
        "import json, pathlib; pathlib.Path('{}').write_text(json.dumps(dict(os.environ)))".format(
            tmp_path / "environ"
        )
    )
    with up(tmp_path / "data", http_host="127.0.0.1", commands={"query": service(body)}) as system:
        ready = system.ready()
        seen = json.loads((tmp_path / "environ").read_text())

    assert seen["TURNFOLD_NATS_URL"] == ready["nats_url"]
    assert seen["TURNFOLD_DATABASE_URL"] == ready["database_url"]
    assert ready["http_url"] == f"http://127.0.0.1:{seen['TURNFOLD_HTTP_PORT']}"


@pytest.mark.parametrize("is_in_file", [False, True])
def test_parts_and_commands_use_no_credentials_of_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_file: bool
) -> None:
    config = tmp_path / "turnfold.toml"
    config.write_text('nats_creds = "/none/of.creds"\nnats_tls_first = true\n' * is_in_file)
    monkeypatch.setenv("TURNFOLD_CONFIG", str(config))
    if not is_in_file:
        monkeypatch.setenv("TURNFOLD_NATS_CREDS", "/none/of.creds")
    file = tmp_path / "environ"
    body = f"import json, pathlib; pathlib.Path('{file}').write_text(json.dumps(dict(os.environ)))"
    with up(tmp_path / "data", commands={"query": service(body)}) as system:
        system.ready()
        of_command = read_settings({**os.environ, "TURNFOLD_DATA_DIR": str(tmp_path / "data")})

    of_part = read_settings(json.loads(file.read_text()))
    assert of_command.identity == of_part.identity == Identity()


def test_what_a_part_prints_may_be_lost_if_the_disk_is_full(tmp_path: Path) -> None:
    full = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh"]
    body = """os.write(1, b'Hello.\\n{"ready": true}\\n'); time.sleep(600)"""
    with up(tmp_path, wrapper=full, commands={"query": service(body)}) as system:
        assert system.ready()


def test_a_hangup_ends_the_system_unless_it_was_started_to_ignore_it(tmp_path: Path) -> None:
    # The tests themselves may run under nohup.
    default = "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    as_usual = [sys.executable, "-c", f"import os, signal, sys; {default}"]
    with (
        up(tmp_path / "plain", wrapper=as_usual) as plain,
        up(tmp_path / "kept", wrapper=["nohup"]) as kept,
    ):
        plain.ready()
        query = kept.ready()["pids"]["query"]
        for system in (plain, kept):
            system.process.send_signal(signal.SIGHUP)
        # It still replaces what ends.
        os.kill(query, signal.SIGKILL)

        assert kept.ready()["pids"]["query"] != query
        assert plain.ended() == 0


def test_a_free_port_is_kept_for_the_part_that_listens_on_it(tmp_path: Path) -> None:
    listen = (
        "import socket; listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
        "listener.bind(('127.0.0.1', int(os.environ['TURNFOLD_HTTP_PORT']))); listener.listen()"
    )
    with up(tmp_path, commands={"query": service(listen)}) as system:
        before = system.ready()

        os.kill(before["pids"]["query"], signal.SIGKILL)
        after = system.ready()

        port = int(after["http_url"].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            assert after["http_url"] == before["http_url"]


def test_a_relative_database_path_is_made_absolute_and_others_stay() -> None:
    assert (
        absolute_database_url("sqlite+aiosqlite:///./a.db?x=1")
        == f"sqlite+aiosqlite:///{Path.cwd().resolve()}/a.db?x=1"
    )
    assert absolute_database_url("sqlite+aiosqlite:////tmp/a.db") == "sqlite+aiosqlite:////tmp/a.db"
    assert (
        absolute_database_url("postgresql+asyncpg://me@host/db")
        == "postgresql+asyncpg://me@host/db"
    )


def test_a_relative_database_path_means_the_same_file_when_it_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "what?x%2Fy"
    folder.mkdir()
    monkeypatch.chdir(folder)

    file = file_of(absolute_database_url("sqlite+aiosqlite:///a%3Fb.db?x=1"))

    assert file == folder / "a?b.db"


@pytest.mark.proves("O2")
@pytest.mark.parametrize("name", ["what?x", "feature%2Flogin", "a#b c", 'q"uote\\b'])
def test_the_database_is_in_the_data_directory_whatever_its_name(tmp_path: Path, name: str) -> None:
    with up(tmp_path / name) as system:
        ready = system.ready()

    assert file_of(ready["database_url"]) == tmp_path / name / "turnfold.db"


LOADING_UP = """
import asyncio, os, sys, time
from pathlib import Path
from turnfold.process.forking import Copies
from turnfold.process.supervisor import SystemConfig, run

def load():
    print("loading", flush=True)
    time.sleep(600)
    yield "worker"

asyncio.run(run(
    SystemConfig(data_dir=Path(sys.argv[1]), nats_port=0, http_port=0, environ=os.environ, copies=Copies(load, print)),
    on_start=lambda: None,
    on_ready=print,
    log=print,
))
"""


@pytest.mark.proves("O4")
def test_a_stop_signal_ends_the_loading_of_the_services(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADING_UP, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
