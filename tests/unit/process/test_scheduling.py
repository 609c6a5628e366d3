"""Lower priority affects one thread only, and is not used under high load; threads give way to each other."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from turnfold.process.scheduling import (
    BUSY_TASKS,
    NICENESS,
    SWITCH_SECONDS,
    is_load_low,
    lower_priority,
    use_idle_priority,
)


def policy_and_niceness() -> tuple[int, int]:
    """How the thread that asks is scheduled."""
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


def test_a_thread_gives_way_or_stands_back_alone() -> None:
    ours = policy_and_niceness()
    with (
        ThreadPoolExecutor(1, initializer=use_idle_priority) as one,
        ThreadPoolExecutor(1, initializer=lower_priority) as other,
    ):
        assert one.submit(policy_and_niceness).result() == (os.SCHED_IDLE, ours[1])
        assert other.submit(policy_and_niceness).result() == (ours[0], min(ours[1] + NICENESS, 19))

    assert policy_and_niceness() == ours


@pytest.mark.parametrize(
    ("tasks_a_core", "calm"), [(0.5, True), (BUSY_TASKS, True), (BUSY_TASKS + 0.5, False)]
)
def test_nobody_gives_way_on_a_busy_machine(
    tasks_a_core: float, calm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tasks_a_core * (os.cpu_count() or 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))

    assert is_load_low() is calm


@pytest.mark.parametrize("service", ["turnfold_worker.app", "turnfold_query.app"])
def test_a_computing_thread_of_a_service_gives_way_soon(service: str) -> None:
    """In a process of its own: the interval is the interpreter's."""
    program = f"import sys; from {service} import tune_interpreter; tune_interpreter(); print(sys.getswitchinterval())"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert float(told.stdout) == SWITCH_SECONDS
