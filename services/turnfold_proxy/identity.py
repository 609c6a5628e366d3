"""The session to which a model call belongs."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from turnfold_proxy.apis.api import RequestConversation

AGENT: Final = "x-turnfold-agent"
SESSION: Final = "x-turnfold-session"
BUDGET: Final = "x-turnfold-budget"
TOOLS: Final = "x-turnfold-tools"
TOKENS: Final = "x-turnfold-tokens"
VERSION: Final = "x-turnfold-version"
BYPASSED: Final = "x-turnfold-bypassed"
LOOKUPS: Final = "x-turnfold-lookups"
PREFIX: Final = "x-turnfold-"
"""Headers for the proxy and of it; none of them reaches the provider."""

_CREDENTIALS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


def session_id(
    headers: Mapping[str, str], body: Mapping[str, Any], conversation: RequestConversation
) -> str:
    """Return the id that the caller gives, else one that is derived from the conversation.

    A derived id is a hash of the credential, the instructions and the first message of the user:
    it shows none of them, and agents with different keys never share one.
    """
    metadata = body.get("metadata")
    given = (
        headers.get(SESSION),
        metadata.get("session_id") if isinstance(metadata, Mapping) else None,
        body.get("prompt_cache_key"),
    )
    for one in given:
        if isinstance(one, str) and one:
            return one
    credential = "\n".join(headers.get(name, "") for name in _CREDENTIALS)
    digest = blake2b(digest_size=16)
    for part in (credential, conversation.instructions, conversation.first_user_text):
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8))
        digest.update(text)
    return f"proxy-{digest.hexdigest()}"


def wants_tools(headers: Mapping[str, str], *, default: bool) -> bool:
    """Return whether the model of a call may look things up."""
    match headers.get(TOOLS, "").strip().lower():
        case "on" | "1":
            return True
        case "off" | "0":
            return False
        case _:
            return default


def budget(headers: Mapping[str, str]) -> int | None:
    """Return the tokens that a call may have, or None if its header says nothing valid."""
    text = headers.get(BUDGET, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 10 else None
