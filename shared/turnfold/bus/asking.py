"""Requests to the JetStream API. A missing or unreadable reply becomes `Unavailable`."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import Error as JetStreamError

from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import Unavailable
from turnfold.nats_client.responses import UNREADABLE

NO_MESSAGE_CODES = (10_037, 10_043)
"""JetStream's error codes for a missing message: on reading it, and on deleting it."""
REQUEST_SECONDS = 10.0
_EPOCH = datetime.fromtimestamp(0, UTC)


@contextmanager
def asking() -> Generator[None]:
    """Send requests and read their replies in the body.

    Raises:
        Unavailable: there was no reply, or an invalid one: any client may reply to a request.
    """
    try:
        yield
    except (nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise Unavailable(
            f"the stream does not answer ({type(error).__name__}); try again later"
        ) from error
    except UNREADABLE as error:
        raise Unavailable(
            f"a reply of the stream cannot be read ({type(error).__name__}); try again later"
        ) from error


def time_ms(text: str) -> int:
    """Return a time of a reply (RFC 3339) in ms since 1970."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


async def ask_jetstream(
    client: Client, name: str, *, seconds: float = REQUEST_SECONDS, **request: object
) -> Any:
    """Send a request to the JetStream API; return its reply, or None if a message is missing.

    Raises:
        Unavailable: there was no reply, or it is another error.
    """
    with asking():
        message = await client.request(
            f"$JS.API.{name}", json.dumps(request).encode(), timeout=seconds
        )
        reply = json.loads(message.data)
        if failure := reply.get("error"):
            if failure.get("err_code") in NO_MESSAGE_CODES:
                return None
            raise Unavailable(f"the stream refuses {name}: {failure.get('description')}")
        return reply


async def find_event(client: Client, *, seconds: float = REQUEST_SECONDS, **place: object) -> Any:
    """Return a message of the event stream as JetStream describes it; None if there is none.

    The `place` is its sequence `seq`, with `next_by_subj=">"` the first one from there on, or the
    subject `last_by_subj`.

    Raises:
        Unavailable: as `ask_jetstream`.
    """
    return await ask_jetstream(client, f"STREAM.MSG.GET.{EVENTS_STREAM}", seconds=seconds, **place)
