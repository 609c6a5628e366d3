"""Server-sent events: the data of each event, from chunks of bytes."""

from collections.abc import Iterator
from typing import Final

_BEFORE_JSON: Final = b"\xef\xbb\xbf \t\r\n"


class SseDecoder:
    """Collects the lines of a stream, however its chunks divide them."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of the events that this chunk completes."""
        self._rest += chunk
        # To split a long line again with each of its chunks would take quadratic time.
        if b"\n" not in chunk:
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for raw in lines:
            line = raw.removesuffix(b"\r")
            # Where events have types, their data has them as well, so no other line is needed.
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                # An event without data is none: some providers keep connections alive with it.
                if data := b"\n".join(self._data):
                    yield data
                self._data.clear()


def is_json(beginning: bytes) -> bool | None:
    """Return whether an answer is JSON and no stream; None as long as it has not begun.

    Not by its content type, which some providers leave out and no client reads.
    """
    text = beginning.lstrip(_BEFORE_JSON)
    return text.startswith(b"{") if text else None
