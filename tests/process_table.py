"""The processes of a system, as Linux tells them."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import forked_processes as forked


def parts_alive(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Which of the processes that these ready lines name still run."""
    return [pid for line in lines for pid in line["pids"].values() if state_of(pid)]


def parts_of(supervisor: int) -> dict[str, int]:
    """The living parts of a system by name, as Linux tells them."""
    found: dict[str, int] = {}
    unseen = [supervisor]
    while unseen:
        children = children_of(unseen.pop())
        unseen += children
        for pid in children:
            if name := forked.forked_role(pid) or _name_of(arguments_of(pid)):
                # The spare of a worker shows the name of the worker until it has its own.
                found.setdefault(name, pid)
    return found


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    with contextlib.suppress(OSError):
        return [
            int(child)
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if state_of(int(child))
        ]
    return []


def arguments_of(pid: int) -> list[bytes]:
    """The command line of a process; empty for one that has ended."""
    with contextlib.suppress(OSError):
        # The command line of a copy is filled up to the length that it had before.
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return []


def _name_of(arguments: Sequence[bytes]) -> str | None:
    """The name of the process with this command line in a ready line."""
    if arguments and arguments[0].endswith(b"nats-server"):
        return "nats"
    if b"turnfold.models" in arguments:
        return "model"
    last = arguments[-1].decode(errors="replace") if arguments else ""
    return (
        last
        if (b"turnfold.cli" in arguments or arguments[:1] == [b"turnfold"])
        and last in ("worker", "receiver", "query", "lane", "migrate")
        else None
    )


def state_of(pid: int) -> list[str]:
    """State, parent and so on, as Linux tells them; empty for a process that has ended."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields if fields[0] != "Z" else []
    return []
