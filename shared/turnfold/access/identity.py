"""The bus identity of a process: its credentials, its encryption and its inbox."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from turnfold.contracts.subjects import token_of

PREFIX = "TURNFOLD_NATS_"
INBOX = "_INBOX"
NATS_SCHEMES = ("nats", "tls", "ws", "wss")
_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")
_JWT = "BEGIN NATS USER JWT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The credentials of a connection; without any, it is anonymous.

    `nkey` is a seed or the path of a file with one. The first of `creds`, `nkey` and `user` that is
    set is used. `ca`, `certificate` and `certificate_key` are paths. With `tls_first`, the
    connection is encrypted from its first byte, so that it cannot be downgraded.
    """

    creds: str | None = None
    nkey: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    certificate_key: str | None = None
    tls_first: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Identity":
        """Read the `TURNFOLD_NATS_*` variables."""
        return cls(**{name: environ.get(f"{PREFIX}{name.upper()}") or None for name in NAMES})

    def as_environ(self) -> dict[str, str]:
        """Return the variables for the same identity."""
        return {
            f"{PREFIX}{name.upper()}": str(value)
            for name in NAMES
            if (value := getattr(self, name))
        }

    def options(self) -> dict[str, Any]:
        """Return the arguments of `nats.connect` for this identity.

        Replies arrive at `_INBOX.<public key>` or `_INBOX.<user>`, so that permissions can give
        each client a private inbox without further settings.

        Raises:
            ValueError: a file cannot be read or is invalid. The message does not quote it.
        """
        options = self._encryption()
        if self.creds is not None:
            seed = _seed_in(self.creds, "CREDS", needs=_JWT)
            options |= {
                "user_credentials": self.creds,
                "inbox_prefix": f"{INBOX}.{public_key(seed)}",
            }
        elif self.nkey is not None:
            seed = self.nkey if _SEED.fullmatch(self.nkey) else _seed_in(self.nkey, "NKEY")
            options |= {"nkeys_seed_str": seed, "inbox_prefix": f"{INBOX}.{public_key(seed)}"}
        elif self.user is not None:
            options |= {
                "user": self.user,
                "password": self.password or "",
                "inbox_prefix": f"{INBOX}.{token_of(self.user)}",
            }
        return options

    def _encryption(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.ca is not None or self.certificate is not None:
            try:
                options["tls"] = ssl.create_default_context(cafile=self.ca)
                if self.certificate is not None:
                    options["tls"].load_cert_chain(self.certificate, self.certificate_key)
            except (OSError, ssl.SSLError) as error:
                named = ", ".join(
                    file
                    for file in (self.ca, self.certificate, self.certificate_key)
                    if file is not None
                )
                raise ValueError(
                    f"{named} cannot be used ({error.strerror or type(error).__name__})"
                ) from error
        if self.tls_first in ("1", "true", "yes"):
            options["tls_handshake_first"] = True
        return options


NAMES = tuple(option.name for option in fields(Identity))


def public_key(seed: str) -> str:
    """Return the public key of a seed.

    Raises:
        ValueError: the seed is mistyped. The message does not quote it.
    """
    import nkeys  # noqa: PLC0415  # libsodium is loaded only if there is a key

    try:
        return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()
    except nkeys.NkeysError as error:
        raise ValueError(f"the seed of the nkey is mistyped ({type(error).__name__})") from None


def _seed_in(path: str, variable: str, *, needs: str = "") -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        # The value may be a mistyped seed, so the message must not quote it.
        raise ValueError(
            f"{PREFIX}{variable} names no file that can be read ({type(error).__name__})"
        ) from None
    seed = _SEED.search(text)
    if seed is None:
        raise ValueError(f"the file that {PREFIX}{variable} names holds no seed of an nkey (SU…)")
    if needs not in text:
        raise ValueError(
            f"the file that {PREFIX}{variable} names holds no JWT; name a seed with {PREFIX}NKEY"
        )
    return seed[0]
