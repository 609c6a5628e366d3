"""What a worker and its receiver say to each other."""

import asyncio
from typing import Any, Final, NamedTuple

from turnfold.messages import SessionKey
from turnfold.operations.ingest.decode import DecodedBatch
from turnfold.ports.ingest import DeadLetter, DecodedEvent, DecodedMessage
from turnfold.process import child_process as beside

BATCH: Final = 2_000
"""Events of a batch at most: what a transaction costs for each session and statement is shared by more of them."""
BEAT_SECONDS: Final = 0.5
"""How often each says that it is there."""
SILENT_BEATS: Final = 10
"""So many beats in a row without a word, and the other one is given up. Beats are counted and no clock is read: nobody
is given up because the machine slept."""


class StartReceiving(NamedTuple):
    """To the receiver: older events are stored, receive new ones."""


class BatchReady(NamedTuple):
    """From the receiver: a batch to be stored, and how many events it holds in all."""

    number: int
    batch: DecodedBatch
    held: int


class Ack(NamedTuple):
    """To the receiver: the events of this parcel are committed, and may be acknowledged."""

    number: int


class Nack(NamedTuple):
    """To the receiver: nothing of this parcel was stored; it is to come again after so long."""

    number: int
    delay_seconds: float


class Heartbeat(NamedTuple):
    """Each to the other: it is there. The receiver tells what it holds, and how its consumer is (see `turnfold.bus.pull.Pull`)."""

    held: int = 0
    activity: int | None = None
    idle_seconds: float = 0.0


class Stop(NamedTuple):
    """To the receiver: take nothing more, give back what waits, and say `Stopped`."""


class Stopped(NamedTuple):
    """From the receiver: no parcel comes after this."""


class Failed(NamedTuple):
    """From the receiver: it cannot receive, and starting again would not help; the text says what would."""

    told: str


ReceiverMessage = StartReceiving | BatchReady | Ack | Nack | Heartbeat | Stop | Stopped | Failed


class _Packed(NamedTuple):
    """A parcel whose arrivals are plain tuples: named ones take longer to pickle than all else together."""

    number: int
    arrivals: list[tuple[Any, ...]]
    dead: list[DeadLetter]
    payloads: dict[int, bytes]
    held: int


def _packed(parcel: BatchReady) -> _Packed:
    number, (arrivals, dead, payloads), held = parcel
    plain = [
        (
            seq,
            at_ms,
            subject,
            tuple(key),
            *rest,
            [tuple(message) for message in messages],
            report,
            trace,
        )
        for seq, at_ms, subject, key, *rest, messages, report, trace in arrivals
    ]
    return _Packed(number, plain, dead, payloads, held)


def _unpacked(packed: _Packed) -> BatchReady:
    number, plain, dead, payloads, held = packed
    arrivals = [
        DecodedEvent._make(
            (
                seq,
                at_ms,
                subject,
                SessionKey._make(key),
                *rest,
                tuple(map(DecodedMessage._make, messages)),
                report,
                trace,
            )
        )
        for seq, at_ms, subject, key, *rest, messages, report, trace in plain
    ]
    return BatchReady(number, DecodedBatch(arrivals, dead, payloads), held)


def framed(word: ReceiverMessage) -> bytes:
    """A word as it travels."""
    return beside.framed(_packed(word) if isinstance(word, BatchReady) else word)


async def read_word(reader: asyncio.StreamReader) -> ReceiverMessage | None:
    """The next word; None when the other one is gone."""
    word: ReceiverMessage | _Packed | None = await beside.read_word(reader)
    return _unpacked(word) if isinstance(word, _Packed) else word
