"""Read HTTP requests: read the body first, then wait for a place, then answer.

An unfinished body takes memory from a budget, but no place. A read stops if the caller hangs up or
too much time has passed.
"""

import asyncio
import re
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnfold.access.refusals import refusal
from turnfold.errors import BadRequest, RequestError, TooLarge, Unavailable
from turnfold.process.request_limits import INSTALLATION, RETRY_AFTER_MS, ConcurrencyLimiter, Place
from turnfold_query.auth import agent_of, request_grant

LEAST_BYTES = 64 * 1024
"""The least that a body counts, because its connection takes memory too.

Answers that are longer count until they are read."""
BODY_SHARE = 0.25
BODY_SECONDS = 30.0
PROGRESS_SECONDS = 5.0
"""The longest pause between two parts of a body."""
WATCH_AFTER_SECONDS = 0.002
"""The time that a read request takes before its connection is watched."""
_PLACE = "turnfold.place"
_POSTED_READ = re.compile("/v1/agents/[^/]+/(?:events/known|sessions/[^/]+/tools/[^/]+)")
"""The paths of requests that read although they are posted."""


def place_of(scope: Scope) -> Place:
    """Return the place of a request."""
    place: Place = scope[_PLACE]
    return place


class BodyMemory:
    """The memory budget of bodies and answers in transit, for all callers and for each."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._taken = 0
        self._each: dict[Hashable, int] = {}

    @contextmanager
    def room(self, asker: Hashable) -> Generator[Callable[[int], None]]:
        """Yield a function that takes memory for one request; all of it is freed at the end.

        The function takes a size in bytes and raises `Unavailable` if there is no room.
        """
        held = 0

        def take(size: int) -> None:
            nonlocal held
            taken_each = self._each.get(asker, 0)
            # A request may exceed the whole share if it is the only one.
            if (taken_each and taken_each + size > self._most_each) or (
                self._taken and self._taken + size > self._most
            ):
                raise Unavailable(
                    "too many large requests are in transit; retry shortly",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            self._each[asker] = taken_each + size
            self._taken += size
            held += size

        try:
            yield take
        finally:
            if held:
                self._taken -= held
                self._each[asker] -= held
                # Callers without memory are removed: any client may name a new agent.
                if not self._each[asker]:
                    del self._each[asker]


class ConcurrencyMiddleware:
    """Limits concurrent requests below `/v1/`, together with those of the bus.

    Health checks and metrics are always answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        limiter: ConcurrencyLimiter,
        memory: BodyMemory,
        *,
        most_bytes: Callable[[Scope], int],
        seconds: float,
        on_refusal: Callable[[str], object],
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._memory = memory
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer that there is no room for it."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        askers = askers_of(scope)
        try:
            with self._memory.room(askers[-1]) as take:
                body = await _body(scope, receive, take, most=self._most_bytes(scope))
                if body is not None:
                    await self._admit(
                        scope, body, receive, _Answer(scope, receive, send, take), askers
                    )
        except RequestError as error:
            self._on_refusal(error.code)
            await refusal(error)(scope, receive, send)

    async def _admit(
        self,
        scope: Scope,
        body: bytes,
        receive: Receive,
        answer: "_Answer",
        askers: tuple[Hashable, ...],
    ) -> None:
        await self._limiter.turn(askers[-1])
        with self._limiter.admitted(*askers) as place:
            # The work is done when the answer begins: a slow reader keeps a connection, no place.
            answer.on_begin = place.release
            # In this scope and no copy: tracing reads from it which route took the request.
            scope[_PLACE] = place
            # Other requests run to their end: a command that was sent cannot be taken back.
            if scope["method"] == "GET" or _POSTED_READ.fullmatch(scope["path"]):
                await self._read(scope, body, receive, answer)
            else:
                await self._app(scope, _again(body, receive), answer.send)

    async def _read(self, scope: Scope, body: bytes, receive: Receive, answer: "_Answer") -> None:
        """Answer a read request; stop if the caller hangs up or the time is over."""
        limit = answer.limit = asyncio.timeout(self._seconds)
        departure = _Departure(receive, answer.stop)
        try:
            async with limit:
                await self._app(scope, _again(body, departure.message), answer.send)
        except TimeoutError:
            if not limit.expired():
                raise
            # The limit also ends requests whose callers have left, and these need no answer.
            if not departure.is_seen:
                raise Unavailable(
                    "the request took too long and was ended", retry_after_ms=RETRY_AFTER_MS
                ) from None
        finally:
            # `close` may cause another `stop`, which must not reschedule a timeout that has ended.
            answer.is_over = True
            departure.close()


class _Departure:
    """Ends a request if its caller hangs up.

    The connection is watched by a task, which costs as much as the admission of a request, so only
    requests that take longer than most have one.
    """

    def __init__(self, receive: Receive, on_seen: Callable[[], object]) -> None:
        self._receive = receive
        self._on_seen = on_seen
        self._watching: asyncio.Future[Message] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._watch)

    @property
    def is_seen(self) -> bool:
        """Whether the caller has hung up."""
        return self._watching is not None and self._watching.done()

    async def message(self) -> Message:
        """Return the message that the caller has hung up, when it has."""
        # The watch uses the same future, so a reader that is cancelled must not cancel it.
        return await asyncio.shield(self._begun())

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _begun(self) -> asyncio.Future[Message]:
        if self._watching is None:
            # The body was read before, so the next message can only be the end of the connection.
            self._watching = asyncio.ensure_future(self._receive())
        return self._watching

    def _watch(self) -> None:
        self._begun().add_done_callback(lambda _: self._on_seen())


class _Answer:
    """An answer in transit; a long one counts as memory until the caller has read most of it."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, take: Callable[[int], None]
    ) -> None:
        self._connection = scope, receive, send
        self._send = send
        self._take = take
        self._start: Message | None = None
        self.has_begun = False
        self.is_over = False
        self.on_begin: Callable[[], object] = lambda: None
        self.limit: asyncio.Timeout | None = None

    def stop(self) -> None:
        """End the request now, unless its answer has begun."""
        if self.limit is not None and not (self.is_over or self.limit.expired()):
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _begin(self) -> None:
        """Let the answer finish: its status line cannot be taken back."""
        self.has_begun = True
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(None)
        self.limit = None

    async def send(self, message: Message) -> None:
        """Send a part, the head together with the first one."""
        if self.is_over:
            return
        # For every part: to release a place that was released before does nothing.
        self.on_begin()
        if message["type"] == "http.response.start":
            self._start = message
            return
        if not self.has_begun:
            self._begin()
        size = len(message.get("body", b""))
        if size > LEAST_BYTES:
            try:
                # A long answer is one part, so its head is unsent and a refusal can replace it.
                self._take(size)
            except Unavailable as error:
                self.is_over = True
                await refusal(error)(*self._connection)
                return
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
        if size > LEAST_BYTES and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            # This part is sent when the connection has room again.
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)


def askers_of(scope: Scope) -> tuple[Hashable, ...]:
    """Return the callers whose shares a request uses.

    They are the agent in its path, and the token if it is valid for several agents.
    """
    grant = request_grant(scope)
    several = () if grant.is_operators else (grant.agents,)
    agent_id = agent_of(scope["path"])
    if agent_id is None:
        return several or (INSTALLATION,)
    return (agent_id,) if not several or len(grant.agents) == 1 else (agent_id, *several)


async def _body(
    scope: Scope, receive: Receive, take: Callable[[int], None], *, most: int
) -> bytes | None:
    """Return the whole body, counted as it arrives, or None if the caller has hung up.

    Raises:
        RequestError: the body is too long or too slow, or there is no room for it.
    """
    parts: list[bytes] = []
    size = 0
    if not _has_body(scope):
        # The server has seen the end of the request already.
        message = await receive()
        return b"" if message["type"] == "http.request" else None
    taken = LEAST_BYTES
    take(taken)
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS
    while True:
        message = await _next(receive, deadline)
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise TooLarge(f"more than {most} bytes")
        # Counted before it is kept, so that memory never exceeds the limit by more than one part.
        if size > taken:
            take(size - taken)
            taken = size
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


async def _next(receive: Receive, deadline: float) -> Message:
    """Return the next part of a body."""
    left = deadline - asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(max(0.0, min(left, PROGRESS_SECONDS))):
            return await receive()
    except TimeoutError:
        raise BadRequest(
            f"the body came too slowly: it may take {BODY_SECONDS:g} s, "
            f"and pause for {PROGRESS_SECONDS:g} s"
        ) from None


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` function that replays a body that was read already."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
