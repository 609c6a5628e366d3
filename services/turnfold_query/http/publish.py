"""The route that publishes an event for callers without a NATS client."""

import json
import secrets
from contextlib import suppress

import nats.errors
from fastapi import FastAPI, Request, Response

from turnfold.contracts.answers.installation import PublishAnswer
from turnfold.contracts.event_models import EVENT_BODIES
from turnfold.contracts.events import EventLimits, check_copy, read_payload
from turnfold.contracts.publish_errors import publish_error
from turnfold.contracts.subjects import (
    EVENT_TYPES,
    TURN_RETRACTED,
    event_headers,
    session_subject,
)
from turnfold.errors import BadEvent, BadRequest, Conflict, EventFault, TooLarge, Unavailable
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.observability.tracing import span
from turnfold_query.auth import ReadSecret, actor_headers
from turnfold_query.http.description import EVERYWHERE, described
from turnfold_query.http.responses import (
    SESSION,
    AgentPath,
    SessionPath,
    json_response,
    session_key,
)

PUBLISH_SECONDS = 5.0
NOT_ON_WIRE = "type"
"""The field of the body that names the event's type; on NATS the subject does."""


def add_publish(
    app: FastAPI, publisher: Publisher, limits: EventLimits, read_secret: ReadSecret
) -> None:
    """Add the route that publishes an event and returns its stream sequence.

    The audit names who retracted messages; `read_secret` reads what signs the name, if it can.
    """
    # The key of the ids by which the broker finds duplicates, see `unique_headers`.
    secret = secrets.token_bytes(16)

    @app.post(
        SESSION + "/events",
        **described(
            "events",
            "Publish an event",
            PublishAnswer,
            body=EVENT_BODIES,
            errors=(*EVERYWHERE, Conflict),
        ),
    )
    async def post_event(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        key, body = session_key(agent_id, session_id), await http.body()
        event_type = event_type_of(body)
        try:
            event = read_payload(event_type, body, limits)
        except BadEvent as error:
            is_large = error.reason is EventFault.TOO_LARGE
            raise (TooLarge if is_large else BadRequest)(str(error)) from None
        # The token was checked for the agent in the path alone.
        if event.key != key:
            raise BadRequest("the event names another agent or session than the path")
        subject = session_subject(event_type, key)
        headers = event_headers(key.agent_id, event.event_id, secret)
        if event_type == TURN_RETRACTED:
            # Events are published without the database as well; the audit says `local` then.
            with suppress(Unavailable):
                headers |= await actor_headers(http.scope, subject, body, read_secret)
        try:
            with span("publish", kind="producer", event=event_type) as publish_span:
                outcome = await publisher.publish(
                    subject,
                    body,
                    headers=headers | dict(publish_span.headers),
                    seconds=PUBLISH_SECONDS,
                )
                publish_span.set_attributes(
                    stream_seq=outcome.seq if isinstance(outcome, Acknowledgement) else None
                )
        except nats.errors.Error as error:
            raise publish_error(None, type(error).__name__) from None
        if isinstance(outcome, Rejection):
            raise publish_error(outcome.code, outcome.description)
        if outcome.stored is not None:
            check_copy(event_type, body, outcome.stored, limits)
        return json_response({"seq": outcome.seq})


def event_type_of(body: bytes) -> str:
    """Return the type that the body of an event names.

    Raises:
        BadRequest: the body is not JSON, or names no known type.
    """
    try:
        event_json = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    event_type = event_json.get(NOT_ON_WIRE) if isinstance(event_json, dict) else None
    if event_type not in EVENT_TYPES:
        raise BadRequest(f"type must be one of {', '.join(EVENT_TYPES)}")
    return str(event_type)
