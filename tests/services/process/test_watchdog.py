"""Processes that make no progress end themselves."""

import asyncio
import json
import sys
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGUSR1

import pytest

from tests.ports import free_port
from tests.running_system import START_SECONDS, eventually, readiness, running_parts
from turnfold.process.watchdog import STUCK_STATUS

STUCK = """
import signal
import time

signal.signal(signal.SIGUSR1, lambda *_: time.sleep(600))
from turnfold.cli import main

main(["{service}"])
"""
"""A service whose loop stands still from a signal on."""


@pytest.mark.proves("O4")
@pytest.mark.parametrize("service", ["worker", "query"])
async def test_a_service_whose_loop_stands_still_ends_itself_and_says_where_it_stood(
    service: str, tmp_path: Path
) -> None:
    async with running_parts(tmp_path) as parts:
        port = free_port()
        environ = {"TURNFOLD_WATCHDOG_SECONDS": "3", "TURNFOLD_LOG_FORMAT": "json"}
        environ |= {
            "TURNFOLD_WORKER_HTTP_PORT" if service == "worker" else "TURNFOLD_HTTP_PORT": str(port)
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", STUCK.format(service=service)),
            env=parts.environ | environ,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr

        async def is_ready() -> bool:
            return (await readiness(port))[0] == 200

        await eventually(is_ready, seconds=START_SECONDS)
        process.send_signal(SIGUSR1)

        told = [json.loads(line) async for line in process.stderr]

        assert await process.wait() == STUCK_STATUS
        (stuck,) = [line for line in told if line["event"] == "process.hung"]
        assert stuck["what"] == "the event loop"
        assert any("<lambda>" in place for place in stuck["at"])


LIVELY = """
import asyncio
import sys
from turnfold.process.watchdog import Watchdog


async def main() -> None:
    Watchdog(1.0).start()
    while True:
        print("alive", flush=True)
        await asyncio.sleep(0.1)


asyncio.run(main())
"""


STILL = """
import asyncio
from itertools import count
from turnfold.observability.logs import configure_logs
from turnfold.process.watchdog import Watchdog


async def main() -> None:
    configure_logs(role="test", format="json")
    dog, steps = Watchdog(15.0), count()
    dog.start()
    dog.watch("what goes on", lambda: next(steps), seconds=0.5)
    dog.watch("what has nothing to do", lambda: None, seconds=0.5)
    dog.watch("what does not go on", lambda: 1, seconds=2.0)
    await asyncio.sleep(600)


asyncio.run(main())
"""


@pytest.mark.proves("O4")
async def test_a_process_ends_when_what_is_to_go_on_does_not_though_its_loop_moves() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STILL, stderr=asyncio.subprocess.PIPE
    )

    _, told = await process.communicate()

    assert process.returncode == STUCK_STATUS
    assert json.loads(told)["what"] == "what does not go on"


@pytest.mark.proves("O4")
async def test_a_process_that_was_stopped_as_a_whole_goes_on_as_if_nothing_had_been() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LIVELY, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    try:
        await process.stdout.readline()
        process.send_signal(SIGSTOP)
        await asyncio.sleep(1.5)
        process.send_signal(SIGCONT)
        # For longer than the watchdog has patience.
        for _ in range(20):
            assert await process.stdout.readline() == b"alive\n"
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()
