"""HTTP bearer tokens and their agents, in a file of hashes that is reloaded when it changes."""

import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from turnfold.access.files import locked_update, write_private
from turnfold.errors import NotAllowed, StartError

EVERY_AGENT = "*"
"""Stands for all agents in the token of an operator. No agent of that name can have a token."""
OUT_OF_REACH = "this token does not reach that; ask with one of an operator, or of that agent"
PREFIX = "tf_"
SECRET_BYTES = 32
NAME_OF_HASH = 12
"""The length of the hash prefix that names a token without a name."""
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}", re.ASCII)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Grant:
    """The agents that the bearer of a token may access, or all."""

    agents: frozenset[str]
    name: str | None = None
    """The name of the token in the audit log; None if no token is required."""

    @property
    def is_operators(self) -> bool:
        """Whether it allows access to all agents."""
        return EVERY_AGENT in self.agents

    def allows(self, agent_id: str) -> bool:
        """Return whether it allows access to the sessions of an agent."""
        return self.is_operators or agent_id in self.agents

    def agents_among(self, agent_id: str | None) -> frozenset[str] | None:
        """Return the agents of a listing: the requested one, or all allowed ones; None for all.

        Raises:
            NotAllowed: the requested agent is not allowed.
        """
        if agent_id is None:
            return None if self.is_operators else self.agents
        if not self.allows(agent_id):
            raise NotAllowed(OUT_OF_REACH)
        return frozenset({agent_id})


EVERYTHING = Grant(frozenset({EVERY_AGENT}))


class TokenRegistry:
    """The tokens of a file. While the file cannot be read, all tokens are rejected.

    Raises:
        StartError: the file cannot be read at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Before the file is read: a change in between is then noticed by the next request.
        self._seen = _stamp(path)
        self._grants = _grants(path)
        self._fault = ""

    def grant(self, authorization: str | None) -> Grant | None:
        """Return the grant of an `Authorization` header, or None if its token is unknown.

        All hashes are compared in full, so that the time does not depend on the token.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        self._look()
        presented = _digest(token.strip())
        matching: Grant | None = None
        for digest, grant in self._grants:
            if hmac.compare_digest(digest, presented):
                matching = grant
        return matching

    def _look(self) -> None:
        """Reload the file if it has changed, or could not be read the last time."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._grants, self._fault = _grants(self._path), ""
        except StartError as error:
            # Closed rather than stale: an operator may have been revoking a token.
            self._grants = []
            if isinstance(error.__cause__, OSError):
                # For example too many open files, which pass without a change of this one.
                self._seen = _UNREAD
            if str(error) != self._fault:
                self._fault = str(error)
                log.error("tokens.unreadable", error=self._fault)  # noqa: TRY400


class Token(NamedTuple):
    """The entry of a token in the file: its agents and its name in the audit log."""

    agents: list[str]
    name: str | None = None

    def actor_name(self, digest: str) -> str:
        """Return its name in the audit log: its own, or else the prefix of its hash."""
        return self.name or digest[:NAME_OF_HASH]


def new_token(path: Path, agents: Iterable[str], *, name: str | None = None) -> str:
    """Create a token for these agents, and return it. The file stores only its hash."""
    token = f"{PREFIX}{secrets.token_urlsafe(SECRET_BYTES)}"
    with locked_update(path.parent):
        _write(
            path,
            {
                **(read_tokens(path) if path.exists() else {}),
                _digest(token).hex(): Token(sorted(agents), name),
            },
        )
    return token


def revoke_token(path: Path, digest: str) -> None:
    """Revoke the token with this hash."""
    with locked_update(path.parent):
        _write(
            path, {known: token for known, token in read_tokens(path).items() if known != digest}
        )


def read_tokens(path: Path) -> dict[str, Token]:
    """Return the tokens of a file by their hashes in hexadecimal.

    Raises:
        StartError: the file cannot be read or is invalid.
    """
    try:
        tokens_json = json.loads(path.read_text(encoding="utf-8"))
        # In lower case, whatever the file has: `revoke_token` compares the texts of hashes.
        return {bytes.fromhex(digest).hex(): _token(entry) for digest, entry in tokens_json.items()}
    except OSError as error:
        raise StartError(
            f"the tokens in {path} cannot be read ({error.strerror}); correct TURNFOLD_HTTP_TOKENS"
        ) from error
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise StartError(
            f"{path} does not hold the hashes of tokens, each with a list of agents; "
            "see docs/security.md"
        ) from error


def check_bind_address(host: str, *, has_tokens: bool, is_checked_elsewhere: bool) -> None:
    """Check that clients outside this machine must authenticate.

    Raises:
        StartError: the address is reachable from other machines, and no authentication is set.
    """
    if not (has_tokens or is_checked_elsewhere or is_loopback(host)):
        raise StartError(
            f"HTTP on {host} would give every caller access to every session; "
            "set TURNFOLD_HTTP_TOKENS (`turnfold keys token` creates the file), "
            "or TURNFOLD_HTTP_CHECKED_ELSEWHERE=1 if a proxy in front authenticates callers"
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is loopback. Names other than localhost count as public."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write(path: Path, tokens: Mapping[str, Token]) -> None:
    entries = {
        digest: token.agents if token.name is None else token._asdict()
        for digest, token in tokens.items()
    }
    write_private(path, json.dumps(entries, indent=1, ensure_ascii=False) + "\n")


def _token(entry: object) -> Token:
    """Parse an entry of the file: a list of agents, or an object with agents and a name."""
    if not isinstance(entry, dict):
        return Token(_texts(entry))
    if set(entry) != {"agents", "name"} or name_fault(entry["name"]):
        raise ValueError("a token has agents and a name")
    return Token(_texts(entry["agents"]), str(entry["name"]))


def name_fault(name: object) -> str | None:
    """Return the reason why a text cannot name a token, or None."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return None
    return "has 1 to 64 letters, digits, dots, underscores, hyphens and @"


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("agents are a list of texts")
    return [str(value) for value in values]


def _grants(path: Path) -> list[tuple[bytes, Grant]]:
    tokens = read_tokens(path).items()
    return [
        (bytes.fromhex(digest), Grant(frozenset(token.agents), token.actor_name(digest)))
        for digest, token in tokens
    ]


def _digest(token: str) -> bytes:
    """Hash a token. Tokens are as random as keys, so one round of SHA-256 suffices."""
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


_UNREAD: Final = (0, 0, 0, 0)
"""The stamp of no file."""


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        # Times, size and inode: a file that was replaced within one tick of the clock is noticed,
        # and so is one that has become readable.
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino
