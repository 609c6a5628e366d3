"""Compare an event that the stream calls a duplicate with the event that it stores."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from turnfold.client.events import OutgoingEvent
from turnfold.client.replies import read
from turnfold.contracts.events import EVENT_ID_TAKEN, check_copy, read_payload
from turnfold.contracts.subjects import agent_subject, session_subject
from turnfold.errors import BadEvent, Conflict, RequestError, UnknownSession
from turnfold.messages import Shape
from turnfold.nats_client.acknowledgements import Acknowledgement

WAIT_MS: Final = 1_000

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Send a request to a subject, and return its answer."""


async def check_duplicate(event: OutgoingEvent, acknowledgement: Acknowledgement, ask: Ask) -> None:
    """Compare an event with the one at the sequence of its acknowledgement.

    Credentials of an agent may not read the stream. The history is read then, and an event that no
    service can compare in time passes as a copy.

    Raises:
        Conflict: the event id stands for another event, and this one was not stored.
    """
    if acknowledgement.stored is not None:
        check_copy(event.kind, event.payload, acknowledgement.stored)
        return
    try:
        payload = read_payload(event.kind, event.payload)
    except BadEvent:
        return
    # The history shows other shapes as chat messages.
    messages = payload.parsed if payload.shape is Shape.CHAT else ()
    fields: dict[str, Any] = {
        "message_ids": [f"{event.event_id}#{index}" for index in range(len(messages))],
        "include_retracted": True,
        "after": acknowledgement.seq,
        "wait_ms": WAIT_MS,
    }
    if not messages:
        return
    stored: list[Any] = []
    try:
        page = await ask(session_subject("history.get", event.key), fields)
        # Not everything is stored yet, so messages that are missing prove nothing.
        if page.get("fresh") is not True:
            return
        stored = read(lambda page: [entry.get("message") for entry in page["messages"]], page)
    except UnknownSession:
        pass
    except RequestError:
        return
    # Without any of its messages, the event was erased, or is one of another session.
    is_other = stored != list(messages) if stored else await _is_stored(event, ask)
    if is_other:
        raise Conflict(EVENT_ID_TAKEN)


async def _is_stored(event: OutgoingEvent, ask: Ask) -> bool:
    """Return whether the agent has a stored event of this id."""
    subject = agent_subject("events.known", event.key.agent_id)
    try:
        known = await ask(subject, {"event_ids": [event.event_id]})
    except RequestError:
        return False
    return event.event_id in known["known"]
