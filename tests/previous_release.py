"""The code of an earlier commit, to run beside today's."""

import os
import subprocess
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELVES = ("shared", "services", "migrations")

PREVIOUS = "13993cc4429c1f2ad5c6f4bf6aecb0a25068a867"
"""The first code on the tables of migration 1001."""


class NoHistory(Exception):
    """A commit cannot be read here; the text says which, and why."""


def code_of(commit: str, directory: Path) -> Mapping[str, str]:
    """Unpack the code of a commit and return the environment that a process needs to run it.

    Raises:
        NoHistory: this is no clone, or a shallow one.
    """
    unpack(commit, directory, *SHELVES)
    return {"PYTHONPATH": os.pathsep.join(str(directory / shelf) for shelf in SHELVES)}


def unpack(commit: str, directory: Path, *paths: str) -> None:
    """Unpack a commit, or only these paths of it.

    Raises:
        NoHistory: this is no clone, or a shallow one.
    """
    try:
        packed = subprocess.run(
            ["git", "-C", ROOT, "archive", commit, *paths], capture_output=True, check=True
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
