"""The messages between a worker and its receiver; both processes run this program."""

from typing import Final, NamedTuple

from turnfold.operations.ingest.decode import DecodedBatch

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
