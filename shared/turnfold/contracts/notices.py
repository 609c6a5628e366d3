"""Validation of notices for programs that receive them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from turnfold.contracts.json_values import json_object
from turnfold.contracts.subjects import NOTICES_STREAM, NOTICES_SUBJECTS, id_of

NOTICE_NAMES = tuple(subject.removesuffix(".>") for subject in NOTICES_SUBJECTS)


class ReceivedNotice(NamedTuple):
    """A notice from the stream; `fields` is its whole payload."""

    name: str
    agent_id: str
    session_id: str
    fields: Mapping[str, Any]


def notice_of(stream: str | None, subject: str | None, payload: bytes) -> ReceivedNotice | None:
    """Read a message as a notice; None if it is not one and must not be trusted.

    `stream` and `subject` must come from the server: the headers `Nats-Stream` and `Nats-Subject`
    of a direct get, or the metadata and the subject of a consumer's message. A message of a plain
    subscription names no stream, because any publisher of the account may have sent it.
    """
    # Filled up, so that a subject of fewer tokens has three parts as well, and an empty name.
    name, agent, session = (["", "", "", *(subject or "").rsplit(".", 2)])[-3:]
    agent_id, session_id = id_of(agent), id_of(session)
    if stream != NOTICES_STREAM or name not in NOTICE_NAMES:
        return None
    if agent_id is None or session_id is None:
        return None
    fields = json_object(payload)
    if fields is None:
        return None
    is_of_subject = (fields.get("agent_id"), fields.get("session_id")) == (agent_id, session_id)
    return ReceivedNotice(name, agent_id, session_id, fields) if is_of_subject else None
