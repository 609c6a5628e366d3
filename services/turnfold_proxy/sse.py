"""Server-sent events: the data of each event, from chunks of bytes."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final

_BEFORE_JSON: Final = BOM_UTF8 + b" \t\r\n"
_LINE_END: Final = re.compile(rb"\r\n?|\n")


class SseDecoder:
    """Collects the lines of a stream, however its chunks divide them."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._ends_with_return = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of the events that this chunk completes."""
        if self._ends_with_return:
            # The line that ended with the last chunk does not end a second time.
            chunk = chunk.removeprefix(b"\n")
        self._ends_with_return = chunk.endswith(b"\r")
        self._rest += chunk
        # To split a long line again with each of its chunks would take quadratic time.
        if _LINE_END.search(chunk) is None:
            return
        *lines, rest = _LINE_END.split(bytes(self._rest))
        self._rest = bytearray(rest)
        for raw in lines:
            line = raw.removeprefix(BOM_UTF8)
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
