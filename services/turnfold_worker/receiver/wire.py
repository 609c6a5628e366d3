"""The messages between a worker and its receiver, and their encoding."""

from typing import Any, Final, NamedTuple

from turnfold.messages import SessionKey
from turnfold.operations.ingest.decode import DecodedBatch
from turnfold.ports.ingest import DeadLetter, DecodedEvent, DecodedMessage
from turnfold.process.child_process import decode_message, encode_message

BATCH: Final = 2_000
"""The maximum number of events in a batch. Large batches share the cost of a transaction."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""The maximum size of their payloads. Both processes need several times as much to store them."""


class StartReceiving(NamedTuple):
    """To the receiver: older events are stored, so receive new ones."""


class BatchReady(NamedTuple):
    """From the receiver: a batch to store, and the number of events that the receiver holds."""

    number: int
    batch: DecodedBatch
    held: int


class Ack(NamedTuple):
    """To the receiver: a batch is committed, so acknowledge its events."""

    number: int


class Nack(NamedTuple):
    """To the receiver: nothing of a batch was stored, so have it redelivered after a delay."""

    number: int
    delay_seconds: float


class Heartbeat(NamedTuple):
    """In both directions: the process runs.

    The receiver adds the number of events it holds, and the state of its pull consumer (see
    `turnfold.bus.pull.PullConsumer`).
    """

    held: int = 0
    activity: int | None = None
    idle_seconds: float = 0.0


class Stop(NamedTuple):
    """To the receiver: take no more events, return those that wait, and reply `Stopped`."""


class Stopped(NamedTuple):
    """From the receiver: no further batch follows."""


class Failed(NamedTuple):
    """From the receiver: it cannot receive, and a restart would not help."""

    reason: str


ReceiverMessage = StartReceiving | BatchReady | Ack | Nack | Heartbeat | Stop | Stopped | Failed


class _PackedBatch(NamedTuple):
    """A batch whose events are plain tuples. Most of the time would go into pickling named ones."""

    number: int
    arrivals: list[tuple[Any, ...]]
    dead: list[DeadLetter]
    payloads: dict[int, bytes]
    held: int


def _packed(message: BatchReady) -> _PackedBatch:
    number, (arrivals, dead, payloads), held = message
    plain = [
        (
            seq,
            at_ms,
            subject,
            tuple(key),
            *rest,
            [tuple(chat_message) for chat_message in messages],
            report,
            trace,
            reported,
            retraction,
        )
        for (
            seq,
            at_ms,
            subject,
            key,
            *rest,
            messages,
            report,
            trace,
            reported,
            retraction,
        ) in arrivals
    ]
    return _PackedBatch(number, plain, dead, payloads, held)


def _unpacked(packed: _PackedBatch) -> BatchReady:
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
                reported,
                retraction,
            )
        )
        for (
            seq,
            at_ms,
            subject,
            key,
            *rest,
            messages,
            report,
            trace,
            reported,
            retraction,
        ) in plain
    ]
    return BatchReady(number, DecodedBatch(arrivals, dead, payloads), held)


def encode(message: ReceiverMessage) -> bytes:
    """Return the body of the frame of a message."""
    return encode_message(_packed(message) if isinstance(message, BatchReady) else message)


def decode(body: bytes) -> ReceiverMessage:
    """Return the message of a frame."""
    message: ReceiverMessage | _PackedBatch = decode_message(body)
    return _unpacked(message) if isinstance(message, _PackedBatch) else message
