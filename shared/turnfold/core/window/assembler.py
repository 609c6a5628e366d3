"""Assembling what is sent: the system text, the history, and what is new."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from turnfold.messages import Json

SYSTEM_ROLES: Final = ("system", "developer")

Said = str | Json | Sequence[Json] | None
"""A text, a chat message, several of them, or nothing."""


class Assembler(Protocol):
    """Puts the three together. Pure: it changes none of them."""

    def __call__(self, system: Said, history: Sequence[Json], user: Said) -> list[dict[str, Any]]:
        """Chat messages in the order in which they are sent."""
        ...


def assemble(system: Said, history: Sequence[Json], user: Said) -> list[dict[str, Any]]:
    """The system messages first, then the history, then what is new; a text becomes a message.

    System messages given here take the place of those with which the history begins.

    >>> assemble("Be brief.", [{"role": "system", "content": "Be kind."}], "Hello")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hello'}]
    """
    systems = _messages(system, "system")
    begun = len(leading_systems(history)) if systems else 0
    return [*systems, *[dict(message) for message in history[begun:]], *_messages(user, "user")]


def leading_systems(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """The system messages a list begins with."""
    count = next(
        (index for index, body in enumerate(messages) if body.get("role") not in SYSTEM_ROLES),
        len(messages),
    )
    return [dict(body) for body in messages[:count]]


def _messages(said: Said, role: str) -> list[dict[str, Any]]:
    if said is None:
        return []
    if isinstance(said, str):
        return [{"role": role, "content": said}]
    return [dict(said)] if isinstance(said, Mapping) else [dict(message) for message in said]
