"""Dead letters in memory."""

from collections.abc import Mapping, Sequence

from turnfold.ports.admin import StoredDeadLetter
from turnfold.ports.query import DeadLetterRow
from turnfold.testing.kept import Memory


class MemoryLetters:
    """See `turnfold.ports.admin.DeadLetterStore`."""

    _memory: Memory

    async def letters(self, ids: Sequence[int]) -> Sequence[StoredDeadLetter]:
        """The letters of these ids, oldest first."""
        return [self._letter(row) for row in self._memory.dead_letters if row.dead_letter_id in ids]

    async def unreplayed(
        self, *, reason: str | None, after: int, until: int, limit: int
    ) -> Sequence[StoredDeadLetter]:
        """Letters that were not replayed yet, oldest first."""
        waiting = [
            row
            for row in self._memory.dead_letters
            if after < row.dead_letter_id <= until and row.replayed_at_ms is None
        ]
        return [self._letter(row) for row in waiting if reason in (None, row.reason)][:limit]

    async def newest_id(self) -> int:
        """The greatest id so far."""
        return max((row.dead_letter_id for row in self._memory.dead_letters), default=0)

    async def replayed(self, dead_letter_id: int, *, now_ms: int) -> None:
        """Note that a letter was published again."""
        rows = self._memory.dead_letters
        rows[:] = [
            row._replace(replayed_at_ms=now_ms) if row.dead_letter_id == dead_letter_id else row
            for row in rows
        ]

    async def replay_outcomes(self, sequences: Sequence[int]) -> Mapping[int, DeadLetterRow | None]:
        """Of these sequences those that are ingested, each with the dead letter that it became."""
        letters = {row.stream_seq: row for row in self._memory.dead_letters}
        return {
            seq: letters.get(seq)
            for seq in sequences
            if any(first <= seq <= last for first, last in self._memory.ingested)
        }

    def _letter(self, row: DeadLetterRow) -> StoredDeadLetter:
        return StoredDeadLetter(row, self._memory.payloads[row.stream_seq])
