"""Recorded conversations as events: the same recording always makes the same events."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

from turnfold.client import OutgoingEvent, result_event, session_key, turn_event
from turnfold.client.events import encoded
from turnfold.contracts.events import LIMITS
from turnfold.errors import TooLarge
from turnfold.messages import Json, SessionKey
from turnfold.transcripts import Conversation, Turn, read_conversations, turns

DEFAULT_AGENT = "replay"
ENVELOPE_BYTES = 64 * 1024


class Step(StrEnum):
    """What one event carries."""

    TURN = "turn"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Recording:
    """A conversation and the session it is published to."""

    key: SessionKey
    conversation: Conversation


def load_recordings(files: Iterable[str], agent: str | None = None) -> list[Recording]:
    """The conversations of all files, each with a session of its own; where an id comes twice the later one is numbered.

    Raises:
        UnreadableTranscript: a file cannot be read; the text names the line.
    """
    taken: Counter[SessionKey] = Counter()
    found: list[Recording] = []
    for file in files:
        for conversation in read_conversations(file):
            agent_id = agent or conversation.agent or DEFAULT_AGENT
            key = session_key(agent_id, conversation.conversation_id)
            taken[key] += 1
            if taken[key] > 1:
                key = session_key(agent_id, f"{conversation.conversation_id}-{taken[key]}")
            found.append(Recording(key, conversation))
    return found


def events_of(recording: Recording, step: Step = Step.TURN) -> Iterator[tuple[OutgoingEvent, int]]:
    """The events of a conversation in order, made as they are asked for, each with how many messages it carries.

    Their ids follow from the session and their number.

    Raises:
        TooLarge: one message alone is larger than an event may be.
    """
    conversation = recording.conversation
    told = sha256(f"{recording.key.session_id}\n{step}".encode()).hexdigest()[:20]
    for number, part in enumerate(_parts(conversation, step)):
        event_id = f"{told}-{number:06d}"
        message = part.messages[0]
        try:
            if step is Step.MESSAGE and _is_plain_result(message):
                result: dict[str, Any] = {
                    "name": message.get("name"),
                    "is_error": bool(message.get("is_error")),
                }
                event = result_event(
                    recording.key,
                    message["tool_call_id"],
                    message["content"],
                    event_id=event_id,
                    **result,
                )
            else:
                event = turn_event(
                    recording.key,
                    part.messages,
                    event_id=event_id,
                    model=conversation.model,
                    is_meta=part.is_meta,
                )
        except TooLarge as error:
            raise TooLarge(
                f"{conversation.conversation_id}: one message is larger than an event may be ({error})"
            ) from error
        yield event, len(part.messages)


def pieces(
    turn: Turn,
    *,
    max_messages: int = LIMITS.messages,
    max_bytes: int = LIMITS.bytes - ENVELOPE_BYTES,
) -> Iterator[Turn]:
    """A turn in as few events as its size allows, parted between messages; a message above the limit stands alone."""
    piece: list[Json] = []
    size = 0
    for message in turn.messages:
        more = len(encoded(message)) + 1
        if piece and (len(piece) == max_messages or size + more > max_bytes):
            yield Turn(tuple(piece), turn.is_meta)
            piece, size = [], 0
        piece.append(message)
        size += more
    yield Turn(tuple(piece), turn.is_meta)


def _parts(conversation: Conversation, step: Step) -> Iterator[Turn]:
    for turn in turns(conversation.messages, conversation.machine_made):
        if step is Step.TURN:
            yield from pieces(turn)
        else:
            yield from (Turn((message,), turn.is_meta) for message in turn.messages)


def _is_plain_result(message: Json) -> bool:
    """Whether a `tool.result` carries all that stands in this message."""
    known = {"role", "tool_call_id", "content", "name", "is_error"}
    named = isinstance(message.get("tool_call_id"), str) and isinstance(
        message.get("name"), str | None
    )
    return message["role"] == "tool" and named and "content" in message and set(message) <= known
