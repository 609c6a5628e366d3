"""Notices of one session, or of all sessions of an agent, as they are stored."""

import asyncio
import contextlib
import weakref
from collections import OrderedDict, deque
from typing import Final, Self

import nats.errors
from nats.aio.subscription import Subscription

from turnfold.client.notice_readers import (
    POLL_SECONDS,
    AllNotices,
    NewestNotices,
    NoticeSignals,
    sort,
)
from turnfold.client.notice_stream import KeptMessage, NoticeStream, StoredNotice
from turnfold.contracts.notices import NOTICE_NAMES
from turnfold.contracts.subjects import token_of
from turnfold.errors import NotAllowed, Unavailable
from turnfold.nats_client.connection import Denied, NatsClient
from turnfold.process.tasks import at_most

_CONNECT_SECONDS: Final = 0.1
_ending: set[asyncio.Task[None]] = set()


class Notices:
    """An async iterator over notices, without end; `Client.notices` returns it.

    It waits while no server answers, and goes on from where it was. If the credentials may read
    only the newest notice of a subject, as those of an agent's key, notices that are followed by
    another of their kind and session before they are read are skipped. Its subscriptions end with
    `aclose`, with the iterator or with the client.
    """

    def __init__(
        self, bus: NatsClient, agent_id: str, session_id: str | None, *, after: int | None
    ) -> None:
        session = "*" if session_id is None else token_of(session_id)
        self._bus = bus
        self._stream = NoticeStream(bus)
        self._subjects = [f"{name}.{token_of(agent_id)}.{session}" for name in NOTICE_NAMES]
        self._named = [] if session_id is None else self._subjects
        # The last position read of each subject. Readers end with their rights, this object stays.
        self._positions = OrderedDict[str, int]()
        if after is not None:
            self._positions.update(dict.fromkeys(self._subjects, after))
        self._signals = NoticeSignals()
        self._subscriptions: list[Subscription] = []
        self._reader: AllNotices | NewestNotices | None = None
        self._ready: deque[StoredNotice] = deque()
        self._reading = asyncio.Lock()
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredNotice:
        """Return the next notice; wait until there is one.

        Raises:
            Unavailable: the client is closed.
            NotAllowed: the credentials may not read notices of this agent.
        """
        # One at a time, or two would read the same notice.
        async with self._reading:
            while not self._ready:
                self._raise_if_closed()
                # Cleared before the reads: a signal that arrives during them causes others.
                self._signals.arrived.clear()
                seconds = await self._read()
                if not self._ready:
                    await at_most(seconds, self._signals.arrived.wait())
            return self._ready.popleft()

    def put_back(self, notice: StoredNotice) -> None:
        """Return a notice again that nobody received."""
        # In place, because a reader may hold it.
        self._ready.append(notice)
        sort(self._ready)
        self._signals.arrived.set()

    async def aclose(self) -> None:
        """End the subscriptions; a waiting `__anext__` raises `Unavailable`."""
        self._is_closed = True
        self._signals.arrived.set()
        await _unsubscribe(self._subscriptions)

    def _raise_if_closed(self) -> None:
        if self._is_closed or self._bus.is_closed:
            raise Unavailable("the client is closed")

    async def _read(self) -> float:
        """Read what is new, and return after how long to read again without a signal."""
        try:
            if self._reader is None:
                self._reader = await self._begin()
            await self._reader.read(self._ready)
        except Denied as error:
            self._reader = None
            await _unsubscribe(self._subscriptions)
            raise NotAllowed("these credentials may not read notices of this agent") from error
        except (nats.errors.Error, OSError):
            self._raise_if_closed()
        return POLL_SECONDS if self._reader is None else self._reader.wait_seconds

    async def _begin(self) -> AllNotices | NewestNotices:
        """Find the positions after which notices are new, and subscribe."""
        while not self._bus.is_connected:
            self._raise_if_closed()
            await asyncio.sleep(_CONNECT_SECONDS)
        try:
            reader = await self._reader_from_here()
        except Denied:
            raise
        except (nats.errors.Error, OSError):
            # By the time that positions can be read, signals tell what is new.
            await self._subscribe()
            raise
        # After the positions: all that is stored beyond them is read, with a signal or without.
        await self._subscribe()
        return reader

    async def _reader_from_here(self) -> AllNotices | NewestNotices:
        try:
            for subject in self._subjects:
                self._begin_after(subject, await self._stream.last(subject))
            return AllNotices(self._stream, self._signals, self._subjects, self._positions)
        except Denied:
            # Fails if the credentials are those of another agent.
            await self._stream.newest(self._subjects[0].replace("*", "any"))
        for subject in self._named:
            self._begin_after(subject, await self._stream.newest(subject))
        return NewestNotices(
            self._stream,
            self._bus,
            self._signals,
            named=self._named,
            positions=self._positions,
        )

    def _begin_after(self, subject: str, newest: KeptMessage | None) -> None:
        """Set the position of a subject, if it has none: its newest message, or before that.

        Before it if a signal has arrived since an earlier attempt failed: then it is new.
        """
        kind, _, _ = subject.rpartition(".")
        is_new = any(signaled.rpartition(".")[0] == kind for signaled in self._signals.subjects)
        self._positions.setdefault(subject, 0 if newest is None else newest.seq - is_new)

    async def _subscribe(self) -> None:
        if not self._subscriptions:
            finalizer = weakref.finalize(
                self, _end_soon, asyncio.get_running_loop(), self._subscriptions
            )
            finalizer.atexit = False
        # Those of an attempt that failed before are used again.
        for subject in self._subjects[len(self._subscriptions) :]:
            if self._is_closed:
                break
            subscription = await self._bus.subscribe(subject, cb=self._signals.on_message)
            self._subscriptions.append(subscription)
        # `aclose` may have run during a `subscribe`, and could not end that subscription.
        if self._is_closed:
            await _unsubscribe(self._subscriptions)
            self._raise_if_closed()


async def _unsubscribe(subscriptions: list[Subscription]) -> None:
    while subscriptions:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscriptions.pop().unsubscribe()


def _end_soon(loop: asyncio.AbstractEventLoop, subscriptions: list[Subscription]) -> None:
    """End the subscriptions of an iterator that is gone, in whatever thread that happened."""

    def end() -> None:
        task = loop.create_task(_unsubscribe(subscriptions))
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    if subscriptions:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)
