"""Two ways to read on in the stream of notices, by what the credentials may read."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import MutableMapping, Sequence
from typing import Final

from nats.aio.msg import Msg

from turnfold.client.notice_stream import KeptMessage, NoticeStream, StoredNotice
from turnfold.nats_client.connection import NatsClient

POLL_SECONDS: Final = 5.0
"""The time after which the stream is read without a signal; a signal may be lost."""
_SUBJECTS_KNOWN: Final = 10_000


class NoticeSignals:
    """The subjects on which messages arrived since they were read.

    Such a message is only a signal to read: anyone may have sent it.
    """

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.subjects: dict[str, None] = {}

    async def on_message(self, message: Msg) -> None:
        """Note a signal. A reader that is 10,000 subjects behind loses further ones."""
        if len(self.subjects) < _SUBJECTS_KNOWN:
            self.subjects[message.subject] = None
        self.arrived.set()


class AllNotices:
    """Reads all notices in the order of the stream, each subject from its own position on."""

    wait_seconds = POLL_SECONDS

    def __init__(
        self,
        stream: NoticeStream,
        signals: NoticeSignals,
        subjects: Sequence[str],
        positions: MutableMapping[str, int],
    ) -> None:
        self._stream = stream
        self._signals = signals
        self._subjects = subjects
        self._positions = positions
        self._heads: dict[str, KeptMessage] = {}

    async def read(self, ready: deque[StoredNotice]) -> None:
        """Read the next notice, if there is one."""
        self._signals.subjects.clear()
        await self._read_heads()
        if not self._heads:
            return
        # A notice may have been stored after its subject was read, and before that of another.
        await self._read_heads()
        subject = min(self._heads, key=lambda name: self._heads[name].seq)
        head = self._heads.pop(subject)
        self._positions[subject] = head.seq
        if head.notice is not None:
            ready.append(head.notice)
        else:
            # No notice, though on a subject of one: go on with what follows it.
            self._signals.arrived.set()

    async def _read_heads(self) -> None:
        """Read the next message of each subject that has none yet."""
        for subject in self._subjects:
            if subject in self._heads:
                continue
            if head := await self._stream.following(subject, self._positions[subject]):
                self._heads[subject] = head


class NewestNotices:
    """Reads the newest notice of each subject that has a signal; of `named` ones always.

    `positions` are those of the subjects that were read, and of all sessions together.
    """

    def __init__(
        self,
        stream: NoticeStream,
        bus: NatsClient,
        signals: NoticeSignals,
        *,
        named: Sequence[str],
        positions: OrderedDict[str, int],
    ) -> None:
        self._stream = stream
        self._bus = bus
        self._signals = signals
        self._named = named
        self._seen = positions
        # When each subject is read again: the stream may store a notice after its signal arrived.
        self._again: OrderedDict[str, float] = OrderedDict()
        self._reconnects = bus.stats["reconnects"]

    @property
    def wait_seconds(self) -> float:
        """The time after which the stream is read without a signal."""
        due = min(self._again.values(), default=float("inf"))
        return min(POLL_SECONDS, max(0.0, due - time.monotonic()))

    async def read(self, ready: deque[StoredNotice]) -> None:
        """Read the subjects that have a signal or are due; after a reconnection, all."""
        reconnects = self._bus.stats["reconnects"]
        signaled = self._signals.subjects
        if reconnects != self._reconnects:
            signaled |= dict.fromkeys([subject for subject in self._seen if "*" not in subject])
        signaled |= dict.fromkeys(self._named)
        for subject in list(signaled):
            # Before the read, so that a signal that arrives during it causes another.
            del signaled[subject]
            await self._read_newest(subject, ready)
            self._again[subject] = time.monotonic() + POLL_SECONDS
            self._again.move_to_end(subject)
            if len(self._again) > _SUBJECTS_KNOWN:
                self._again.popitem(last=False)
        # They are in the order in which they fall due.
        while self._again and next(iter(self._again.values())) <= time.monotonic():
            subject, _ = self._again.popitem(last=False)
            await self._read_newest(subject, ready)
        # Only after all reads: if one of them failed, the next attempt reads all subjects again.
        self._reconnects = reconnects
        sort(ready)

    async def _read_newest(self, subject: str, ready: deque[StoredNotice]) -> None:
        try:
            newest = await self._stream.newest(subject)
        except BaseException:
            self._signals.subjects[subject] = None
            raise
        together = self._seen.get(f"{subject.rpartition('.')[0]}.*", 0)
        if newest is None or newest.seq <= self._seen.get(subject, together):
            return
        self._seen[subject] = newest.seq
        self._seen.move_to_end(subject)
        if len(self._seen) > _SUBJECTS_KNOWN:
            self._seen.popitem(last=False)
        if newest.notice is not None:
            ready.append(newest.notice)


def sort(notices: deque[StoredNotice]) -> None:
    """Put notices into the order of the stream, in place."""
    in_order = sorted(notices, key=lambda notice: notice.seq)
    notices.clear()
    notices.extend(in_order)
