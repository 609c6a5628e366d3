"""What the stream says when it does not take an event."""

from typing import Final

from turnfold.errors import StreamFull, Unavailable

_NO_ROOM: Final = frozenset({10_002, 10_023, 10_047, 10_077})
"""JetStream: the limits of an account, of the server, of its disk, and of the stream."""

NO_BATCH: Final = frozenset({10_174, 10_177, 10_199, 10_201})
"""JetStream: it takes no batches, none with these headers, none of this size, and none with a message that it has already."""


def publish_error(code: int | None, description: str | None) -> Unavailable:
    """The error that a publisher gets."""
    if code in _NO_ROOM:
        return StreamFull(
            f"the stream of events is full ({description}), and the event was not stored: publish it again when there is room; "
            "`turnfold doctor` says how to make some"
        )
    return Unavailable(
        f"the stream did not take the event ({description or code}); publish it again"
    )
