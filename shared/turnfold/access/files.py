"""Files of credentials: created readable by their owner only, and replaced atomically."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnfold.errors import StartError


def write_private(path: Path, text: str) -> None:
    """Replace the content of a file atomically. A new file is private; others keep their mode.

    A container that reads a mounted file runs as another user, so its operator opens the file.
    """
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    # Created with its mode before the secret is in it. A leftover of a crash may have another mode.
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    draft.replace(path)


@contextmanager
def locked_update(directory: Path) -> Generator[None]:
    """Create a private directory if needed, and hold an exclusive lock on it in the body.

    Raises:
        StartError: the directory, or a file in it, cannot be written.
    """
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700, parents=True)
        # On the directory: the files in it are replaced, and a lock would stay with the old file.
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)
    except OSError as error:
        raise StartError(
            f"{error.filename or directory} cannot be written ({error.strerror});"
            " name another directory with --dir, or of tokens in TURNFOLD_HTTP_TOKENS"
        ) from error
