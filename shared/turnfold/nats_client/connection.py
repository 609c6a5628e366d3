"""A NATS client whose requests ignore foreign replies."""

import asyncio
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import nats.errors
from nats.aio.msg import Msg

from turnfold.nats_client.corrected import CorrectedClient
from turnfold.nats_client.handover import Handover
from turnfold.nats_client.responses import API, is_no_responders, is_response, response_type

NO_RESPONDERS_SECONDS: Final = 0.2
"""Time to wait for a reply after "no responders", which any client can forge."""
_DENIED: Final = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)
MOST_REPLIES: Final = 1_000
"""The maximum number of unread replies per request. Further ones are dropped."""
MOST_EXPIRED: Final = 1_000


NatsReply = TypeVar("NatsReply")


class Denied(nats.errors.Error):
    """The credentials do not allow publishing to the subject."""


class NatsClient(CorrectedClient):
    """A client whose requests to JetStream ignore foreign replies, and notice denials."""

    _replies: "Replies | None" = None

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[str, set[Callable[[], object]]] = {}
        """The functions to call when a subject is denied, by its name in lower case."""
        self.denied: dict[str, int] = {}
        """The connections that were denied a subscription, by its subject in lower case."""

    def call_on_reconnection(self, call: Callable[[], object]) -> None:
        """Call a function after each reconnection: messages sent to this client meanwhile are lost.

        nats-py takes its callback only when it connects, and parts of a service exist later.
        """
        before = self._reconnected_cb

        async def reconnected() -> None:
            if before is not None:
                await before()
            call()

        self._reconnected_cb = reconnected

    async def _process_err(self, err_msg: str) -> None:
        if denial := _DENIED.search(err_msg):
            kind, subject = denial[1].lower(), denial[2].lower()
            if kind == "subscription":
                self.denied[subject] = self.stats["reconnects"]
            for on_denied in self._watched.get(subject, ()) if kind == "publish" else ():
                # The server reports a denial as an error of the connection, and the request would
                # time out.
                on_denied()
        await super()._process_err(err_msg)

    def watch_denials(self, subject: str, on_denied: Callable[[], object]) -> None:
        """Call a function when the server denies publishing to a subject, until `end_watch`."""
        self._watched.setdefault(subject.lower(), set()).add(on_denied)

    def end_watch(self, subject: str, on_denied: Callable[[], object]) -> None:
        """Call the function no longer."""
        watching = self._watched[subject.lower()]
        watching.discard(on_denied)
        if not watching:
            del self._watched[subject.lower()]

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # noqa: ASYNC109  # as of nats-py
        old_style: bool = False,  # noqa: FBT001, FBT002  # as of nats-py
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Send a request as nats-py does, but ignore foreign replies to JetStream requests."""
        if not subject.startswith(API):
            deadline = asyncio.get_running_loop().time() + timeout
            await self._until_connected(deadline)
            left = deadline - asyncio.get_running_loop().time()
            return await super().request(subject, payload, left, old_style, headers)
        wanted = response_type(subject)
        return await self.reply(
            subject,
            payload,
            seconds=timeout,
            headers=headers,
            read=lambda reply: reply if is_response(reply, wanted) else None,
        )

    async def reply(
        self,
        subject: str,
        payload: bytes,
        *,
        seconds: float,
        read: Callable[[Msg], NatsReply | None],
        headers: Mapping[str, str] | None = None,
    ) -> NatsReply:
        """Return the result of `read` for the first reply for which it is not None.

        Raises:
            Denied: the credentials do not allow the request.
            nats.errors.NoRespondersError: there is no subscriber.
            nats.errors.TimeoutError: no reply arrived in time.
        """
        if self._replies is None:
            self._replies = Replies(self)
        deadline = asyncio.get_running_loop().time() + seconds
        await self._until_connected(deadline)
        is_unheard = False
        async with self._replies.to(subject, payload, headers) as inbox:
            while (reply := await inbox.next(deadline)) is not None:
                if is_no_responders(reply):
                    is_unheard = True
                    deadline = min(
                        deadline, asyncio.get_running_loop().time() + NO_RESPONDERS_SECONDS
                    )
                elif (answer := read(reply)) is not None:
                    return answer
        if is_unheard:
            raise nats.errors.NoRespondersError
        raise nats.errors.TimeoutError


class Replies:
    """Receives all replies to the requests of one connection, until each request is closed.

    `on_stray` is called for a reply that arrives later, except after a timeout.
    """

    def __init__(
        self, client: NatsClient, *, on_stray: Callable[[], object] = lambda: None
    ) -> None:
        self._client = client
        self._on_stray = on_stray
        self._prefix = ""
        self._opening = asyncio.Lock()
        self._numbers = count()
        self._open: dict[str, _Inbox] = {}
        self._expired: OrderedDict[str, None] = OrderedDict()

    def to(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> "_Inbox":
        """Return a request as an async context manager. Entering it sends the request."""
        return _Inbox(self, subject, payload, headers)

    async def send(
        self, inbox: "_Inbox", subject: str, payload: bytes, headers: Mapping[str, str] | None
    ) -> str:
        """Open an inbox, send its request, and return the name of the inbox."""
        if not self._prefix:
            await self._listen()
        token = f"{next(self._numbers)}"
        self._open[token] = inbox
        # Before it is sent, because its denial may arrive while `publish` waits.
        self._client.watch_denials(subject, inbox.deny)
        try:
            await self._client.publish(
                subject,
                payload,
                reply=f"{self._prefix}.{token}",
                headers=dict(headers) if headers else None,
            )
        except BaseException:
            self.end(inbox, token, subject, is_expired=False)
            raise
        return token

    def end(self, inbox: "_Inbox", token: str, subject: str, *, is_expired: bool) -> None:
        """Drop further replies."""
        del self._open[token]
        self._client.end_watch(subject, inbox.deny)
        if is_expired:
            # A late reply of the stream is not a sign of another client.
            self._expired[token] = None
            if len(self._expired) > MOST_EXPIRED:
                self._expired.popitem(last=False)

    async def _listen(self) -> None:
        async with self._opening:
            if not self._prefix:
                # Checked again under the lock: another request may have subscribed meanwhile.
                prefix = self._client.new_inbox()
                await self._client.subscribe(f"{prefix}.*", future=Handover(self._on_reply))
                self._prefix = prefix

    def _on_reply(self, reply: Msg) -> None:
        token = reply.subject.rpartition(".")[2]
        inbox = self._open.get(token)
        if inbox is not None:
            inbox.add(reply)
        elif token not in self._expired:
            self._on_stray()


class _Inbox:
    """The replies to one request, in order."""

    def __init__(
        self, replies: Replies, subject: str, payload: bytes, headers: Mapping[str, str] | None
    ) -> None:
        self._all = replies
        self._request = subject, payload, headers
        self._token = ""
        self._waiting: deque[Msg] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._is_expired = False
        self._is_denied = False

    async def __aenter__(self) -> Self:
        self._token = await self._all.send(self, *self._request)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._all.end(
            self, self._token, self._request[0], is_expired=self._is_expired or error is not None
        )

    def add(self, reply: Msg) -> None:
        """Queue a reply."""
        # Any subscriber of the request may reply as often as it likes.
        if len(self._waiting) < MOST_REPLIES:
            self._waiting.append(reply)
        self._wake()

    def deny(self) -> None:
        """Record that no reply will arrive."""
        self._is_denied = True
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None:
            _done(self._arrived)

    async def next(self, deadline: float) -> Msg | None:
        """Return the next reply, or None if none has arrived by this time of the loop.

        Raises:
            Denied: the server has rejected the request.
        """
        if not self._waiting and not self._is_denied:
            loop = asyncio.get_running_loop()
            self._arrived = arrived = loop.create_future()
            # A timer instead of `wait_for`: before Python 3.12 that swallows a cancellation that
            # arrives together with the result.
            timer = loop.call_at(deadline, _done, arrived)
            try:
                await arrived
            finally:
                timer.cancel()
        if self._waiting:
            return self._waiting.popleft()
        if self._is_denied:
            raise Denied
        self._is_expired = True
        return None


def _done(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
