"""Files of credentials: only their owner may read them, and they are replaced whole or not at all."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Put a text in the place of the file; whoever reads meanwhile finds the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


@contextmanager
def locked_update(directory: Path) -> Generator[None]:
    """A directory of our own, made if need be, in which nobody else of us changes anything meanwhile."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
