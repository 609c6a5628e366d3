"""The state of the event stream: its sequences and its events."""

import asyncio
import contextlib
import json
from typing import NamedTuple

import nats.errors
from nats.aio.client import Client

from turnfold.access.actors import ACTOR_HEADER
from turnfold.bus.asking import asking, find_event, time_ms
from turnfold.contracts.subjects import (
    EVENTS_CONSUMER,
    EVENTS_STREAM,
    replayed_seq,
    session_subject,
)
from turnfold.errors import Unavailable
from turnfold.messages import SessionKey

READ_BYTES = 32 * 1024 * 1024
READ_SECONDS = 5.0


async def last_sequence(client: Client) -> int:
    """Return the sequence of the newest event, even if it was deleted.

    Raises:
        Unavailable: the server does not reply.
    """
    with asking():
        return int((await client.jetstream(timeout=5.0).stream_info(EVENTS_STREAM)).state.last_seq)


async def newest_sequence(client: Client, key: SessionKey, *, seconds: float) -> int:
    """Return the sequence of the newest event of a session, or 0 if the stream holds none.

    Events on subjects without ids count for every session, because only their payloads name one.

    Raises:
        Unavailable: the server does not reply in time.
    """
    # The subjects of all types: a type is two tokens.
    replies = await asyncio.gather(
        *(
            find_event(client, seconds=seconds, last_by_subj=subject)
            for subject in (session_subject("*.*", key), "*.*")
        )
    )
    with asking():
        return max(
            (int(reply["message"]["seq"]) for reply in replies if reply is not None), default=0
        )


async def has_newer(client: Client, seq: int, *, seconds: float) -> bool:
    """Return whether the stream holds an event after this sequence, of any session.

    Raises:
        Unavailable: the server does not reply in time.
    """
    newer = await find_event(client, seconds=seconds, seq=seq + 1, next_by_subj=">")
    return newer is not None


async def ack_floor(client: Client) -> int:
    """Return the sequence up to which all events are acknowledged and not redelivered.

    Raises:
        Unavailable: the server does not reply.
    """
    with asking():
        floor = (
            await client.jetstream(timeout=5.0).consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
        ).ack_floor
        return int(floor.stream_seq) if floor else 0


class StreamMessage(NamedTuple):
    """A stored event, its time (ms since 1970), its header `Turnfold-Actor`, and what it replays.

    `replay_of` is the sequence of the event that it replays, or 0.
    """

    subject: str
    payload: bytes
    stream_seq: int
    at_ms: int
    signed_actor: str | None
    replay_of: int = 0


async def read_events(
    client: Client, *, first_seq: int, last_seq: int, most: int
) -> list[StreamMessage]:
    """Return at most `most` events from `first_seq` to `last_seq`, in order, without a consumer.

    A missing sequence was deleted, or the replica that replied does not have it yet.

    Raises:
        Unavailable: the server does not reply.
    """
    inbox = client.new_inbox()
    # Without limits, because nats-py drops what exceeds them. `READ_BYTES` limits the replies.
    subscription = await client.subscribe(inbox, pending_msgs_limit=-1, pending_bytes_limit=-1)
    wanted = {
        "seq": first_seq,
        "batch": min(most, last_seq - first_seq + 1),
        "max_bytes": READ_BYTES,
    }
    events: list[StreamMessage] = []
    try:
        with asking():
            await client.publish(
                f"$JS.API.DIRECT.GET.{EVENTS_STREAM}", json.dumps(wanted).encode(), reply=inbox
            )
            while True:
                message = await subscription.next_msg(timeout=READ_SECONDS)
                headers = message.headers or {}
                # An event may carry a forged status. An unterminated header block of an event hides
                # the server's first line, `Nats-Stream`, but not its line with the sequence.
                if "Nats-Sequence" in headers:
                    place = int(headers["Nats-Sequence"]), time_ms(headers["Nats-Time-Stamp"])
                    signed = headers.get(ACTOR_HEADER)
                    subject = headers["Nats-Subject"]
                    replay_of = replayed_seq(headers)
                    events.append(StreamMessage(subject, message.data, *place, signed, replay_of))
                elif headers.get("Status") in ("204", "404"):
                    # A batch is a number of messages: where some are missing, later ones fill it.
                    return [event for event in events if first_seq <= event.stream_seq <= last_seq]
                elif "Status" in headers:
                    raise Unavailable(
                        f"the stream cannot be read (status {headers['Status']}); try again later"
                    )
                # Other messages are replies of other clients.
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
