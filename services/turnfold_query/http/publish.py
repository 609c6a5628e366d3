"""The route that publishes an event for callers without a NATS client."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

import nats.errors
from fastapi import FastAPI, Request, Response

from turnfold.contracts.answers.installation import PublishAnswer
from turnfold.contracts.event_models import EVENT_BODIES
from turnfold.contracts.events import EventLimits
from turnfold.contracts.publish_errors import publish_error
from turnfold.contracts.subjects import TURN_RETRACTED, event_headers, session_subject
from turnfold.errors import BadRequest, Conflict, Unavailable
from turnfold.messages import SessionKey
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.observability.tracing import span
from turnfold.process.request_limits import RETRY_AFTER_MS
from turnfold_query.auth import ReadSecret, actor_headers
from turnfold_query.http.description import EVERYWHERE, described
from turnfold_query.http.responses import SESSION, SessionPath, json_response
from turnfold_query.lane.parent import Lane
from turnfold_query.posted_events import EventBody, PostedEvent, read_posted

PUBLISH_SECONDS = 5.0

ReadEvent = Callable[[SessionKey, EventBody], Awaitable[PostedEvent]]


def reader_of(lane: Lane, seconds: float) -> ReadEvent:
    """Return a function that reads an event, in the lane for at most so many seconds."""

    async def read(key: SessionKey, posted: EventBody) -> PostedEvent:
        if not posted.takes_long:
            return read_posted(posted)
        try:
            # A lane that hangs is ended only after somebody gave up what it works on.
            async with asyncio.timeout(seconds):
                event: PostedEvent = await lane.ask(key, posted)
                return event
        except TimeoutError:
            raise Unavailable(
                f"the event was not read within {seconds:g} s; publish it again",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None

    return read


def add_publish(
    app: FastAPI,
    publisher: Publisher,
    limits: EventLimits,
    read: ReadEvent,
    read_secret: ReadSecret,
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
    async def post_event(key: SessionPath, http: Request) -> Response:
        body = await http.body()
        event_type, event_key, event_id = await read(key, EventBody(body, limits))
        # The token was checked for the agent in the path alone.
        if event_key != key:
            raise BadRequest("the event names another agent or session than the path")
        subject = session_subject(event_type, key)
        headers = event_headers(key.agent_id, event_id, secret)
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
        if outcome.stored not in (None, body):
            await read(key, EventBody(body, limits, outcome.stored))
        return json_response({"seq": outcome.seq})
