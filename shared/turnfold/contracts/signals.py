"""Read signals: small messages between processes that may be lost, with the fields of an object."""

from typing import Any, Final

from turnfold.contracts.json_values import json_object
from turnfold.contracts.subjects import key_of_subject
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionKey

SIGNAL_BYTES: Final = 4_096


def read_signal(
    name: str, subject: str, payload: bytes
) -> tuple[SessionKey | AgentId | None, dict[str, Any]]:
    """Return whom a signal of this name is about, and its fields; nobody if it is none."""
    try:
        key = key_of_subject(name, subject)
    except BadRequest:
        return None, {}
    fields = json_object(payload) if len(payload) <= SIGNAL_BYTES else None
    return (None, {}) if fields is None else (key, fields)
