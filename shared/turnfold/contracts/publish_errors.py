"""Errors with which the stream rejects an event."""

from typing import Final

from turnfold.errors import StreamFull, Unavailable

_STREAM_FULL: Final = frozenset({10_002, 10_023, 10_047, 10_077})
"""JetStream error codes: limits of the account, the server, its disk, and the stream."""

NO_BATCH: Final = frozenset({10_174, 10_177, 10_199, 10_201})
"""JetStream error codes: no batches, invalid batch headers, batch too large, duplicate in batch."""


OTHER_SEQUENCE: Final = frozenset({10_071, 10_164})
"""JetStream error codes: another message has the last sequence of the subject."""


def publish_error(code: int | None, description: str | None) -> Unavailable:
    """Return the publisher's error for an error of JetStream."""
    if code in _STREAM_FULL:
        return StreamFull(
            f"the stream of events is full ({description}) and did not store the event;"
            " follow the advice of `turnfold doctor`, then publish it again"
        )
    return Unavailable(
        f"the stream did not accept the event ({description or code}); publish it again"
    )
