"""Signals of erasures, for programs of an agent that keep texts of windows. A signal may be lost.

It travels on `turnfold.erased.<agent>`, as `{"session_id": "user-42"}`, or as `{"prefix": "user-"}`
for all sessions whose ids begin so; the prefix of all of an agent is empty.
"""

import json
from typing import NamedTuple, Self

from turnfold.contracts.signals import read_signal
from turnfold.contracts.subjects import ERASURES, token_of
from turnfold.messages import AgentId, SessionKey


class ErasedSessions(NamedTuple):
    """One session of an agent, or without `session_id` all whose ids begin with `prefix`."""

    agent_id: str
    session_id: str | None = None
    prefix: str = ""

    @classmethod
    def of(cls, key: SessionKey | AgentId, prefix: str | None = None) -> Self:
        """Return what a request erases."""
        if isinstance(key, SessionKey):
            return cls(*key)
        return cls(key, prefix=prefix or "")

    def includes(self, agent_id: str, session_id: str) -> bool:
        """Return whether a session is among them."""
        if agent_id != self.agent_id:
            return False
        if self.session_id is not None:
            return session_id == self.session_id
        return session_id.startswith(self.prefix)


def erasures_of(agent_id: str) -> str:
    """Return the subject of the signals of an agent."""
    return f"{ERASURES}.{token_of(agent_id)}"


def write_erasure(erased: ErasedSessions) -> tuple[str, bytes]:
    """Return the subject and the payload of a signal."""
    fields = (
        {"prefix": erased.prefix}
        if erased.session_id is None
        else {"session_id": erased.session_id}
    )
    return erasures_of(erased.agent_id), json.dumps(fields).encode()


def read_erasure(subject: str, payload: bytes) -> ErasedSessions | None:
    """Return the erased sessions; None if this is not a signal. Unknown fields are ignored."""
    agent_id, fields = read_signal(ERASURES, subject, payload)
    if agent_id is None or isinstance(agent_id, SessionKey):
        return None
    session_id, prefix = fields.get("session_id"), fields.get("prefix")
    if isinstance(session_id, str):
        return ErasedSessions(agent_id, session_id)
    return ErasedSessions(agent_id, prefix=prefix) if isinstance(prefix, str) else None
