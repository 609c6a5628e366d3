"""The code of an earlier commit, to run beside that of today."""

import os
import subprocess
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELVES = ("shared", "services", "migrations")

EXACT = "f03081a0c56d0c9b1edf8ed8ed8bda0d7bd7a2c9"
"""The last code that starts on no schema but its own, which it made itself; what runs when the tables are migrated runs on."""
TOLERANT = "4ee296221591ce063ac5aa23acb73b74cb0de470"
"""Code from before the newest migration that starts on newer tables, too."""


class NoHistory(Exception):
    """A commit is not to be had here; the text says which, and why."""


def code_of(commit: str, directory: Path) -> Mapping[str, str]:
    """Unpack the code of a commit; what the environment of a process needs to run it.

    Raises:
        NoHistory: this is no clone, or a shallow one.
    """
    try:
        packed = subprocess.run(
            ["git", "-C", ROOT, "archive", commit, *SHELVES], capture_output=True, check=True
        ).stdout
    except FileNotFoundError:
        raise NoHistory(
            f"git, and a clone in which it finds the commit {commit}, are needed"
        ) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise NoHistory(f"a clone with the commit {commit} is needed; git says: {said}") from None
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        if hasattr(
            tarfile, "data_filter"
        ):  # Python 3.11.4 and newer; 3.12 and 3.13 warn when no filter is named
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(directory)
    return {"PYTHONPATH": os.pathsep.join(str(directory / shelf) for shelf in SHELVES)}
