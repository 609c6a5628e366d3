"""Who asked for a change: the actor of a request, as the audit names it.

A key of the bus is believed where the server says so in the request info, a token of HTTP where the query server signed it.
Everybody else is `local`. See docs/decisions/0021-who-asked.md.
"""

import hmac
import json
from hashlib import sha256

ACTOR_HEADER = "Turnfold-Actor"
"""A request's header in which the query server signs who asked over HTTP: `<time>.<signature>.<actor>`, the actor in hex."""
VALID_MS = 60_000
"""How long a signature holds: a request that somebody records is of no use later."""
ACTOR_CHARACTERS = 200


def key_actor(request_info: str) -> str | None:
    """The actor that the server's request info names: `key:<public key>`; None where it names no user."""
    try:
        info = json.loads(request_info)
    except (ValueError, RecursionError):
        return None
    user = info.get("user") if isinstance(info, dict) else None
    if (
        not isinstance(user, str)
        or not user.isascii()
        or not user.isprintable()
        or not 0 < len(user) <= ACTOR_CHARACTERS
    ):
        return None
    return f"key:{user}"


def signed_actor(secret: str, actor: str, *, subject: str, body: bytes, now_ms: int) -> str:
    """The header by which a query server says who asked for this very request."""
    return f"{now_ms}.{_signature(secret, actor, subject, body, now_ms)}.{actor.encode().hex()}"


def verified_actor(
    secret: str, header: str, *, subject: str, body: bytes, now_ms: int
) -> str | None:
    """The actor that a header names; None where it was not signed with the secret for this request, or long ago."""
    try:
        at, signature, encoded = header.split(".")
        at_ms, actor = int(at), bytes.fromhex(encoded).decode()
        expected = _signature(secret, actor, subject, body, at_ms)
        is_ours = hmac.compare_digest(signature, expected)
    except (ValueError, TypeError):
        return None
    return actor if is_ours and abs(now_ms - at_ms) <= VALID_MS else None


def _signature(secret: str, actor: str, subject: str, body: bytes, at_ms: int) -> str:
    signed = json.dumps([subject, sha256(body).hexdigest(), actor, at_ms])
    return hmac.new(secret.encode(), signed.encode(), sha256).hexdigest()
