"""Notices of one session, or of all sessions of an agent, read from the stream.

A message on the subject of a notice is only a signal to read: anyone may have sent it.
"""

import asyncio
import contextlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import ValidationError

from turnfold.contracts.notice_models import (
    NOTICE_MODELS,
    CompactionFailed,
    ContextCompressed,
    SummaryUpdated,
)
from turnfold.contracts.notices import NOTICE_NAMES, notice_of
from turnfold.contracts.subjects import NOTICES_STREAM, token_of
from turnfold.errors import NotAllowed, Unavailable
from turnfold.nats_client.connection import Denied, NatsClient
from turnfold.process.tasks import at_most

POLL_SECONDS: Final = 5.0
"""The time after which the stream is read without a signal; a signal may be lost."""
READ_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 0.1
_SUBJECTS_KNOWN: Final = 10_000
_NOW: Final = 0.0
_LAST: Final = float("inf")
_GET: Final = f"$JS.API.DIRECT.GET.{NOTICES_STREAM}"
_NONE_STATUS: Final = ("404", "408")

NoticeContent = ContextCompressed | SummaryUpdated | CompactionFailed


@dataclass(frozen=True, slots=True)
class StoredNotice:
    """A notice that the stream has.

    `seq` is its position in the stream of notices. It begins at 1 and grows.
    """

    seq: int
    name: str
    content: NoticeContent


class _Kept(NamedTuple):
    """A message of the stream: its position, its subject, and the notice if it is one."""

    seq: int
    subject: str
    notice: StoredNotice | None


class Notices:
    """An async iterator over notices, without end; `Client.notices` returns it.

    It waits while no server answers, and goes on from where it was. If the credentials may read
    only the newest notice of a subject, as those of an agent's key, notices that are followed by
    another of their kind and session before they are read are skipped.
    """

    def __init__(
        self, bus: NatsClient, agent_id: str, session_id: str | None, *, after: int | None
    ) -> None:
        session = "*" if session_id is None else token_of(session_id)
        self._bus = bus
        self._filters = [f"{name}.{token_of(agent_id)}.{session}" for name in NOTICE_NAMES]
        self._after = after
        self._ready: deque[StoredNotice] = deque()
        self._signal = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._has_begun = False
        self._is_newest_only = False
        self._heads: dict[str, _Kept] = {}
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._named = () if session_id is None else tuple(self._filters)
        # When each subject with a signal is read: at once, and again after a while, because the
        # stream may store a notice after its signal has arrived.
        self._signaled: dict[str, float] = dict.fromkeys(self._named, _NOW)
        self._reconnects = 0
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredNotice:
        """Return the next notice; wait until there is one.

        Raises:
            Unavailable: the client is closed.
            NotAllowed: the credentials may not read notices of this agent.
        """
        while not self._ready:
            self._raise_if_closed()
            try:
                if not self._has_begun:
                    await self._begin()
                # Cleared before the read: a signal that arrives during the read causes another one.
                self._signal.clear()
                await self._read()
            except Denied as error:
                self._has_begun = False
                await self._unsubscribe()
                raise NotAllowed("these credentials may not read notices of this agent") from error
            except (nats.errors.Error, OSError):
                self._raise_if_closed()
            if not self._ready:
                await at_most(POLL_SECONDS, self._signal.wait())
        return self._ready.popleft()

    async def aclose(self) -> None:
        """End the subscriptions; a waiting `__anext__` raises `Unavailable`."""
        self._is_closed = True
        self._signal.set()
        await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        while self._subscriptions:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscriptions.pop().unsubscribe()

    def _raise_if_closed(self) -> None:
        if self._is_closed or self._bus.is_closed:
            raise Unavailable("the client is closed")

    async def _begin(self) -> None:
        """Subscribe, and find the position after which notices are new."""
        while not self._bus.is_connected:
            self._raise_if_closed()
            await asyncio.sleep(_CONNECT_SECONDS)
        self._reconnects = self._bus.stats["reconnects"]
        # Those of an attempt that failed before are used again.
        for subject in self._filters[len(self._subscriptions) :]:
            self._raise_if_closed()
            subscription = await self._bus.subscribe(subject, cb=self._on_signal)
            self._subscriptions.append(subscription)
        # `aclose` may have run during the last `subscribe`, and could not end its subscription.
        if self._is_closed:
            await self._unsubscribe()
            self._raise_if_closed()
        # After the subscriptions, so that each notice beyond this position causes a signal.
        try:
            newest = [await self._kept({"last_by_subj": subject}) for subject in self._filters]
        except Denied:
            self._is_newest_only = True
            # Fails if the credentials are those of another agent.
            await self._newest(self._filters[0].replace("*", "any"))
            newest = [await self._newest(subject) for subject in self._named]
        if self._after is None:
            found = [kept for kept in newest if kept is not None]
            self._after = max((kept.seq for kept in found), default=0)
        self._has_begun = True

    async def _on_signal(self, message: Msg) -> None:
        # Also before it is known whether only the newest notices can be read.
        if (self._is_newest_only or not self._has_begun) and len(self._signaled) < _SUBJECTS_KNOWN:
            self._signaled[message.subject] = _NOW
        self._signal.set()

    async def _read(self) -> None:
        """Read what is new."""
        if self._is_newest_only:
            await self._read_newest()
            return
        await self._read_heads()
        if self._heads:
            # A notice may have been stored after its kind was read, and before that of another.
            await self._read_heads()
            subject = min(self._heads, key=lambda name: self._heads[name].seq)
            self._take(self._heads.pop(subject))

    async def _read_heads(self) -> None:
        """Read the next message of each kind that has none yet."""
        for subject in self._filters:
            if subject not in self._heads:
                request = {"seq": (self._after or 0) + 1, "next_by_subj": subject}
                if kept := await self._kept(request):
                    self._heads[subject] = kept

    async def _read_newest(self) -> None:
        """Read the newest message of each subject with a signal; after a reconnection, of all."""
        reconnects = self._bus.stats["reconnects"]
        if reconnects != self._reconnects:
            self._signaled |= dict.fromkeys([*self._seen, *self._named], _NOW)
        # A copy, because signals that arrive during the reads change it.
        for subject in list(self._signaled):
            due, now = self._signaled[subject], time.monotonic()
            if due > now:
                continue
            # Before the read, so that a signal that arrives during it causes others.
            self._signaled[subject] = now + POLL_SECONDS if due == _NOW else _LAST
            try:
                kept = await self._newest(subject)
            except BaseException:
                self._signaled[subject] = _NOW
                raise
            if self._signaled[subject] == _LAST:
                del self._signaled[subject]
            if kept is None or kept.seq <= self._seen.get(subject, self._after or 0):
                continue
            self._seen[subject] = kept.seq
            self._seen.move_to_end(subject)
            if len(self._seen) > _SUBJECTS_KNOWN:
                self._seen.popitem(last=False)
            if kept.notice is not None:
                self._ready.append(kept.notice)
        # Only after all reads: if one of them failed, the next attempt reads all subjects again.
        self._reconnects = reconnects
        self._ready = deque(sorted(self._ready, key=lambda notice: notice.seq))

    def _take(self, kept: _Kept) -> None:
        self._after = kept.seq
        if kept.notice is not None:
            self._ready.append(kept.notice)
        else:
            # No notice, though on a subject of one: go on with what follows it.
            self._signal.set()

    async def _newest(self, subject: str) -> _Kept | None:
        return await self._get(f"{_GET}.{subject}", b"")

    async def _kept(self, request: Mapping[str, Any]) -> _Kept | None:
        return await self._get(_GET, json.dumps(request).encode())

    async def _get(self, subject: str, payload: bytes) -> _Kept | None:
        """Return a message of the stream; None if there is none."""
        answers: list[_Kept | None] = await self._bus.reply(
            subject, payload, seconds=READ_SECONDS, read=_answer
        )
        return answers[0]


def _answer(message: Msg) -> list[_Kept | None] | None:
    """Read the answer of the stream; None for anything else that came in its place."""
    headers = message.headers or {}
    if headers.get("Status") in _NONE_STATUS:
        return [None]
    subject, seq = headers.get("Nats-Subject"), headers.get("Nats-Sequence", "")
    if headers.get("Nats-Stream") != NOTICES_STREAM or not subject or not seq.isdecimal():
        return None
    return [_Kept(int(seq), subject, _notice(int(seq), subject, message.data))]


def _notice(seq: int, subject: str, payload: bytes) -> StoredNotice | None:
    """Return the notice of a message; None if its ids differ from its subject, or it is none."""
    received = notice_of(NOTICES_STREAM, subject, payload)
    if received is None:
        return None
    try:
        content = NOTICE_MODELS[received.name].model_validate(received.fields)
    except ValidationError:
        return None
    assert isinstance(content, NoticeContent)
    return StoredNotice(seq, received.name, content)
