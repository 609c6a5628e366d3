"""Read dead letters in full, and the outcome of those that were published again."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, select, update

from turnfold.ports.admin import StoredDeadLetter
from turnfold.ports.query import (
    DeadLetterRow,
)
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.schema import dead_letters, ingested_ranges
from turnfold.store.query.history import DEAD

_LETTERS = select(*DEAD, dead_letters.c.payload).order_by(dead_letters.c.dead_letter_id)


class SqlDeadLetterStore(SqlStore):
    """Dead letters in SQL; see `turnfold.ports.admin.DeadLetterStore`."""

    async def letters(self, ids: Sequence[int]) -> Sequence[StoredDeadLetter]:
        """Return the letters with these ids, oldest first."""
        return await self._letters(_LETTERS.where(dead_letters.c.dead_letter_id.in_(ids)))

    async def unreplayed(
        self, *, reason: str | None, after: int, until: int, limit: int
    ) -> Sequence[StoredDeadLetter]:
        """Return letters that were not replayed yet, oldest first."""
        between = (dead_letters.c.dead_letter_id > after) & (dead_letters.c.dead_letter_id <= until)
        chosen = _LETTERS.where(between, dead_letters.c.replayed_at_ms.is_(None)).limit(limit)
        return await self._letters(
            chosen if reason is None else chosen.where(dead_letters.c.reason == reason)
        )

    async def newest_id(self) -> int:
        """Return the greatest id."""
        newest = select(func.coalesce(func.max(dead_letters.c.dead_letter_id), 0))
        return await self._database.snapshot(
            lambda connection: int(connection.execute(newest).scalar_one())
        )

    async def replayed(self, dead_letter_id: int, *, now_ms: int) -> None:
        """Record that a letter was published again."""
        noted = (
            update(dead_letters)
            .where(dead_letters.c.dead_letter_id == dead_letter_id)
            .values(replayed_at_ms=now_ms)
        )
        await self._database.write(lambda connection: connection.execute(noted))

    async def replay_outcomes(self, sequences: Sequence[int]) -> Mapping[int, DeadLetterRow | None]:
        """Return the ingested ones of these sequences, each with its new dead letter."""

        def read(connection: Connection) -> dict[int, DeadLetterRow | None]:
            outcomes: dict[int, DeadLetterRow | None] = {}
            for seq in sequences:
                holds = select(ingested_ranges.c.first_seq).where(
                    ingested_ranges.c.first_seq <= seq, ingested_ranges.c.last_seq >= seq
                )
                # Ingested: stored, or refused again. In the second case a dead letter of that
                # sequence exists.
                if connection.execute(holds).first() is not None:
                    outcomes[seq] = None
            for row in connection.execute(
                select(*DEAD).where(dead_letters.c.stream_seq.in_(list(outcomes)))
            ):
                outcomes[row.stream_seq] = DeadLetterRow(*row)
            return outcomes

        return await self._database.snapshot(read)

    async def _letters(self, chosen: Select[*tuple[Any, ...]]) -> Sequence[StoredDeadLetter]:
        def read(connection: Connection) -> list[StoredDeadLetter]:
            return [
                StoredDeadLetter(DeadLetterRow(*row[:-1]), bytes(row[-1]))
                for row in connection.execute(chosen)
            ]

        return await self._database.snapshot(read)
