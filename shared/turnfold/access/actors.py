"""The actor of a request, as the audit log names it.

A bus key is trusted if the server states it in the request info, an HTTP token if the query server
has signed it. All other actors are `local`. See docs/decisions/0021-who-asked.md.
"""

import hmac
import json
from hashlib import sha256

from turnfold.contracts.json_values import json_object

ACTOR_HEADER = "Turnfold-Actor"
"""The header with the signed actor of an HTTP request: `<time>.<signature>.<actor in hex>`."""
VALID_MS = 60_000
"""The validity of a signature, so that a recorded request cannot be replayed later."""
ACTOR_CHARACTERS = 200


def key_actor(request_info: str) -> str | None:
    """Return `key:<public key>` from the server's request info, or None if it names no user."""
    user = (json_object(request_info) or {}).get("user")
    if (
        not isinstance(user, str)
        or not user.isascii()
        or not user.isprintable()
        or not 0 < len(user) <= ACTOR_CHARACTERS
    ):
        return None
    return f"key:{user}"


def signed_actor(secret: str, actor: str, *, subject: str, body: bytes, now_ms: int) -> str:
    """Return the value of the header that signs the actor of this request."""
    return f"{now_ms}.{_signature(secret, actor, subject, body, now_ms)}.{actor.encode().hex()}"


def verified_actor(
    secret: str, header: str, *, subject: str, body: bytes, now_ms: int
) -> str | None:
    """Return the actor of a header, or None if its signature is invalid or expired."""
    try:
        at, signature, encoded = header.split(".")
        at_ms, actor = int(at), bytes.fromhex(encoded).decode()
        expected = _signature(secret, actor, subject, body, at_ms)
        is_ours = hmac.compare_digest(signature, expected)
    # `compare_digest` raises TypeError for texts beyond ASCII.
    except (ValueError, TypeError):
        return None
    # In both directions: the clock of the query server may be ahead.
    return actor if is_ours and abs(now_ms - at_ms) <= VALID_MS else None


def _signature(secret: str, actor: str, subject: str, body: bytes, at_ms: int) -> str:
    # Subject and body are part of it, so that a signature cannot be moved to another request.
    signed = json.dumps([subject, sha256(body).hexdigest(), actor, at_ms])
    return hmac.new(secret.encode(), signed.encode(), sha256).hexdigest()
