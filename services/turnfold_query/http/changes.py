"""The stream of a session's changes, as server-sent events.

A stream lasts at most a minute, and clients of this protocol reconnect by themselves. So a token
that was revoked ends soon, and a proxy in between sees no endless answer.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import suppress
from typing import Annotated

from fastapi import FastAPI, Header, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from turnfold.errors import Unavailable, UnknownSession
from turnfold.messages import SessionKey
from turnfold.operations.query.replies import optional_time
from turnfold.ports.inspection import SessionMark
from turnfold.process.request_limits import RETRY_AFTER_MS
from turnfold.store.query.inspection import SqlInspectionStore
from turnfold_query.http.description import EVERYWHERE, described_text
from turnfold_query.http.request_reading import askers_of
from turnfold_query.http.responses import SESSION, SessionPath

LOOK_SECONDS = 0.5
"""The interval at which a stream reads the session's row."""
COMMENT_SECONDS = 10.0
"""The longest silence of a stream, so that proxies keep the connection."""
RETRY_MS = 1_000
STREAMS = 200
STREAMS_EACH = 50
"""The most streams of a server, and of one caller."""
_EXAMPLE = 'id: 9-60-2-14\nevent: session\ndata: {"messages": 60, "compactions": 2}\n\n'


class ChangeStreams:
    """Streams that are open in this process; `is_stopping` ends them."""

    def __init__(self, store: SqlInspectionStore, is_stopping: Callable[[], bool]) -> None:
        self.store = store
        self._is_stopping = is_stopping
        self._open: Counter[Hashable] = Counter()

    def check_room(self, caller: Hashable) -> None:
        """Raise an error if there are too many streams.

        Raises:
            Unavailable: the server or the caller has too many.
        """
        if self._open.total() >= STREAMS or self._open[caller] >= STREAMS_EACH:
            raise Unavailable(
                "too many streams of changes are open; read the session at intervals",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def take(self, caller: Hashable) -> Callable[[], None]:
        """Count one more stream of a caller; return the function that ends it.

        Raises:
            Unavailable: the server or the caller has too many.
        """
        self.check_room(caller)
        self._open[caller] += 1

        def end() -> None:
            self._open[caller] -= 1
            self._open += Counter()  # Drops callers without a stream.

        return end

    async def events(
        self,
        key: SessionKey,
        mark: SessionMark,
        known: str | None,
        seconds: float,
    ) -> AsyncGenerator[str]:
        """Yield an event now, unless the caller knows this state, and after each change."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        try:
            yield f"retry: {RETRY_MS}\n\n"
            sent_at = loop.time()
            while True:
                if (name := _id_of(mark)) != known:
                    known, sent_at = name, loop.time()
                    yield _event(mark)
                elif loop.time() - sent_at >= COMMENT_SECONDS:
                    sent_at = loop.time()
                    yield ":\n\n"
                if self._is_stopping() or loop.time() >= until:
                    return
                await asyncio.sleep(min(LOOK_SECONDS, max(0.0, until - loop.time())))
                # While the database cannot be read, the mark stays, and no event is sent.
                with suppress(Unavailable):
                    mark = await self.store.mark(key)
        except UnknownSession:
            yield "event: erased\ndata: {}\n\n"


class ChangesResponse(StreamingResponse):
    """The response of a stream; `on_end` is called at its end, even if it never began."""

    def __init__(self, events: AsyncGenerator[str], on_end: Callable[[], None]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            # Without the second header, nginx would hold events back in a buffer.
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _id_of(mark: SessionMark) -> str:
    return f"{mark.revision}-{mark.messages}-{mark.compactions}-{mark.audit_rows}"


def _event(mark: SessionMark) -> str:
    fields = {
        "messages": mark.messages,
        "compactions": mark.compactions,
        "audit_rows": mark.audit_rows,
        "summary_version": mark.version,
        "last_event_at": optional_time(mark.last_event_at_ms),
    }
    return f"id: {_id_of(mark)}\nevent: session\ndata: {json.dumps(fields)}\n\n"


def add_changes(app: FastAPI, streams: ChangeStreams) -> None:
    """Add the route."""

    @app.get(
        SESSION + "/changes",
        **described_text(
            "sessions",
            "Changes of a session as server-sent events",
            "text/event-stream",
            _EXAMPLE,
            errors=(*EVERYWHERE, UnknownSession),
        ),
    )
    async def get_changes(
        key: SessionPath,
        http: Request,
        seconds: Annotated[
            int, Query(ge=1, le=60, description="After this time the stream ends.")
        ] = 30,
        last_event_id: Annotated[
            str | None,
            Header(max_length=100, description="The state that the caller knows already."),
        ] = None,
    ) -> Response:
        caller = askers_of(http.scope)[-1]
        # Also before the read, so that a stream that is refused costs none.
        streams.check_room(caller)
        mark = await streams.store.mark(key)
        # Nothing is awaited between the two, so requests at the same time cannot exceed the limit,
        # and a stream that was counted always ends.
        end = streams.take(caller)
        return ChangesResponse(streams.events(key, mark, last_event_id, seconds), end)
