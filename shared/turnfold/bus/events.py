"""The stream of events, one event at a time: published again, and read by its sequence."""

import base64
import json
from secrets import token_hex

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError
from nats.js.errors import Error as JetStreamError

from turnfold.contracts.refusals import refused
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import Unavailable

PUBLISH_SECONDS = 5.0
READ_SECONDS = 10.0
NO_MESSAGE = 10_037
"""JetStream: no message of that sequence."""


class BusEvents:
    """See `turnfold.ports.EventStream`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # The broker looks for copies in the whole stream: nobody may guess what we use.
        self._secret = token_hex(8)

    async def publish(self, subject: str, payload: bytes, *, message_id: str) -> int:
        """Publish an event; its sequence.

        Raises:
            StreamFull: there is no room.
            Unavailable: no acknowledgement came; it may be stored or not, and may be published again under the same id.
        """
        try:
            jetstream = self._client.jetstream(timeout=PUBLISH_SECONDS)
            return (
                await jetstream.publish(subject, payload, stream=EVENTS_STREAM, headers={"Nats-Msg-Id": f"{message_id}.{self._secret}"})
            ).seq
        except APIError as error:
            raise refused(error.err_code, error.description) from error
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise refused(None, type(error).__name__) from error

    async def payload_of(self, seq: int) -> bytes | None:
        """What was published at a sequence; None where the stream holds it no more."""
        try:
            reply = await self._client.request(
                f"$JS.API.STREAM.MSG.GET.{EVENTS_STREAM}", json.dumps({"seq": seq}).encode(), timeout=READ_SECONDS
            )
        except (nats.errors.Error, TimeoutError) as error:
            raise Unavailable(f"the stream does not answer ({type(error).__name__}); try again later") from error
        told = json.loads(reply.data)
        if failure := told.get("error"):
            if failure.get("err_code") == NO_MESSAGE:
                return None
            raise Unavailable(f"the stream does not say what it holds: {failure.get('description')}")
        return base64.b64decode(told["message"].get("data", ""))
