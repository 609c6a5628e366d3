"""Answers on the bus, and requests that are none: what a service sends back, and what it must not take for a request."""

import json
from collections.abc import Mapping

import nats.errors
import structlog
from nats.aio.msg import Msg

from turnfold.access.roles import SERVICES_ACCOUNT
from turnfold.nats_client.connection import REQUEST_INFO

log = structlog.get_logger()


async def answer(message: Msg, body: bytes) -> None:
    """Answer a request. Nothing of its headers goes back: some of them are instructions to the server."""
    client = message._client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # `respond` would send the request's headers back
    try:
        await client.publish(message.reply, body)
    except nats.errors.Error as error:
        # The subject for the answer may be anything, and the bus may be away.
        log.warning("request.unanswered", error=type(error).__name__)


def is_led(headers: Mapping[str, str] | None) -> bool:
    """Tell whether a message is an answer, or a trace, that a client had delivered to the subject of a request.

    The server lets an answer enter an import of the account that it returns to. Then it names that account (`svc`), or the
    services' own account, as the origin; for a trace it names no client.
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
