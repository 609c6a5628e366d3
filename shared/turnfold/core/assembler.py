"""Assembling what is sent: the system text, the history, and what the user says now."""

from collections.abc import Sequence
from typing import Any, Protocol

from turnfold.messages import Json

SYSTEM_ROLES = ("system", "developer")


class Assembler(Protocol):
    """Puts the three together. Pure: it changes none of them."""

    def __call__(self, system: str | Json | None, history: Sequence[Json], user: str | Json | None) -> list[dict[str, Any]]:
        """Chat messages in the order in which they are sent."""
        ...


def assemble(system: str | Json | None, history: Sequence[Json], user: str | Json | None) -> list[dict[str, Any]]:
    """The system message first, then the history, then the user's message; a text becomes a message, None is left out.

    A system message given here takes the place of those with which the history begins.

    >>> assemble("Be brief.", [{"role": "system", "content": "Be kind."}], "Hello")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hello'}]
    """
    messages = [dict(message) for message in history]
    if system is not None:
        while messages and messages[0].get("role") in SYSTEM_ROLES:
            messages.pop(0)
        messages.insert(0, {"role": "system", "content": system} if isinstance(system, str) else dict(system))
    if user is not None:
        messages.append({"role": "user", "content": user} if isinstance(user, str) else dict(user))
    return messages
