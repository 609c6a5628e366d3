"""The session to which a model call belongs."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from turnfold_proxy.apis.api import RequestConversation
from turnfold_proxy.own_headers import SESSION, identifier

_CREDENTIALS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


def session_id(
    headers: Mapping[str, str], body: Mapping[str, Any], conversation: RequestConversation
) -> str:
    """Return the id that the caller gives, else one that is derived from the conversation.

    A derived id is a hash of the credential, the instructions and the first message of the user:
    it shows none of them, and agents with different keys never share one.
    """
    metadata = body.get("metadata")
    candidates = (
        identifier(headers, SESSION),
        metadata.get("session_id") if isinstance(metadata, Mapping) else None,
        body.get("prompt_cache_key"),
    )
    for candidate in candidates:
        if isinstance(candidate, str) and candidate:
            return candidate
    credential = "\n".join(headers.get(name, "") for name in _CREDENTIALS)
    digest = blake2b(digest_size=16)
    for part in (credential, conversation.instructions, conversation.first_user_text):
        # JSON may contain lone surrogates, which strict UTF-8 refuses.
        text = part.encode("utf-8", "surrogatepass")
        # With the lengths, no two ways to divide one text give the same id.
        digest.update(len(text).to_bytes(8))
        digest.update(text)
    return f"proxy-{digest.hexdigest()}"
