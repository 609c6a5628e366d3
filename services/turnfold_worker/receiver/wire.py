"""The messages between a worker and its receiver; both processes run this program."""

from collections.abc import Sequence
from itertools import chain, islice
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


class _Columns(NamedTuple):
    """A `BatchReady` by column. To pickle its named tuples one by one takes three times as long.

    `events` has the number of messages of each event; `messages` are those of all events.
    """

    number: int
    events: list[Sequence[Any]]
    messages: list[Sequence[Any]]
    dead: list[DeadLetter]
    payloads: dict[int, bytes]
    replays: dict[int, int]
    held: int


_KEY: Final = DecodedEvent._fields.index("key")
_MESSAGES: Final = DecodedEvent._fields.index("messages")


def encode(message: ReceiverMessage) -> bytes:
    """Return a message as the body of a frame."""
    # Without events there are no rows that could be turned into columns.
    if isinstance(message, BatchReady) and message.batch.events:
        return encode_message(_to_columns(message))
    return encode_message(message)


def decode(body: bytes) -> ReceiverMessage:
    """Return the message that `encode` encoded."""
    message: ReceiverMessage | _Columns = decode_message(body)
    return _from_columns(message) if isinstance(message, _Columns) else message


def _to_columns(ready: BatchReady) -> _Columns:
    number, (events, dead, payloads, replays), held = ready
    columns: list[Sequence[Any]] = list(zip(*events, strict=True))
    messages: list[Sequence[Any]] = list(zip(*chain.from_iterable(columns[_MESSAGES]), strict=True))
    columns[_KEY] = list(map(tuple, columns[_KEY]))
    columns[_MESSAGES] = list(map(len, columns[_MESSAGES]))
    return _Columns(number, columns, messages, dead, payloads, replays, held)


def _from_columns(columns: _Columns) -> BatchReady:
    number, of_events, of_messages, dead, payloads, replays, held = columns
    # One iterator for all events: each takes its messages where the one before ended.
    messages = map(DecodedMessage._make, zip(*of_messages, strict=True))
    of_events[_KEY] = list(map(SessionKey._make, of_events[_KEY]))
    of_events[_MESSAGES] = [tuple(islice(messages, size)) for size in of_events[_MESSAGES]]
    events = list(map(DecodedEvent._make, zip(*of_events, strict=True)))
    return BatchReady(number, DecodedBatch(events, dead, payloads, replays), held)
