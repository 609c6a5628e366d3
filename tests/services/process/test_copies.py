"""The services of `turnfold up` are copies of it: what they share with it, and how they are replaced."""

import os
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from uuid import uuid4

import pytest

from tests.process_table import arguments_of, children_of, state_of
from tests.running_system import System, client_of, eventually, running_system, wait_until
from turnfold.client import Client
from turnfold.process.directory import LOCK_FILE

SERVICES = ("worker", "query")
CHILDREN = {"receiver": "worker", "lane": "query"}


def open_files(pid: int) -> set[str]:
    """The files and sockets of a process, other than its standard streams and pipes."""
    links = {int(link.name): str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return {name for number, name in links.items() if number > 2 and not name.startswith("pipe:")}


def copies_of(system: System, role: str) -> list[int]:
    """The running copies of the supervisor that show this role."""
    return [
        pid
        for pid in children_of(system.process.pid or 0)
        if arguments_of(pid) == [b"turnfold", role.encode()]
    ]


async def replaced(system: System, role: str, before: int) -> int:
    """The process that took the place of another one, when it is ready."""
    await wait_until(lambda: system.ready["pids"][role] != before, seconds=60, told=system.words)
    return int(system.ready["pids"][role])


async def works(system: System, client: Client) -> None:
    """Store a turn, and see it in a window."""
    session = client.session("ada", uuid4().hex)
    await session.turn_completed([{"role": "user", "content": "Where are the keys?"}])

    async def is_shown() -> bool:
        return bool((await session.context()).messages)

    await eventually(is_shown, told=system.words)


@pytest.mark.proves("O2")
async def test_services_and_their_children_are_copies_that_hold_nothing_of_the_supervisor(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path / "data") as system:
        supervisor = system.process.pid or 0
        above = open_files(supervisor)

        for role in (*SERVICES, *CHILDREN):
            pid = system.ready["pids"][role]
            shared = open_files(pid) & above

            assert copies_of(system, role) == [pid]
            # A service requests its children on one socket, and they request none.
            sockets = {name for name in shared if name.startswith("socket:")}
            assert len(sockets) == (role in SERVICES)
            assert not [name for name in shared if name.endswith(LOCK_FILE)]
        groups = {role: os.getpgid(system.ready["pids"][role]) for role in (*SERVICES, *CHILDREN)}
        assert all(groups[role] == system.ready["pids"][role] for role in SERVICES)
        assert all(groups[child] == groups[service] for child, service in CHILDREN.items())


@pytest.mark.proves("O2", "L1")
@pytest.mark.parametrize("role", [*SERVICES, *CHILDREN])
async def test_a_killed_copy_is_replaced_by_another_and_the_system_goes_on(
    tmp_path: Path, role: str
) -> None:
    async with running_system(tmp_path / "data") as system, client_of(system) as client:
        before = dict(system.ready["pids"])

        system.kill(role)
        after = await replaced(system, role, before[role])

        # Its number may be known before its title shows the role.
        await wait_until(lambda: copies_of(system, role) == [after], told=system.words)
        # Reaped, also where its service had requested it.
        await wait_until(lambda: not Path(f"/proc/{before[role]}").exists(), told=system.words)
        await works(system, client)
        # A child ends with its service.
        ended = [before[child] for child, service in CHILDREN.items() if service == role]
        await wait_until(lambda: not any(map(state_of, ended)), told=system.words)


@pytest.mark.proves("O2")
async def test_a_killed_supervisor_takes_all_copies_along(tmp_path: Path) -> None:
    async with running_system(tmp_path / "data") as system:
        pids = system.ready["pids"]

        system.process.kill()
        await system.ended()

        await wait_until(lambda: not any(state_of(pid) for pid in pids.values()), told=system.words)


@pytest.mark.timeout(120)
@pytest.mark.proves("O2")
async def test_a_receiver_is_executed_while_the_supervisor_cannot_copy_itself(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path / "data") as system, client_of(system) as client:
        worker, receiver = system.ready["pids"]["worker"], system.ready["pids"]["receiver"]
        supervisor = system.process.pid or 0

        os.kill(supervisor, SIGSTOP)
        try:
            os.kill(receiver, SIGKILL)
            await wait_until(
                lambda: any(arguments_of(pid)[-1:] == [b"receiver"] for pid in children_of(worker)),
                seconds=60,
                told=system.words,
            )
            await works(system, client)
        finally:
            os.kill(supervisor, SIGCONT)

        # The request that was given up has left no second receiver.
        await works(system, client)
        await wait_until(lambda: not copies_of(system, "receiver"), told=system.words)
        assert system.pid("worker") == worker
