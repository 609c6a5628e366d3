"""The bus keys: public keys in one file, and each seed in a private file of its own."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from turnfold.access.files import locked_update, write_private
from turnfold.access.identity import public_key
from turnfold.access.roles import ROLES, Key, Role, configuration
from turnfold.contracts.subjects import token_of
from turnfold.errors import StartError

KEYS_FILE = "keys.json"
NAME_CHARACTERS = 60


def new_key(directory: Path, role: Role, agent_id: str | None = None) -> tuple[Key, Path]:
    """Create a key with this role; return its public part and the file of its seed."""
    import nkeys  # noqa: PLC0415  # libsodium is loaded only if there is a key

    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode()
    key = Key(
        public_key(seed),
        role,
        agent_id,
        datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )
    owner = role if agent_id is None else f"{role}-{token_of(agent_id)[:NAME_CHARACTERS]}"
    path = directory / f"{owner}-{key.key[1:9]}.nk"
    with locked_update(directory):
        known = read_keys(directory)
        # The seed first: a key without its seed could never be used, but would be listed.
        write_private(path, f"{seed}\n")
        _write_keys(directory, [*known, key])
    return key, path


def revoke_key(directory: Path, key: Key) -> None:
    """Remove a key from the next configuration."""
    with locked_update(directory):
        _write_keys(directory, [known for known in read_keys(directory) if known.key != key.key])


def write_accounts(directory: Path, path: Path) -> None:
    """Write the accounts of all keys into a file that a NATS server includes.

    The file is changed in place, because a container with a mounted file would not see a new one.

    Raises:
        StartError: the file cannot be written.
    """
    with locked_update(directory):
        try:
            path.write_text(configuration(read_keys(directory)), encoding="utf-8")
        except OSError as error:
            raise StartError(
                f"{path} cannot be written ({error.strerror}); name another file with --nats"
            ) from error


def read_keys(directory: Path) -> list[Key]:
    """Return the public parts of the valid keys, oldest first.

    Raises:
        StartError: the file cannot be read or is invalid.
    """
    path = directory / KEYS_FILE
    try:
        return [_key(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StartError(
            f"{path} cannot be read ({error.strerror}); name another directory with --dir"
        ) from error
    except (ValueError, TypeError) as error:
        raise StartError(
            f"{path} does not hold keys; correct it, or name another directory with --dir"
        ) from error


def _key(*, key: str, role: Role, agent_id: str | None, created_at: str) -> Key:
    if role not in ROLES or not key.isalnum() or (role == "agent") != isinstance(agent_id, str):
        raise ValueError("no key")
    return Key(key, role, agent_id, created_at)


def _write_keys(directory: Path, keys: Sequence[Key]) -> None:
    write_private(
        directory / KEYS_FILE,
        json.dumps([key._asdict() for key in keys], indent=1, ensure_ascii=False) + "\n",
    )
