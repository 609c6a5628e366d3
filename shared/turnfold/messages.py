"""The shared vocabulary: messages as the rules see them, without their texts."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, NewType

AgentId = NewType("AgentId", str)
SessionId = NewType("SessionId", str)
EventId = NewType("EventId", str)
MessageId = NewType("MessageId", str)
CompactionId = NewType("CompactionId", str)

Ids = MessageId | None | tuple[MessageId | None, ...]
"""The id of a message, None if it is not stored, or the ids of merged messages in order."""

Json = Mapping[str, Any]

MOST_EXACT: Final = 2**53
"""Every reader of JSON and every database keeps whole numbers up to this one exactly."""
MOST_INT32: Final = 2**31 - 1
"""The largest number of a version or an ordinal in a database."""
MOST_INT64: Final = 2**63 - 1
"""The largest position, sequence or id in a database."""

META_MARK: Final = "is_meta"
"""The key, beside `role`, that marks a message of a program. Models do not see it."""

MESSAGES_PER_EVENT = 1 << 10
"""Positions per event: `position = stream_seq * MESSAGES_PER_EVENT + index`, far below 2**53."""


class SessionKey(NamedTuple):
    """One conversation of one agent."""

    agent_id: AgentId
    session_id: SessionId


SYSTEM_ROLES: Final = ("system", "developer")
"""The roles that give instructions rather than taking part."""


class Role(StrEnum):
    """The author of a message; `developer` is another name for `system`."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"

    is_system: bool
    """Whether this is one of `SYSTEM_ROLES`."""

    def __init__(self, name: str) -> None:
        # An attribute and not a property, because it is read several times per message.
        self.is_system = name in SYSTEM_ROLES


ROLES: Final[Mapping[str, Role]] = {role.value: role for role in Role}
"""The roles by name. A lookup is faster than `Role(name)`."""
USER: Final = Role.USER
TOOL: Final = Role.TOOL
"""Names of the module, because members of an enumeration are found slowly."""


class Shape(StrEnum):
    """The format of messages: that of chat completions, of Responses, or of Anthropic."""

    CHAT = "chat"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


ShapeName = Literal["chat", "responses", "anthropic"]
WindowFormat = Literal["openai", "responses", "anthropic"]
"""The model interface for which a window is written."""
ToolFormat = Literal["openai", "anthropic"]
"""The model interface for which tools are described: both of OpenAI take the same definitions."""
SHAPE_OF_FORMAT: Final[Mapping[WindowFormat, Shape]] = {
    "openai": Shape.CHAT,
    "responses": Shape.RESPONSES,
    "anthropic": Shape.ANTHROPIC,
}
"""The shape of each format of a window."""


class Element(IntEnum):
    """The form in which a message was published; see `turnfold.core.shapes`.

    ITEM and JOINED are items of the Responses API. A response is one chat message: its first item
    holds it, and its other items are JOINED to that one. BLOCKS is a message of the Anthropic API.
    """

    CHAT = 0
    ITEM = 1
    JOINED = 2
    BLOCKS = 3

    shape: Shape

    def __init__(self, _: int) -> None:
        # An attribute and not a property, because it is read per message of a window.
        names = (Shape.CHAT, Shape.RESPONSES, Shape.RESPONSES, Shape.ANTHROPIC)
        self.shape = names[int(self)]


ELEMENTS: Final = tuple(Element)
"""The kinds of elements by number."""
JOINED: Final = Element.JOINED
"""A name of the module, because members of an enumeration are found slowly."""


class Priority(IntEnum):
    """How long a message resists the ladder: LOW goes first."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


class State(StrEnum):
    """The state of a message: in the window, evicted but not summarized, or in the summary.

    A retracted one is in none of them; see `turnfold.contracts.retractions.Retraction`.
    """

    LIVE = "live"
    PENDING = "pending"
    COVERED = "covered"
    RETRACTED = "retracted"


class ToolCall(NamedTuple):
    """One tool call that may be sent: id and name are texts, the id is unique in its message."""

    slot: int
    call_id: str
    name: str
    tokens: int
    path: str | None = None


def place_of_slot(calls: Sequence[ToolCall], slot: int) -> int | None:
    """Return the index of the call with this slot, or None. `calls` are in order of their slots."""
    place = (
        slot
        if slot < len(calls) and calls[slot].slot == slot
        else bisect_left(calls, slot, key=_slot)
    )
    return place if place < len(calls) and calls[place].slot == slot else None


_slot: Final = itemgetter(0)


class CallRef(NamedTuple):
    """The call that a result answers: the position of its message, and its slot in that message."""

    position: int
    slot: int


class UncountedText(NamedTuple):
    """A long text and its token counter.

    Its possible cuts are counted on demand, because most texts are never cut.
    """

    text: str
    counter: Callable[[str], int]


class UnrankedMessage(NamedTuple):
    """A message and the call that it answers.

    Its priority is determined on demand, because most priorities are never used.
    """

    body: Json
    call: Json | None


# Not frozen: thousands are created per second, and freezing triples the cost. Do not change one.
@dataclass(slots=True, unsafe_hash=True)
class Message:
    """One stored message as the rules see it: numbers and relations, no text.

    `tokens` counts the whole message with its overhead. `content_tokens`, `reasoning_tokens` and
    the `tokens` of each call are parts of it. `answers` is set on a result that is paired with its
    call; another result waits for a call, or is a copy (`is_copy`). `calls` holds only calls that
    may be sent. `is_irregular` says that the stored body holds more, and is repaired when it is
    rendered. Read `priority` with `turnfold.core.history.priority.priority_of`, which determines it
    if it is not stored. `cuts` has the token counts of possible cuts of a long text, or that text
    if they are not stored; it is empty for a short text.
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
    short_body: str = ""
    """The parts of a message that a digest may tell; see `turnfold.core.history.gist`.

    `short_body` is the JSON of a user's short message, which tells what its gist does not.
    """
    element: Element = Element.CHAT

    @property
    def message_id(self) -> MessageId:
        """`<event_id>#<index>`."""
        return MessageId(f"{self.event_id}#{self.index}")

    @property
    def stream_seq(self) -> int:
        """The stream sequence of the event that brought it."""
        return self.position // MESSAGES_PER_EVENT

    @property
    def is_pinnable(self) -> bool:
        """Whether it is a system message that begins its event: the newest of these is pinned.

        The older ones are superseded. A later system message of an event keeps its place.
        """
        return self.role.is_system and self.index == 0

    @property
    def is_request(self) -> bool:
        """Whether a person asked: a user message that no machine made."""
        return self.role is USER and not self.is_meta


def pinnable_in(messages: Iterable[Message]) -> list[Message]:
    """Return the pinnable ones: mostly none. Reading the property of each takes twice as long."""
    return [message for message in messages if message.role.is_system and message.index == 0]


def position_of(stream_seq: int, index: int) -> int:
    """Return the position of a message in its session."""
    return stream_seq * MESSAGES_PER_EVENT + index


def split_message_id(message_id: str) -> tuple[EventId, int] | None:
    """Return the event and the index that a message id names; None if it is not such an id."""
    event_id, _, index = message_id.rpartition("#")
    is_number = index.isascii() and index.isdigit() and (index == "0" or index[0] != "0")
    # Python refuses to read thousands of digits.
    return (EventId(event_id), int(index)) if event_id and is_number and len(index) < 10 else None
