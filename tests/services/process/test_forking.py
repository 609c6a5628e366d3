"""Copies of a process that serves forks, without the rest of a system."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PARENT = """
import asyncio, atexit, contextlib, json, os, signal, socket, subprocess, sys, threading
from pathlib import Path
from turnfold.process.supervised_process import ProcessSpec, SupervisedProcess, fork
from turnfold.process.forked_process import ForkClient, fork_client
from turnfold.process.forking import ForkServer

def tell(**said):
    os.write(2, json.dumps(said).encode() + b"\\n")

def main(arguments):
{copy}

async def run():
    server = ForkServer(main)
    server.start()
    client = ForkClient(server.requester)
    with contextlib.closing(server):
        spec = ProcessSpec("service", ["python", "service"], is_forked=True)
{parent}

asyncio.run(run())
"""
START = """
exited = asyncio.Event()
asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, exited.set)
child = SupervisedProcess(spec, await fork(spec, {"NAME": "ada"}, client), lambda pids: None)
while not child.ended.done():
    await exited.wait()
    exited.clear()
    child.look()
"""


def indented(code: str, by: int) -> str:
    """These lines of code, further to the right."""
    return "\n".join(" " * by + line for line in code.strip().splitlines())


def run(copy: str, parent: str) -> tuple[list[Any], str]:
    """The output of the copy and its parent: lines of JSON on standard error, and the other lines there."""
    done = subprocess.run(
        [sys.executable, "-c", PARENT.format(copy=indented(copy, 4), parent=indented(parent, 8))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return told, "\n".join(line for line in lines if not line.startswith("{"))


@pytest.mark.proves("O2")
@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("return", 0),
        ("sys.exit(3)", 3),
        ("sys.exit()", 0),
        ("sys.exit('no')", 1),
        ("raise ValueError", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    ],
)
def test_the_parent_learns_how_its_copy_ended(ends: str, status: int) -> None:
    told, _ = run(ends, START + "tell(status=child.ended.result())")

    assert told == [{"status": status}]


def test_a_copy_has_the_environment_and_the_name_of_its_request_and_nothing_open() -> None:
    copy = """
tell(
    arguments=arguments, environ=dict(os.environ), parent=os.getppid(),
    group=os.getpgrp() == os.getpid(),
    line=Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0"),
    files=sorted(int(file.name) for file in Path("/proc/self/fd").iterdir() if file.exists()),
    handlers=[signal.getsignal(number) is signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGCHLD)],
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
)
"""
    told, _ = run(copy, "lock = open(os.devnull)\n" + START + "tell(pid=os.getpid())")

    of_copy, of_parent = told
    assert of_copy["arguments"] == ["service"]
    assert of_copy["environ"] == {"NAME": "ada"}
    assert of_copy["line"] == ["turnfold", "service"]
    assert of_copy["parent"] == of_parent["pid"]
    assert of_copy["group"]
    # The standard streams, and the socket for requests of its own.
    assert of_copy["files"] == [0, 1, 2, 4]
    assert of_copy["handlers"] == [True, True]
    assert of_copy["blocked"] == []


def test_what_a_copy_registered_for_its_exit_runs() -> None:
    told, _ = run("atexit.register(lambda: tell(exit='copy'))", START)

    assert told == [{"exit": "copy"}]


def test_a_process_with_threads_is_not_copied() -> None:
    parent = """
go_on = threading.Event()
other = threading.Thread(target=go_on.wait)
other.start()
try:
    await fork(spec, {}, client)
except OSError as error:
    tell(error=str(error))
go_on.set()
"""
    told, _ = run("tell(began=True)", parent)

    assert told == [{"error": "the fork failed"}]


def test_a_copy_that_nobody_waits_for_does_not_begin(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    parent = """
with open(os.devnull, "r+b") as null:
    pending = client.request(["service"], {}, stdin=null.fileno(), stdout=null.fileno())
pending.close()
while True:
    await asyncio.sleep(0.01)
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        continue
    if pid:
        break
tell(status=status)
"""
    told, _ = run(f"Path({str(mark)!r}).touch()", parent)

    assert told == [{"status": 0}]
    assert not mark.exists()


def test_a_copy_of_a_service_requests_its_own_child_in_its_group() -> None:
    copy = """
if arguments == ["child"]:
    tell(child=os.getppid(), group=os.getpgrp())
    return
async def request():
    with open(os.devnull, "r+b") as null:
        pending = fork_client().request(["child"], {}, stdin=null.fileno(), stdout=null.fileno())
    process = await pending.begin()
    await asyncio.to_thread(process.wait)
    tell(service=os.getppid(), group=os.getpgrp(), ended=process.poll())
asyncio.run(request())
"""
    told, words = run(copy, START)

    of_child, of_service = told
    assert words == ""
    assert of_child["child"] == of_service["service"]
    assert of_child["group"] == of_service["group"]
    assert of_service["ended"] == 0
