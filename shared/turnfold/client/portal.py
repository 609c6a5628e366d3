"""A client for every event loop and thread: it runs in a thread of its own.

Hosts with loops that come and go, or with several threads, share one `PortalClient`. It needs no
`async with`, and connects at its first use.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakSet

from turnfold.client.client import Client, connect
from turnfold.client.events import OutgoingEvent, Receipt, session_key
from turnfold.client.session import Session
from turnfold.errors import Unavailable
from turnfold.messages import Json, SessionKey

if TYPE_CHECKING:
    from turnfold.client.notice_stream import StoredNotice
    from turnfold.client.notices import Notices

Result = TypeVar("Result")
CLOSED: Final = "the client is closed"
END_SECONDS: Final = 1.0
"""The time that a caller's coroutine has to end after the client was closed."""

_portals: "WeakSet[PortalClient]" = WeakSet()
_inherited: list[Any] = []
"""The state of clients that was used in the parent of this process."""


class PortalClient:
    """A client whose sessions may be used from any event loop and any thread.

    `url` and `options` are those of `connect`. Nothing is connected before the first use, and a
    connection that failed is tried again at the next one.

    ```python
    client = turnfold.PortalClient("nats://127.0.0.1:4222")
    session = client.session("support", "user-42")
    await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
    window = client.run(session.context(max_tokens=8_000))  # without an event loop
    client.close()
    ```
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._url = url
        self._options = options
        self._is_closed = False
        self._begin()
        _portals.add(self)

    def _begin(self) -> None:
        """Set the state of a client that was not used yet."""
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stack = AsyncExitStack()
        self._connecting: asyncio.Task[Client] | None = None
        self._working: set[asyncio.Task[Any]] = set()
        self._client: Client | None = None

    def session(self, agent_id: str, session_id: str) -> Session:
        """Return a session of an agent; it does not have to exist yet.

        Raises:
            BadRequest: an id is empty, longer than 256 bytes or contains control characters.
        """
        return Session(self, session_key(agent_id, session_id))

    def newest_seq(self, key: SessionKey) -> int:
        """Return the freshness token of the newest event published here for a session, or 0."""
        return 0 if self._client is None else self._client.newest_seq(key)

    async def flushed(self, key: SessionKey, *, seconds: float) -> bool:
        """Wait until no earlier event of a session is in the buffer; see `Client.flushed`."""
        # Without a buffer, the way through the other thread would be for nothing.
        if self._options.get("buffering") is None:
            return True
        return await self.use(lambda client: client.flushed(key, seconds=seconds))

    async def publish(self, event: OutgoingEvent) -> Receipt:
        """Publish one event; see `Client.publish`."""
        return await self.use(lambda client: client.publish(event))

    async def publish_batch(self, events: Iterable[OutgoingEvent]) -> list[Receipt]:
        """Publish events, all or none; see `Client.publish_batch`."""
        listed = list(events)
        return await self.use(lambda client: client.publish_batch(listed))

    async def ask(
        self, subject: str, request: Json, *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Send any request; see `Client.ask`."""
        return await self.use(
            lambda client: client.ask(subject, request, patience_seconds=patience_seconds)
        )

    def notices(
        self, agent_id: str, session_id: str | None = None, *, after: int | None = None
    ) -> "PortalNotices":
        """Iterate over notices in any loop, or in a thread without one; see `Client.notices`."""
        return PortalNotices(self, lambda client: client.notices(agent_id, session_id, after=after))

    async def use(
        self,
        work: Callable[[Client], Awaitable[Result]],
        *,
        on_lost: Callable[[Result], object] = lambda _: None,
    ) -> Result:
        """Run a function of the client in its own loop, and return its result.

        `on_lost` is called there with a result that the caller does not wait for any longer.

        Raises:
            Unavailable: no server answers, or this client is closed.
        """
        return await self.perform(lambda: self._with_client(work), on_lost=on_lost)

    async def perform(
        self,
        work: Callable[[], Coroutine[Any, Any, Result]],
        *,
        on_lost: Callable[[Result], object] = lambda _: None,
    ) -> Result:
        """Run a coroutine in the client's own loop; see `use`. Nothing is connected for it.

        Raises:
            Unavailable: as the coroutine, and if this client is closed.
        """
        caller = asyncio.get_running_loop()
        result: asyncio.Future[Result] = caller.create_future()
        tasks: list[asyncio.Task[Result]] = []

        def begin() -> None:
            tasks.append(asyncio.create_task(work()))
            self._working.add(tasks[0])
            tasks[0].add_done_callback(end)

        def cancel() -> None:
            # A loop runs its callbacks in the order in which they were scheduled: `begin` has run.
            tasks[0].cancel()

        def end(task: asyncio.Task[Result]) -> None:
            self._working.discard(task)
            try:
                caller.call_soon_threadsafe(_hand_over, task, result, on_lost)
            except RuntimeError:
                # The caller's loop is closed.
                _lose(task, on_lost)

        # Without the futures of `concurrent.futures`, with which both ways take half as long again.
        with self._running_loop() as loop:
            loop.call_soon_threadsafe(begin)
        try:
            return await result
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):
                # It arrived together with the cancellation.
                if not result.cancelled() and result.exception() is None:
                    loop.call_soon_threadsafe(on_lost, result.result())
                loop.call_soon_threadsafe(cancel)
            raise

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, such as a method of a session, and block this thread until it ends.

        Raises:
            Unavailable: as the coroutine, and in a coroutine that `run` itself runs: await there.
        """
        try:
            self._require_other_thread()
            with self._running_loop() as loop:
                result = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except Unavailable:
            coroutine.close()
            raise
        try:
            return result.result()
        except CancelledError:
            raise Unavailable(CLOSED) from None
        except BaseException:
            # The thread was interrupted: nobody would receive the result. An ended one stays.
            result.cancel()
            raise

    def close(self) -> None:
        """Publish what is in the buffer, as `connect` does at its end, and end the thread."""
        self._require_other_thread()
        with self._starting:
            self._is_closed = True
            loop, self._loop = self._loop, None
        if loop is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result()
        finally:
            # Stopped, and its thread joined, before it is closed: a running loop cannot be closed.
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join()
            loop.close()

    def begin_after_fork(self) -> None:
        """Connect anew in a forked process, which has no thread of this client."""
        used = (self._loop, self._thread, self._stack, self._connecting, self._working)
        # Never collected: a transport that ends here would leave the selector of the parent, which
        # both processes share.
        _inherited.extend([*used, self._client])
        self._begin()

    def _require_other_thread(self) -> None:
        """Raise `Unavailable` in the client's own thread, which would wait for itself for ever."""
        if threading.current_thread() is self._thread:
            raise Unavailable("a coroutine that `run` runs cannot block this client; await instead")

    @contextmanager
    def _running_loop(self) -> Generator[asyncio.AbstractEventLoop]:
        """Yield the loop of the own thread, which the first call starts, to schedule work in it.

        `close` takes the same lock, so it meets all scheduled work, and none follows it.
        """
        with self._starting:
            if self._is_closed:
                raise Unavailable(CLOSED)
            if self._loop is None:
                self._loop, self._thread = _started_loop()
            yield self._loop

    async def _with_client(self, work: Callable[[Client], Awaitable[Result]]) -> Result:
        if self._is_closed:
            raise Unavailable(CLOSED)
        if self._connecting is None or (
            self._connecting.done()
            and (self._connecting.cancelled() or self._connecting.exception() is not None)
        ):
            self._connecting = asyncio.create_task(self._connect())
        # Shielded: the others wait for the same connection.
        return await work(await asyncio.shield(self._connecting))

    async def _connect(self) -> Client:
        self._client = await self._stack.enter_async_context(connect(self._url, **self._options))
        return self._client

    async def _disconnect(self) -> None:
        # First, because a connection that still opens would enter the stack after it is closed.
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._stack.aclose()
        # Nobody waits for a loop that has stopped.
        for task in self._working:
            task.cancel()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            _, pending = await asyncio.wait(others, timeout=END_SECONDS)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)


def _started_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Return a loop that runs in a thread of its own.

    Raises:
        Unavailable: the system, or a program that ends, allows no file or thread more.
    """
    loop: asyncio.AbstractEventLoop | None = None
    try:
        loop = asyncio.new_event_loop()
        # A daemon: a program that forgets to close its client can end.
        thread = threading.Thread(target=loop.run_forever, name="turnfold-client", daemon=True)
        thread.start()
    except (OSError, RuntimeError) as error:
        if loop is not None:
            loop.close()
        raise Unavailable(f"the client cannot start its thread: {error}") from error
    return loop, thread


def _hand_over(
    task: asyncio.Task[Result],
    result: asyncio.Future[Result],
    on_lost: Callable[[Result], object],
) -> None:
    """Give the outcome of a task that has ended to the caller, who may wait no longer."""
    if result.done():
        _lose(task, on_lost)
    elif task.cancelled():
        # `_disconnect` has canceled it. For the caller that is not a cancellation.
        result.set_exception(Unavailable(CLOSED))
    elif (error := task.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())


def _lose(task: asyncio.Task[Result], on_lost: Callable[[Result], object]) -> None:
    # Nobody has to be told of an error.
    if not task.cancelled() and task.exception() is None:
        with contextlib.suppress(RuntimeError):
            task.get_loop().call_soon_threadsafe(on_lost, task.result())


def _begin_all_after_fork() -> None:
    for portal in list(_portals):
        portal.begin_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all_after_fork)


class PortalNotices:
    """An iterator over notices, for `async for` in any loop and `for` in a thread without one."""

    def __init__(self, portal: PortalClient, begin: "Callable[[Client], Notices]") -> None:
        self._portal = portal
        self._begin = begin
        self._notices: Notices | None = None
        self._client: Client | None = None
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    async def __anext__(self) -> "StoredNotice":
        """Return the next notice; wait until there is one.

        Raises:
            Unavailable: no server answers at first, or the client is closed.
        """
        return await self._portal.use(self._next, on_lost=self._put_back)

    def __next__(self) -> "StoredNotice":
        """Return the next notice; block this thread until there is one."""
        return self._portal.run(self.__anext__())

    async def _next(self, client: Client) -> "StoredNotice":
        # A forked process has another client.
        if self._notices is None or self._client is not client:
            self._notices, self._client = self._begin(client), client
        # After they are set: a `close` in another thread finds them, or is found here.
        if self._is_closed:
            await self._notices.aclose()
            raise Unavailable("the iterator is closed")
        return await anext(self._notices)

    def _put_back(self, notice: "StoredNotice") -> None:
        if self._notices is not None:
            self._notices.put_back(notice)

    async def aclose(self) -> None:
        """End the subscriptions; a waiting call raises `Unavailable`."""
        self._is_closed = True
        notices = self._notices
        if notices is not None:
            with contextlib.suppress(Unavailable):
                await self._portal.use(lambda _: notices.aclose())

    def close(self) -> None:
        """End the subscriptions, from a thread without a loop."""
        self._is_closed = True
        if self._notices is not None:
            with contextlib.suppress(Unavailable):
                self._portal.run(self.aclose())
