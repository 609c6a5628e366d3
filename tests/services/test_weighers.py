"""A backlog is weighed in a second process, which says the same and may die."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores import NOON
from turnfold.contracts.events import LIMITS
from turnfold.core.presets import PRESETS
from turnfold.operations.weighing import Delivery, weigh_all
from turnfold.vocabulary import load_counter
from turnfold_worker.weighers import MUCH_BYTES, Weighers

SECONDS = 30
TEXT = "They must not sail before noon: the tide tables in /srv/tides.csv were wrong by 17 minutes. 潮汐表不对。 "
PARENT = """
import asyncio
from turnfold_worker.weighers import Weighers
from turnfold.contracts.events import LIMITS
from turnfold.vocabulary import load_counter

async def main():
    weighers = Weighers(asyncio.create_task(asyncio.to_thread(load_counter)), limits=LIMITS)
    weighers.expect_much()
    while weighers.pid is None:
        await asyncio.sleep(0.05)
    print(weighers.pid, flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


def batch() -> list[Delivery]:
    """Events of every kind, bad ones among them, enough to be sent elsewhere."""
    identity = '"event_id": "e%d", "agent_id": "a", "session_id": "s"'
    turn = '{%s, "model": "m", "messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": null, "tool_calls": [%s]}]}'
    call = '{"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{\\"path\\": \\"/etc/hosts\\"}"}}'
    turns = [turn % (identity % number, TEXT * 20, call) for number in range(1, MUCH_BYTES // len(TEXT * 20) + 2)]
    result = '{%s, "tool_call_id": "c1", "content": {"lone": "\\ud83d"}, "is_error": true}' % (identity % 900)
    payloads = [("turn.completed", one) for one in [*turns, "}{", '{"event_id": "x"}']] + [("tool.result", result)]
    return [Delivery(subject, payload.encode(), seq, NOON + seq) for seq, (subject, payload) in enumerate(payloads, start=1)]


async def ready(weighers: Weighers) -> int:
    async with asyncio.timeout(SECONDS):
        while weighers.pid is None:  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.02)
    return weighers.pid


async def gone(pid: int) -> None:
    async with asyncio.timeout(SECONDS):
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


@pytest.mark.proves("I3", "I5")
async def test_a_batch_is_weighed_alike_here_and_in_the_second_process() -> None:
    weighers = Weighers(asyncio.create_task(asyncio.to_thread(load_counter)), limits=LIMITS)
    here = weigh_all(batch(), count=load_counter())
    try:
        assert await weighers.weigh(batch()) == here
        assert await ready(weighers) != os.getpid()
        there = await weighers.weigh(batch())
    finally:
        weighers.close()

    assert there == here
    assert (len(here.arrivals), [letter.reason for letter in here.dead]) == (len(batch()) - 2, ["not_json", "wrong_shape"])


@pytest.mark.proves("T2")
async def test_an_image_costs_what_the_installation_says_here_and_in_the_second_process() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * MUCH_BYTES}}
    turn = {"event_id": "e1", "agent_id": "a", "session_id": "s", "messages": [{"role": "user", "content": [image]}]}
    delivery = Delivery("turn.completed", json.dumps(turn).encode(), 1, NOON)
    weighers = Weighers(asyncio.create_task(asyncio.to_thread(load_counter)), limits=LIMITS, image_tokens=PRESETS["adaptive"].image_tokens)
    try:
        here = await weighers.weigh([delivery])
        await ready(weighers)
        there = await weighers.weigh([delivery])
    finally:
        weighers.close()

    assert here == there
    assert here.arrivals[0].messages[0].content_tokens == 300
    assert weigh_all([delivery], count=len).arrivals[0].messages[0].content_tokens == PRESETS["balanced"].image_tokens == 1_200


@pytest.mark.proves("L1")
async def test_a_batch_survives_the_process_that_was_to_weigh_it_and_the_next_one_has_another() -> None:
    weighers = Weighers(asyncio.create_task(asyncio.to_thread(load_counter)), limits=LIMITS)
    try:
        weighers.expect_much()
        first = await ready(weighers)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(SECONDS):
            while weighers.pid in (None, first):
                assert len((await weighers.weigh(batch())).arrivals) == len(batch()) - 2
                await asyncio.sleep(0.1)
    finally:
        weighers.close()


@pytest.mark.proves("O2")
async def test_the_second_process_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        child = int(await asyncio.to_thread(parent.stdout.readline))
        parent.kill()
    await gone(child)
