"""Assemble a request for the model: system text, history, and new messages."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from turnfold.messages import SYSTEM_ROLES, Json

MessageInput = str | Json | Sequence[Json] | None
"""A text, a chat message, several of them, or nothing."""


class Assembler(Protocol):
    """Combine system text, history and new messages. Pure: the arguments are not modified."""

    def __call__(
        self, system: MessageInput, history: Sequence[Json], user: MessageInput
    ) -> list[dict[str, Any]]:
        """Return the chat messages in the order of the request."""
        ...


def assemble(
    system: MessageInput, history: Sequence[Json], user: MessageInput
) -> list[dict[str, Any]]:
    """Return system messages, history and new messages, in this order. A text becomes a message.

    `system`, if there is any, replaces the system messages at the beginning of the history.

    >>> assemble("Be brief.", [{"role": "system", "content": "Be kind."}], "Hello")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hello'}]
    """
    systems = _messages(system, "system")
    replaced = leading_count(history) if systems else 0
    return [*systems, *[dict(message) for message in history[replaced:]], *_messages(user, "user")]


def leading_count(messages: Sequence[Json]) -> int:
    """Return the number of system messages at the beginning of a list."""
    roles = (body.get("role") for body in messages)
    return next((at for at, role in enumerate(roles) if role not in SYSTEM_ROLES), len(messages))


def leading_systems(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """Return copies of the system messages at the beginning of a list."""
    return [dict(body) for body in messages[: leading_count(messages)]]


def _messages(content: MessageInput, role: str) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if isinstance(content, Mapping):
        return [dict(content)]
    return [dict(message) for message in content]
