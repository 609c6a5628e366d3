"""Running other programs: what they wrote, or an error that holds all of it."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMAND_SECONDS = 300.0
BUILD_SECONDS = 1_800.0


class CommandFailed(AssertionError):
    """A program ended with another status than 0."""


def output(
    command: Sequence[str | Path],
    *,
    stdin: bytes | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    seconds: float = COMMAND_SECONDS,
    with_errors: bool = False,
) -> bytes:
    """Return what a program wrote to standard output, and to standard error `with_errors`.

    Raises:
        CommandFailed: its status is not 0.
    """
    ended = subprocess.run(
        command,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        env=environ,
        cwd=directory,
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    if ended.returncode:
        words = (ended.stdout[-4_000:] + ended.stderr[-4_000:]).decode(errors="replace")
        raise CommandFailed(f"{' '.join(map(str, command))}: status {ended.returncode}\n{words}")
    return ended.stdout + ended.stderr if with_errors else ended.stdout
