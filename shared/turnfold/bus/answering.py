"""Replies to requests on the bus, and detection of messages that are not requests."""

import json
from collections.abc import Mapping
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from turnfold.access.roles import SERVICES_ACCOUNT
from turnfold.nats_client.corrected import REQUEST_INFO

log = structlog.get_logger()

ANSWER_ROOM_BYTES: Final = 64 * 1024
"""The part of the bus's limit that answers leave to headers and the protocol."""


def most_answer_bytes(client: Client) -> int:
    """Return the size of the largest answer. nats-py refuses to send a larger one."""
    return client.max_payload - ANSWER_ROOM_BYTES


async def answer(message: Msg, body: bytes) -> None:
    """Reply to a request without its headers, some of which are instructions to the server."""
    # `respond` would also send the headers of the request.
    client = message._client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    try:
        await client.publish(message.reply, body)
    except nats.errors.Error as error:
        # A client may name any reply subject, and the connection may be lost.
        log.warning("request.unanswered", error=type(error).__name__)


def is_led(headers: Mapping[str, str] | None) -> bool:
    """Return whether a message is a reply or a trace that a client directed to a request subject.

    The server delivers a reply through an import of the account that it returns to. It then names
    that account (`svc`), or the services' account, as the origin. For a trace it names no client.
    """
    text = (headers or {}).get(REQUEST_INFO)
    if text is None:
        return False
    try:
        info = json.loads(text)
    except ValueError:
        return True
    return (
        not isinstance(info, dict)
        or "svc" in info
        or info.get("acc") == SERVICES_ACCOUNT
        or info.get("kind") == "Account"
    )
