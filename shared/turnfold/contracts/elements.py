"""Check the elements of an event, by the shape that the event names."""

from collections.abc import Callable, Mapping
from typing import Final

from turnfold.messages import ROLES, Shape

ELEMENT_ROLES: Final = ("assistant", "developer", "system", "user")
"""The roles outside of chats, where results are elements or blocks of their own."""

_NEEDS_A_ROLE: Final = f"a message needs one of the roles {', '.join(ELEMENT_ROLES)}"


def chat_fault(message: object) -> str | None:
    """Return why a value is not a chat message; None if it is one."""
    # An abstract class is checked slowly, and nearly all messages are dictionaries.
    role = message.get("role") if isinstance(message, (dict, Mapping)) else None
    if isinstance(role, str) and role in ROLES:
        return None
    return f"a message needs one of the roles {', '.join(sorted(ROLES))}"


def item_fault(item: object) -> str | None:
    """Return why a value is not an item of the Responses API; None if it is one."""
    if not isinstance(item, Mapping):
        return "an item must be an object"
    kind = item.get("type", "message")
    if not isinstance(kind, str) or not kind:
        return "the type of an item must be a string"
    return _NEEDS_A_ROLE if kind == "message" and not _has_role(item) else None


def message_fault(message: object) -> str | None:
    """Return why a value is not a message of the Anthropic API; None if it is one."""
    if not isinstance(message, Mapping) or not _has_role(message):
        return _NEEDS_A_ROLE
    content = message.get("content")
    return None if isinstance(content, str | list | None) else "content must be text or blocks"


FAULTS: Final[Mapping[str, Callable[[object], str | None]]] = {
    Shape.CHAT: chat_fault,
    Shape.RESPONSES: item_fault,
    Shape.ANTHROPIC: message_fault,
}
"""The check of an element for each shape."""


def _has_role(element: Mapping[object, object]) -> bool:
    role = element.get("role")
    return isinstance(role, str) and role in ELEMENT_ROLES
