"""The vocabulary: what a message is to the rules, without its text and without where it is kept."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import itemgetter
from typing import Any, Final, NamedTuple, NewType

AgentId = NewType("AgentId", str)
SessionId = NewType("SessionId", str)
EventId = NewType("EventId", str)
MessageId = NewType("MessageId", str)
CompactionId = NewType("CompactionId", str)

Json = Mapping[str, Any]

META_MARK: Final = "is_meta"
"""The mark, beside `role`, of a message that a program wrote. It is no part of what a model is shown."""

MESSAGES_PER_EVENT = 1 << 10
"""Positions an event may fill: `position = stream_seq * MESSAGES_PER_EVENT + index`, far below 2**53."""


class SessionKey(NamedTuple):
    """One conversation of one agent."""

    agent_id: AgentId
    session_id: SessionId


class Role(StrEnum):
    """Who speaks; `developer` is a system message by another name."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"

    is_system: bool
    """Whether this role gives instructions rather than taking part."""

    def __init__(self, name: str) -> None:
        # An attribute: it is asked for several times a message.
        self.is_system = name in ("system", "developer")


ROLES: Final[Mapping[str, Role]] = {role.value: role for role in Role}
"""The roles by name: to look one up is quicker than `Role(name)`."""


class Priority(IntEnum):
    """How long a message resists the ladder: LOW goes first."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


class State(StrEnum):
    """Where a message is: in the window, evicted and not yet summarised, or in the summary in force."""

    LIVE = "live"
    PENDING = "pending"
    COVERED = "covered"


class ToolCall(NamedTuple):
    """One tool call of an assistant message, valid for sending: its id and name are texts, its id unique in the message."""

    slot: int
    call_id: str
    name: str
    tokens: int
    path: str | None = None


def place_of_slot(calls: Sequence[ToolCall], slot: int) -> int | None:
    """Where among these calls, which stand in order of their slots, the one of this slot stands; None if none has it."""
    place = (
        slot
        if slot < len(calls) and calls[slot].slot == slot
        else bisect_left(calls, slot, key=_slot)
    )
    return place if place < len(calls) and calls[place].slot == slot else None


_slot: Final = itemgetter(0)


class CallRef(NamedTuple):
    """Which call a result answers: the position of the calling message and the slot of the call in it."""

    position: int
    slot: int


class UncountedText(NamedTuple):
    """A long text with what counts it: its cuts are priced when somebody asks for them, which of most texts nobody does."""

    text: str
    counter: Callable[[str], int]


class UnrankedMessage(NamedTuple):
    """A message with the call that it answers: its priority is told when somebody asks for it, which of most nobody does."""

    body: Json
    call: Json | None


# Not frozen: thousands are made a second, and freezing triples what making one costs. Nobody changes what one says.
@dataclass(slots=True, unsafe_hash=True)
class Message:
    """One stored message as the rules see it: numbers and relations, no text.

    `tokens` counts everything of it, overhead included; `content_tokens`, `reasoning_tokens` and each call's `tokens`
    are parts of it. `answers` is set on a result that stands beside its call; a result without it waits for a call, or
    is a copy (`is_copy`). `calls` holds only calls that may be sent; `is_irregular` says that the stored body holds
    more than that and is mended when it is rendered. `priority` is read with `turnfold.core.history.priority.priority_of`, which
    puts it there where nobody stored it. `cuts` prices the cuts of a long text without reading it
    (`turnfold.core.text.tokens.Cuts`), or is that text where nobody stored its prices; it is empty for short ones.
    """

    position: int
    event_id: EventId
    index: int
    role: Role
    tokens: int
    content_tokens: int = 0
    reasoning_tokens: int = 0
    characters: int = 0
    lines: int = 0
    priority: Priority | UnrankedMessage = Priority.NORMAL
    calls: tuple[ToolCall, ...] = ()
    answers: CallRef | None = None
    is_copy: bool = False
    is_meta: bool = False
    is_irregular: bool = False
    is_truncated: bool = False
    cuts: str | UncountedText = ""
    created_at_ms: int = 0
    compaction_id: CompactionId | None = None
    is_error: bool = False
    gist: str = ""
    """What a digest may tell of it; see `turnfold.core.history.gist`."""

    @property
    def message_id(self) -> MessageId:
        """`<event_id>#<index>`."""
        return MessageId(f"{self.event_id}#{self.index}")

    @property
    def stream_seq(self) -> int:
        """The stream sequence of the event that brought it."""
        return self.position // MESSAGES_PER_EVENT

    @property
    def is_request(self) -> bool:
        """Whether a person asked: a user message that no machine made."""
        return self.role is Role.USER and not self.is_meta


def position_of(stream_seq: int, index: int) -> int:
    """Where a message stands in its session's history."""
    return stream_seq * MESSAGES_PER_EVENT + index


def split_message_id(message_id: str) -> tuple[EventId, int] | None:
    """The event and the index a message id names, or None when it names none."""
    event_id, mark, index = message_id.rpartition("#")
    return (
        (EventId(event_id), int(index))
        if mark and event_id and index.isascii() and index.isdigit()
        else None
    )
