"""Recorded conversations as events; one recording always makes the same events."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from itertools import count, groupby

from turnfold.client import OutgoingEvent, result_event, session_key, turn_event
from turnfold.client.events import encoded
from turnfold.contracts.events import LIMITS
from turnfold.core.shapes.responses import is_of_model
from turnfold.errors import TooLarge
from turnfold.messages import SYSTEM_ROLES, Json, SessionKey, Shape
from turnfold.transcripts import Conversation, Format, Turn, read_conversations, turns

DEFAULT_AGENT = "replay"
ENVELOPE_BYTES = 64 * 1024


class Step(StrEnum):
    """The content of one event."""

    TURN = "turn"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Recording:
    """A conversation and the session to which it is published."""

    key: SessionKey
    conversation: Conversation


def load_recordings(
    files: Iterable[str],
    agent: str | None = None,
    form: Format | None = None,
    *,
    left_out: dict[str, Mapping[str, int]] | None = None,
) -> list[Recording]:
    """Load the conversations of all files, each with its own session.

    If an id repeats, a number is appended to the later ones. `left_out` receives, for each file,
    how many of its records no conversation contains, by kind.

    Raises:
        UnreadableTranscript: a file cannot be read. The text names the line.
        BadRequest: `agent` cannot be an id.
    """
    taken: Counter[SessionKey] = Counter()
    recordings: list[Recording] = []
    for file in files:
        missing: Counter[str] = Counter()
        for conversation in read_conversations(file, form, left_out=missing):
            own = conversation.agent or DEFAULT_AGENT
            agent_id = own if agent is None else agent
            key = first = session_key(agent_id, conversation.conversation_id)
            # A name with a number may be taken as well.
            while taken[key]:
                taken[first] += 1
                key = session_key(agent_id, f"{conversation.conversation_id}-{taken[first]}")
            taken[key] = 1
            recordings.append(Recording(key, conversation))
        if left_out is not None and (counts := {name: n for name, n in missing.items() if n}):
            left_out[file] = counts
    return recordings


def event_ids(recording: Recording, step: Step, edition: int) -> Iterator[str]:
    """Iterate without end over the ids of a conversation's events; see `events_of`."""
    # Ids depend on the recording alone, so that a replay that is repeated stores nothing twice.
    # The step is a part of them: the same id with other content would be rejected.
    named = f"{recording.key.session_id}\n{step}" + (f"\n{edition}" if edition else "")
    digest = sha256(named.encode()).hexdigest()[:20]
    return (f"{digest}-{number:06d}" for number in count())


def events_of(
    recording: Recording, step: Step = Step.TURN, edition: int = 0
) -> Iterator[tuple[OutgoingEvent, int]]:
    """Iterate over a conversation's events, each with its number of messages.

    Event ids derive from the session and the number of the event. The `edition` is how many
    earlier imports were erased: no event is stored again under the id of an erased one.

    Raises:
        TooLarge: one message alone exceeds the size of an event.
    """
    conversation = recording.conversation
    ids = event_ids(recording, step, edition)
    for event_id, part in zip(ids, _parts(conversation, step), strict=False):
        message = part.messages[0]
        try:
            is_chat = conversation.shape is Shape.CHAT
            is_alone = step is Step.MESSAGE and len(part.messages) == 1
            if is_alone and is_chat and _is_plain_result(message):
                event = result_event(
                    recording.key,
                    message["tool_call_id"],
                    message["content"],
                    event_id=event_id,
                    name=message.get("name"),
                    is_error=bool(message.get("is_error")),
                )
            else:
                event = turn_event(
                    recording.key,
                    part.messages,
                    event_id=event_id,
                    model=conversation.model,
                    is_meta=part.is_meta,
                    shape=None if is_chat else conversation.shape.value,
                )
        except TooLarge as error:
            raise TooLarge(
                f"{conversation.conversation_id}: one message exceeds the size of an event"
                f" ({error})"
            ) from error
        yield event, len(part.messages)


def pieces(
    turn: Turn,
    *,
    shape: Shape = Shape.CHAT,
    max_messages: int = LIMITS.messages,
    max_bytes: int = LIMITS.bytes - ENVELOPE_BYTES,
) -> Iterator[Turn]:
    """Split a turn between messages into as few events as its size allows.

    The items of one response stay together. Those above the limit are alone in their event.
    """
    piece: list[Json] = []
    size = 0
    for together in units(turn.messages, shape):
        unit_bytes = sum(len(encoded(message)) + 1 for message in together)
        is_full = len(piece) + len(together) > max_messages or size + unit_bytes > max_bytes
        if piece and is_full:
            yield Turn(tuple(piece), turn.is_meta)
            piece, size = [], 0
        piece += together
        size += unit_bytes
    yield Turn(tuple(piece), turn.is_meta)


def units(messages: Sequence[Json], shape: Shape) -> Iterator[tuple[Json, ...]]:
    """Split messages into what one event must contain: each chat message, or each response."""
    if shape is not Shape.RESPONSES:
        yield from ((message,) for message in messages)
        return
    for is_response, items in groupby(messages, is_of_model):
        if is_response:
            yield tuple(items)
        else:
            yield from ((item,) for item in items)


def _parts(conversation: Conversation, step: Step) -> Iterator[Turn]:
    shape = conversation.shape
    for turn in turns(conversation.messages, conversation.machine_made, conversation.pinned):
        if step is Step.TURN:
            yield from pieces(turn, shape=shape)
        else:
            for unit in _steps(turn, shape):
                yield from pieces(Turn(unit, turn.is_meta), shape=shape)


def _steps(turn: Turn, shape: Shape) -> Iterator[tuple[Json, ...]]:
    """Return the units of a turn; a later system message stays with the one before it.

    It would replace the pinned one if it began its event.
    """
    step: tuple[Json, ...] = ()
    for unit in units(turn.messages, shape):
        if step and unit[0].get("role") not in SYSTEM_ROLES:
            yield step
            step = ()
        step += unit
    yield step


def _is_plain_result(message: Json) -> bool:
    """Return whether a `tool.result` event can carry all fields of the message."""
    known = {"role", "tool_call_id", "content", "name", "is_error"}
    named = isinstance(message.get("tool_call_id"), str) and isinstance(
        message.get("name"), str | None
    )
    return message["role"] == "tool" and named and "content" in message and set(message) <= known
