"""Single events of the event stream: publish one again, or read one by its sequence."""

import base64
from collections.abc import Awaitable, Callable
from secrets import token_bytes

import nats.errors

from turnfold.access.actors import ACTOR_HEADER, signed_actor
from turnfold.bus.asking import asking, find_event
from turnfold.bus.stream_state import newest_sequence
from turnfold.contracts.publish_errors import OTHER_SEQUENCE, publish_error
from turnfold.contracts.subjects import (
    EVENTS_STREAM,
    REPLAY_HEADER,
    TURN_RETRACTED,
    event_headers,
    session_subject,
    unique_headers,
)
from turnfold.core.history.audit_chain import LOCAL
from turnfold.messages import SessionKey
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.nats_client.connection import NatsClient
from turnfold.ports.admin import NewestEvents
from turnfold.process.clock import now_ms

PUBLISH_SECONDS = 5.0


class BusEvents:
    """See `turnfold.ports.admin.EventStream` and `RetractionStream`."""

    def __init__(
        self,
        client: NatsClient,
        *,
        read_secret: Callable[[], Awaitable[str]],
        on_foreign: Callable[[], object] = lambda: None,
    ) -> None:
        self._client = client
        self._read_secret = read_secret
        self._publisher = Publisher(client, EVENTS_STREAM, on_foreign=on_foreign)
        # The key of the ids by which the broker finds duplicates, see `unique_headers`.
        self._secret = token_bytes(16)

    async def publish_again(self, subject: str, payload: bytes, *, seq: int) -> int:
        """Publish the event of a sequence again, and return its new sequence.

        The stream ignores a second publication within minutes. The event names `seq`, so that an
        erasure up to there holds for it.

        Raises:
            StreamFull: the stream has reached its limit.
            Unavailable: no acknowledgement arrived. The event may be stored or not, and may be
                published again with the same id.
        """
        # No event has such a name: in names of events, a colon is encoded.
        headers = unique_headers(f"again:{seq}", self._secret) | {REPLAY_HEADER: str(seq)}
        result = await self._send(subject, payload, headers)
        if isinstance(result, Rejection):
            raise publish_error(result.code, result.description)
        return result.seq

    async def newest(self, key: SessionKey) -> NewestEvents:
        """Return the newest sequences of a session. A retraction that follows changes both.

        Raises:
            Unavailable: the server does not reply.
        """
        held = await find_event(
            self._client,
            last_by_subj=session_subject(TURN_RETRACTED, key),
        )
        with asking():
            retraction_seq = 0 if held is None else int(held["message"]["seq"])
        seq = await newest_sequence(self._client, key, seconds=PUBLISH_SECONDS)
        return NewestEvents(seq, retraction_seq)

    async def retract(
        self, key: SessionKey, event: bytes, *, event_id: str, newest_seq: int, actor: str
    ) -> int | None:
        """Publish a retraction that `actor` asked for, and return its sequence.

        None if `newest_seq` is no longer the newest retraction of the session: nothing was
        published. The actor is signed, because whoever stores the event believes no other header.

        Raises:
            Unavailable: no acknowledgement arrived. The retraction may be stored or not.
        """
        subject = session_subject(TURN_RETRACTED, key)
        headers = {
            **event_headers(key.agent_id, event_id, self._secret),
            # Compared and stored by the server in one step: of several callers one succeeds.
            "Nats-Expected-Last-Subject-Sequence": str(newest_seq),
        }
        if actor != LOCAL:
            secret = await self._read_secret()
            headers[ACTOR_HEADER] = signed_actor(
                secret, actor, subject=subject, body=event, now_ms=now_ms()
            )
        result = await self._send(subject, event, headers)
        if isinstance(result, Rejection):
            if result.code in OTHER_SEQUENCE:
                return None
            raise publish_error(result.code, result.description)
        return result.seq

    async def _send(
        self, subject: str, payload: bytes, headers: dict[str, str]
    ) -> Acknowledgement | Rejection:
        try:
            return await self._publisher.publish(
                subject, payload, headers=headers, seconds=PUBLISH_SECONDS
            )
        except nats.errors.Error as error:
            raise publish_error(None, type(error).__name__) from error

    async def payload_of(self, seq: int) -> bytes | None:
        """Return the event at a sequence, or None if the stream no longer holds it."""
        held = await find_event(self._client, seq=seq)
        with asking():
            return None if held is None else base64.b64decode(held["message"].get("data", ""))
