"""Removal of erased events from the stream, so that none of its files holds their text.

NATS stores messages in blocks, one file each. To overwrite a message, it writes the whole block
anew (since 2.12.3): some 10 ms, during which nobody can publish. To forget a message takes 0.1 ms,
but its text stays in the file until no message of the block is left; then NATS deletes the file.
"""

import asyncio
from base64 import b64decode
from collections.abc import Mapping, Sequence

from nats.aio.client import Client

from turnfold.bus.asking import ask_jetstream, asking, find_event, time_ms
from turnfold.bus.streams import first_sequence
from turnfold.contracts.subjects import EVENTS_STREAM

BLOCK_BYTES = 8 * 1024 * 1024
"""The largest block: NATS begins another one before this one would become larger."""
OVERWRITTEN_AT_ONCE = 50
"""The events that one call overwrites, in half a second or more."""
FORGOTTEN_AT_ONCE = 100
"""The requests on their way, which the server answers within 20 ms."""
LOOKED_AT = 4_000
"""The events by which one call looks further along a row; to read them takes a second or two."""
ANOTHER = -1
"""The size of an event that is newer than the erased one: the stream is an older copy."""


class EventRemoval:
    """Removes erased events by their sequences, from the lowest to the highest.

    An event among others that are erased, which fill more than a block on either side, is
    forgotten: nothing else is in its block. The beginning of the stream counts as a block. All
    others are overwritten, one after the other.
    Several at once are not faster, and every publisher would wait for several.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        # Removed without a gap: the sequence after them, and their bytes.
        self._next = 0
        self._bytes = 0
        # The bytes of events of the row from there on, each read once.
        self._sizes: dict[int, int] = {}
        # The connection over which they were read: another one may lead to an older copy.
        self._connection: int | None = None

    @property
    def wanted(self) -> int:
        """How many of the lowest sequences `remove` needs to see."""
        is_inside = self._bytes >= BLOCK_BYTES
        return len(self._sizes) + LOOKED_AT if is_inside else OVERWRITTEN_AT_ONCE

    async def remove(self, erased: Mapping[int, int | None]) -> Sequence[int]:
        """Remove the first of these erased events, in rising order; return their sequences.

        Each comes with the latest time of its publication, if known: a newer event is not removed.
        None is removed while `remove` needs to see more of the row.

        Raises:
            Unavailable: the server does not answer. Events that are gone may be removed again.
        """
        sequences, wanted = list(erased), self.wanted
        connection = self._client.stats["reconnects"]
        if sequences[0] != self._next or connection != self._connection:
            self._connection, self._next = connection, sequences[0]
            self._sizes.clear()
            with asking():
                is_first = await first_sequence(self._client) >= sequences[0]
            self._bytes = BLOCK_BYTES if is_first else 0
        if self._bytes >= BLOCK_BYTES:
            joined = [seq for at, seq in enumerate(sequences) if seq == sequences[0] + at]
            may_go_on = len(joined) == wanted
            inner = await self._inner(joined, erased)
            if inner or may_go_on:
                await self._forget(inner)
                return inner
        return await self._overwrite(sequences[:OVERWRITTEN_AT_ONCE], erased)

    async def _inner(self, row: Sequence[int], erased: Mapping[int, int | None]) -> Sequence[int]:
        """Return the sequences of a row, except the last ones, which fill a block.

        None before the last ones is newer than they are.
        """
        inner, filled = list(row), 0
        while inner and filled < BLOCK_BYTES:
            seq = inner.pop()
            if seq not in self._sizes:
                self._sizes[seq] = await self._size(seq, erased[seq]) or 0
            size = self._sizes[seq]
            filled = 0 if size == ANOTHER else filled + size
        return inner

    async def _forget(self, sequences: Sequence[int]) -> None:
        for start in range(0, len(sequences), FORGOTTEN_AT_ONCE):
            portion = sequences[start : start + FORGOTTEN_AT_ONCE]
            await asyncio.gather(*(self._delete(seq, no_erase=True) for seq in portion))
        for seq in sequences:
            self._sizes.pop(seq, None)
            self._next = seq + 1

    async def _overwrite(
        self, sequences: Sequence[int], erased: Mapping[int, int | None]
    ) -> Sequence[int]:
        sizes = {
            seq: self._sizes.pop(seq, None) or await self._size(seq, erased[seq])
            for seq in sequences
        }
        # From the last one on: NATS writes a block anew without what is gone once that is half of
        # it, but not while only its first events go.
        for seq in reversed(sequences):
            if sizes[seq] not in (None, ANOTHER):
                await self._delete(seq, no_erase=False)
        for seq, size in sizes.items():
            # Other events may stand in a gap.
            is_joined = seq == self._next and size != ANOTHER
            self._bytes = (self._bytes if is_joined else 0) + max(size or 0, 0)
            self._next = seq + 1
        return sequences

    async def _size(self, seq: int, until_ms: int | None) -> int | None:
        """Return the bytes of an event, at most what it takes in its block.

        None if it is gone, and `ANOTHER` if it was published after `until_ms`.
        """
        found = await find_event(self._client, seq=seq)
        if found is None:
            return None
        with asking():
            message = found["message"]
            if until_ms is not None and time_ms(message["time"]) > until_ms:
                return ANOTHER
            encoded = message.get("hdrs", ""), message.get("data", "")
            return len(message["subject"]) + sum(len(b64decode(text)) for text in encoded)

    async def _delete(self, seq: int, *, no_erase: bool) -> None:
        name = f"STREAM.MSG.DELETE.{EVENTS_STREAM}"
        await ask_jetstream(self._client, name, seq=seq, no_erase=no_erase)
