"""The command `turnfold`."""

import os
import sys
from collections.abc import Sequence

from turnfold.errors import TurnfoldError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process: 0 done, 1 failed (one line says what to do), 2 wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # What any command or service writes is for its owner alone: the database, logs, streams and keys.
    os.umask(0o077)
    try:
        sys.exit(_run(given))
    except TurnfoldError as error:
        sys.stderr.write(f"turnfold: {' '.join(str(error).split())}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(given: list[str]) -> int:
    from turnfold.cli.services import SERVICES

    # Three of these start together under `turnfold up`; without options they need no parser, which takes a third of a second.
    if len(given) == 1 and given[0] in SERVICES:
        return SERVICES[given[0]]()
    from turnfold.cli.application import application

    application(given)(args=given, prog_name="turnfold")
    return 0
