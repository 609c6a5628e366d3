"""Move messages of a locked session to the retracted ones, and back, with all counters.

The search index, the counts of compactions and the session row follow. Pairs do not: the caller
decides them again for the call ids that `RetractedRows` collects.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    delete,
    insert,
    literal,
    null,
    select,
    union_all,
    update,
)

from turnfold.core.eviction.triggers import load_of
from turnfold.messages import MESSAGES_PER_EVENT, Element, Message, position_of
from turnfold.ports.query import END_POSITION
from turnfold.store.database.message_rows import EVICTABLE, evictable_of
from turnfold.store.database.schema import (
    compactions,
    messages,
    retracted_messages,
    tool_calls,
)
from turnfold.store.database.schema.definitions import Big
from turnfold.store.database.session_rows import SessionRow
from turnfold.store.database.statements import PAIRS, PreparedPairs, bulk_update
from turnfold.store.ingest.batch.counters import note_unindexed
from turnfold.store.ingest.pairing import retracted_at_ms
from turnfold.store.ingest.tombstones import in_portions
from turnfold.store.ingest.word_index.removal import delete_indexed
from turnfold.store.ingest.word_index.search_index import delete_queued

IN_RESPONSES = [int(Element.ITEM), int(Element.JOINED)]
_COLUMNS = [column.name for column in messages.c]
_LESSEN = bulk_update(
    compactions,
    where=("compaction_id",),
    values=("messages_evicted", "tokens_evicted", "digest", "digest_tokens"),
)
_COUNTED = PreparedPairs(
    select(
        compactions.c.compaction_id, compactions.c.messages_evicted, compactions.c.tokens_evicted
    ).where(compactions.c.sid == PAIRS.c.a, compactions.c.compaction_id == PAIRS.c.b),
    (compactions.c.sid.type, compactions.c.compaction_id.type),
)


class RetractedRows:
    """The retracted messages of one session within a transaction.

    Mutable: `messages` counts those that were taken, `compaction_ids` are the evictions that lost
    some, and `call_ids` those whose pairs must be decided again. `first` is the first position that
    changed.
    """

    def __init__(self, connection: Connection, session: SessionRow) -> None:
        self._connection = connection
        self._session = session
        self.messages = 0
        self.compaction_ids: set[int] = set()
        self.call_ids: set[str] = set()
        self.first = END_POSITION

    def take(self, positions: Sequence[int], seq: int, *, is_named: bool) -> None:
        """Retract messages by the retraction at a sequence; unless named, they follow a call."""
        session = self._session
        marks: dict[str, ColumnElement[Any]] = {
            "retracted_seq": literal(seq, Big),
            "retracted_at_ms": retracted_at_ms(literal(session.sid), literal(seq)),
            "is_named": literal(is_named),
            "is_paired": literal(not is_named),
            "versions": literal(session.versions),
            "named_seq": literal(seq, Big) if is_named else null(),
        }
        for portion in in_portions(sorted(positions)):
            self._count_taken(self._rows(messages, portion))
            # Splitting 100,000 long texts into words takes a minute, and SQLite has one writer. A
            # batch may have thousands of short retractions.
            delete_indexed(self._connection, session.sid, portion, is_later=True)
            self._shift(messages, retracted_messages, portion, marks)

    def name(self, positions: Sequence[int], seq: int) -> None:
        """Record that an earlier retraction names these retracted messages than was known."""
        table, session = retracted_messages, self._session
        at_ms = retracted_at_ms(literal(session.sid), literal(seq))
        for portion in in_portions(sorted(positions)):
            self._rows(table, portion)
            are_chosen = self._is_in(table, portion)
            named = update(table).where(are_chosen).values(named_seq=seq, is_named=True)
            earlier = (
                update(table)
                .where(are_chosen, table.c.retracted_seq > seq)
                .values(retracted_seq=seq, retracted_at_ms=at_ms)
            )
            self._connection.execute(named)
            self._connection.execute(earlier)

    def bring_back(self, positions: Iterable[int]) -> None:
        """Make retracted messages live again, because they arrived in another order."""
        for portion in in_portions(sorted(positions)):
            back = self._rows(retracted_messages, portion)
            load = load_of([message for message, _ in back])
            tokens = sum([message.tokens for message, _ in back])
            session = self._session
            session.messages_total += len(back)
            session.tokens_total += tokens
            # They are not new: a restoration holds for as many new tokens as before.
            session.held_to_tokens += tokens if session.held_to_tokens else 0
            session.live_messages += load.messages
            session.live_tokens += load.tokens
            session.rounds += load.rounds
            session.revision += 1
            # Live, even if it was evicted before: its eviction does not count it any more.
            self._shift(retracted_messages, messages, portion, {"compaction_id": null()})
            delete_queued(self._connection, portion)
            if back:
                note_unindexed(session, portion[0])

    def _rows(self, table: Table, positions: Sequence[int]) -> list[tuple[Message, int | None]]:
        """Return messages, each with the eviction that it left with, and collect their call ids."""
        self.first = min([self.first, *positions])
        columns = [table.c[column.name] for column in EVICTABLE]
        rows = self._connection.execute(
            select(*columns, table.c.compaction_id, table.c.tool_call_id).where(
                self._is_in(table, positions)
            )
        ).all()
        self.call_ids |= {row.tool_call_id for row in rows if row.tool_call_id is not None}
        calls = select(tool_calls.c.call_id).where(self._is_in(tool_calls, positions))
        self.call_ids |= set(self._connection.execute(calls).scalars())
        return [(evictable_of(row[:-2]), row.compaction_id) for row in rows]

    def _count_taken(self, taken: Sequence[tuple[Message, int | None]]) -> None:
        session = self._session
        # Queries cache what they may quote, by this number.
        session.retracted_seq += bool(taken)
        tokens = sum([message.tokens for message, _ in taken])
        load = load_of([message for message, evicted_by in taken if evicted_by is None])
        self.messages += len(taken)
        session.messages_total -= len(taken)
        session.tokens_total -= tokens
        session.live_messages -= load.messages
        session.live_tokens -= load.tokens
        # Rounds count since the last eviction, and a live request may be older.
        session.rounds = max(0, session.rounds - load.rounds)
        # The hold of a restoration ends after as many new tokens as before.
        session.held_to_tokens = max(0, session.held_to_tokens - tokens)
        session.revision += 1
        if evicted := [(message, by) for message, by in taken if by is not None]:
            session.evicted_changes += 1
            self._lessen(evicted)

    def _lessen(self, evicted: Sequence[tuple[Message, int]]) -> None:
        """Subtract messages from the counts of their evictions, and remove the digests."""
        ids = sorted({by for _, by in evicted})
        self.compaction_ids |= set(ids)
        counted = _COUNTED.rows(self._connection, [(self._session.sid, by) for by in ids])
        rows = []
        for compaction_id, number, tokens in counted:
            gone = [message.tokens for message, by in evicted if by == compaction_id]
            # The digest quotes them; the caller has it written anew.
            rows.append((number - len(gone), tokens - sum(gone), "", 0, compaction_id))
        _LESSEN.run(self._connection, rows)

    def _shift(
        self,
        source: Table,
        target: Table,
        positions: Sequence[int],
        changes: Mapping[str, ColumnElement[Any]],
    ) -> None:
        values = {name: source.c[name] for name in _COLUMNS} | dict(changes)
        chosen = select(*values.values()).where(self._is_in(source, positions))
        self._connection.execute(insert(target).from_select(list(values), chosen))
        self._connection.execute(delete(source).where(self._is_in(source, positions)))

    def _is_in(self, table: Table, positions: Sequence[int]) -> ColumnElement[bool]:
        return (table.c.sid == self._session.sid) & table.c.position.in_(positions)


def rest_of_responses(connection: Connection, sid: int, positions: Collection[int]) -> list[int]:
    """Return the items of the same responses that are not among these positions."""
    chosen = set(positions)
    return [
        position
        for seq in sorted({position // MESSAGES_PER_EVENT for position in chosen})
        for response in _responses(connection, sid, seq)
        if not chosen.isdisjoint(response)
        for position in response
        if position not in chosen
    ]


def _responses(connection: Connection, sid: int, seq: int) -> Iterator[list[int]]:
    """Yield the responses of an event, each as its positions in order."""
    # Retracted ones as well: the order in which retractions arrive must not matter.
    items = union_all(
        *[
            select(table.c.position, table.c.element).where(
                table.c.sid == sid,
                table.c.position >= position_of(seq, 0),
                table.c.position < position_of(seq + 1, 0),
                table.c.element.in_(IN_RESPONSES),
            )
            for table in (messages, retracted_messages)
        ]
    ).order_by("position")
    response: list[int] = []
    for position, element in connection.execute(items):
        if element != Element.JOINED:
            yield response
            response = []
        response.append(position)
    yield response
