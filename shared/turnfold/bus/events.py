"""Single events of the event stream: publish one again, or read one by its sequence."""

import base64
from collections.abc import Callable
from secrets import token_hex

import nats.errors

from turnfold.bus.asking import ask_jetstream, asking
from turnfold.contracts.publish_errors import publish_error
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.nats_client.acknowledgements import Publisher, Rejection
from turnfold.nats_client.connection import NatsClient

PUBLISH_SECONDS = 5.0


class BusEvents:
    """See `turnfold.ports.admin.EventStream`."""

    def __init__(
        self, client: NatsClient, *, on_foreign: Callable[[], object] = lambda: None
    ) -> None:
        self._client = client
        self._publisher = Publisher(client, EVENTS_STREAM, on_foreign=on_foreign)
        # The server deduplicates ids across the whole stream, so clients must not guess ours.
        self._secret = token_hex(8)

    async def publish(self, subject: str, payload: bytes, *, message_id: str) -> int:
        """Publish an event, and return its sequence.

        Raises:
            StreamFull: the stream has reached its limit.
            Unavailable: no acknowledgement arrived. The event may be stored or not, and may be
                published again with the same id.
        """
        try:
            headers = {
                "Nats-Expected-Stream": EVENTS_STREAM,
                "Nats-Msg-Id": f"{message_id}.{self._secret}",
            }
            result = await self._publisher.publish(
                subject, payload, headers=headers, seconds=PUBLISH_SECONDS
            )
        except nats.errors.Error as error:
            raise publish_error(None, type(error).__name__) from error
        if isinstance(result, Rejection):
            raise publish_error(result.code, result.description)
        return result.seq

    async def payload_of(self, seq: int) -> bytes | None:
        """Return the event at a sequence, or None if the stream no longer holds it."""
        held = await ask_jetstream(self._client, f"STREAM.MSG.GET.{EVENTS_STREAM}", seq=seq)
        with asking():
            return None if held is None else base64.b64decode(held["message"].get("data", ""))
