"""Canceled tasks end even if the first cancellation is swallowed."""

import asyncio

import pytest

from turnfold.process.tasks import cancel_and_wait


@pytest.mark.proves("O2")
async def test_an_answer_that_comes_with_the_cancellation_keeps_nobody_waiting_for_ever() -> None:
    answers = [asyncio.get_running_loop().create_future() for _ in range(3)]
    asked = 0

    async def ask() -> None:
        nonlocal asked
        for answer in answers:
            asked += 1
            await asyncio.wait_for(answer, timeout=3_600)

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    answers[0].set_result(None)
    async with asyncio.timeout(60):
        await cancel_and_wait(task)

    assert task.cancelled()
    assert asked in (1, 2)  # two where the cancellation was forgotten, before Python 3.12


async def test_tasks_end_however_they_end() -> None:
    async def fail() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            raise ValueError("so")

    failing, ready = asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(0, "done"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancel_and_wait(failing, ready)
    await cancel_and_wait()

    assert str(failing.exception()) == "so"
    assert ready.result() == "done"
