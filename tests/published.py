"""What was published, what the stream acknowledged of it, and what readers were told."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from turnfold.client import OutgoingEvent
from turnfold.messages import SessionKey

Json = dict[str, Any]


MARK = "said_by"
"""A field that names the agent in each of its messages that is no result."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of `context.get`: how many messages were acknowledged before it was asked, and attempted before it came.

    `began` and `ended` are seconds of one clock.
    """

    key: SessionKey
    acknowledged: int
    after: int | None
    answer: Json
    attempted: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of `history.get`."""

    key: SessionKey
    answer: Json


@dataclass(frozen=True, slots=True)
class Listed:
    """One answer of `summary.list`."""

    key: SessionKey
    answer: Json


@dataclass
class Published:
    """Events that were tried or acknowledged, and the answers that readers got; the same event may be tried many times."""

    attempted: dict[tuple[str, str], OutgoingEvent] = field(default_factory=dict)
    acknowledged: defaultdict[tuple[str, str], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    order: defaultdict[SessionKey, list[str]] = field(default_factory=lambda: defaultdict(list))
    bad: dict[bytes, str] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    lists: list[Listed] = field(default_factory=list)
    messages_attempted: Counter[SessionKey] = field(default_factory=Counter)
    messages_acknowledged: Counter[SessionKey] = field(default_factory=Counter)
    newest_seq: dict[SessionKey, int] = field(default_factory=dict)

    def trying(self, event: OutgoingEvent) -> None:
        """An event is about to be published, perhaps again."""
        if identity(event) not in self.attempted:
            self.order[event.key].append(event.event_id)
            self.messages_attempted[event.key] += len(messages_of(event))
        self.attempted[identity(event)] = event

    def took(self, event: OutgoingEvent, seq: int) -> None:
        """The stream acknowledged an event."""
        if not self.acknowledged[identity(event)]:
            self.messages_acknowledged[event.key] += len(messages_of(event))
        self.acknowledged[identity(event)].append(seq)
        self.newest_seq[event.key] = max(seq, self.newest_seq.get(event.key, 0))

    def trying_bad(self, payload: bytes, reason: str) -> None:
        """Note that an event will be published that cannot be stored for this reason."""
        self.bad[payload] = reason


def identity(event: OutgoingEvent) -> tuple[str, str]:
    """The agent and the id, which two copies of an event share."""
    return event.key.agent_id, event.event_id


def messages_of(event: OutgoingEvent) -> list[Json]:
    """The chat messages that an event carries; a result as the message it becomes, its content as it was published."""
    said = json.loads(event.payload)
    if "messages" in said:
        messages: list[Json] = said["messages"]
        return messages
    return [{"role": "tool", "tool_call_id": said["tool_call_id"], "content": said["content"]}]
