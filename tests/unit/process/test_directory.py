"""The data directory of `turnfold up`."""

import resource
from pathlib import Path

import pytest

from turnfold.errors import StartError
from turnfold.process.directory import DataDirectory


@pytest.mark.proves("O5")
def test_a_disk_that_takes_no_byte_is_told_and_leaves_no_lock(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(StartError, match=r"cannot be written .* make room, or choose another"):
            DataDirectory.claim(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    DataDirectory.claim(tmp_path).close()
