"""Apply retractions within the transaction of a batch, as a function of the stream's order.

A retraction concerns the messages before it in the stream. If such a message is stored later than
the retraction, it is retracted then. A result follows its retracted call, whenever it arrives. The
other items of a response follow a retracted one: their chat view is one message.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    bindparam,
    delete,
    select,
    update,
)

from turnfold.contracts.retractions import Retraction
from turnfold.contracts.subjects import id_fault
from turnfold.core.history.audit_chain import LOCAL, WORKER
from turnfold.messages import MESSAGES_PER_EVENT, position_of, split_message_id
from turnfold.ports.ingest import DecodedEvent, Installation
from turnfold.store.database.schema import messages, retracted_messages, retractions
from turnfold.store.database.session_rows import SessionJournal, SessionRow
from turnfold.store.database.statements import BulkInsert, Prepared
from turnfold.store.ingest.batch.duplicates import KNOWN_EVENTS
from turnfold.store.ingest.pairing import repair_pairs
from turnfold.store.ingest.responses import rest_of_responses
from turnfold.store.ingest.retracted_rows import RetractedRows
from turnfold.store.ingest.tombstones import in_portions

INSERT_RETRACTIONS = BulkInsert(retractions, ("sid", "stream_seq", "at_ms", "named", "actor"))
_SINCE = Prepared(
    select(retractions.c.stream_seq, retractions.c.at_ms, retractions.c.named, retractions.c.actor)
    .where(retractions.c.sid == bindparam("of_sid"), retractions.c.stream_seq >= bindparam("since"))
    .order_by(retractions.c.stream_seq),
    ("of_sid", "since"),
)


class StoredRetraction(NamedTuple):
    """A retraction of a session; the sequence 0 stands for results that follow retracted calls."""

    seq: int
    at_ms: int
    retraction: Retraction
    actor: str


class RetractedCounts(NamedTuple):
    """The changes of one retraction: messages, tokens of the window before, and evictions."""

    source: StoredRetraction
    messages: int
    tokens_before: int
    compaction_ids: Collection[int]
    is_new: bool


Withdraw = Callable[[Connection, SessionRow, SessionJournal, Installation, RetractedCounts], None]
"""Takes versions that cover retracted messages out of force, and writes the audit row."""


def retraction_row(arrival: DecodedEvent, sid: int) -> tuple[object, ...]:
    """Return the row of an event that retracts messages."""
    assert arrival.retraction is not None
    named = json.dumps(arrival.retraction)
    return sid, arrival.stream_seq, arrival.at_ms, named, LOCAL


class Retractor:
    """Applies the retractions of one batch."""

    def __init__(
        self,
        connection: Connection,
        installation: Installation,
        journal: SessionJournal,
        withdraw: Withdraw,
    ) -> None:
        self._connection = connection
        self._installation = installation
        self._journal = journal
        self._withdraw = withdraw

    def apply(
        self, session: SessionRow, stored_seqs: Sequence[int], call_ids: Iterable[str], at_ms: int
    ) -> None:
        """Apply new retractions, and earlier ones to messages that were stored late.

        `stored_seqs` are the sequences that this batch stored or moved, `call_ids` those whose
        pairs it touched.
        """
        # The pairs of these calls were left for this moment. Decided first, so that a result that
        # is retracted with its call keeps it, in whatever order they arrived.
        following = StoredRetraction(0, at_ms, Retraction(), WORKER)
        self._apply_one(session, following, set(call_ids))
        found = _SINCE.rows(self._connection, session.sid, min(stored_seqs, default=1 << 62))
        for seq, retracted_at_ms, named, actor in found:
            ids, after, is_all = json.loads(named)
            retraction = Retraction(tuple(ids), after, bool(is_all))
            source = StoredRetraction(int(seq), int(retracted_at_ms), retraction, actor)
            self._apply_one(session, source, is_new=seq in stored_seqs)

    def bring_back_event(
        self, session: SessionRow, arrival: DecodedEvent, old_seq: int
    ) -> set[str]:
        """Undo what concerns an event that moves to an earlier sequence; return its call ids."""
        rows = RetractedRows(self._connection, session)
        first, last = position_of(old_seq, 0), position_of(old_seq, MESSAGES_PER_EVENT - 1)
        is_moved: ColumnElement[bool] = retracted_messages.c.position.between(first, last)
        if arrival.retraction is not None:
            is_moved |= retracted_messages.c.retracted_seq == old_seq
            is_old = (retractions.c.sid == session.sid) & (retractions.c.stream_seq == old_seq)
            self._connection.execute(delete(retractions).where(is_old))
        of_session = retracted_messages.c.sid == session.sid
        found = select(retracted_messages.c.position).where(of_session, is_moved)
        rows.bring_back(self._connection.execute(found).scalars().all())
        return rows.call_ids

    def _apply_one(
        self,
        session: SessionRow,
        source: StoredRetraction,
        call_ids: Collection[str] = (),
        *,
        is_new: bool = False,
    ) -> None:
        before, rows = session.window_tokens, RetractedRows(self._connection, session)
        rows.call_ids |= set(call_ids)
        if source.seq:
            chosen = self._with_responses(session, source, self._chosen(session, source))
            self._mark_again(session, source, chosen)
            rows.take(
                self._positions(messages, session, chosen), source.seq, source.at_ms, is_named=True
            )
            self._keep_pairs(session, source.seq)
        self._follow(session, rows)
        if is_new or rows.messages:
            counts = RetractedCounts(source, rows.messages, before, rows.compaction_ids, is_new)
            self._withdraw(self._connection, session, self._journal, self._installation, counts)

    def _chosen(self, session: SessionRow, source: StoredRetraction) -> list["_Positions"]:
        """Return the positions that a retraction names, as ranges or lists."""
        before = position_of(source.seq, 0)
        ids, after, is_all = source.retraction
        if is_all:
            return [_Positions(0, before)]
        if after is not None:
            places = self._places(session, [after])
            known = self._positions(messages, session, [_Positions(0, before, places)])
            known += self._positions(retracted_messages, session, [_Positions(0, before, places)])
            return [_Positions(position + 1, before) for position in known]
        places = self._places(session, ids)
        return [_Positions(0, before, portion) for portion in in_portions(places)]

    def _with_responses(
        self, session: SessionRow, source: StoredRetraction, chosen: list["_Positions"]
    ) -> list["_Positions"]:
        """Add the other items of the responses that a retraction names items of."""
        named = self._positions(messages, session, chosen)
        named += self._positions(retracted_messages, session, chosen)
        rest = rest_of_responses(self._connection, session.sid, named)
        before = position_of(source.seq, 0)
        return chosen + [_Positions(0, before, portion) for portion in in_portions(rest)]

    def _places(self, session: SessionRow, message_ids: Iterable[str]) -> list[int]:
        """Return where messages with these ids stand; unknown ids are left out."""
        parts = [split_message_id(message_id) for message_id in message_ids]
        named = [part for part in parts if part is not None and not id_fault(part[0])]
        agent_id = session.key.agent_id
        wanted = sorted({(agent_id, event_id) for event_id, _ in named})
        seqs = {
            event_id: seq
            for portion in in_portions(wanted)
            for _, event_id, sid, seq, _ in KNOWN_EVENTS.rows(self._connection, portion)
            if sid == session.sid
        }
        return sorted(
            {
                position_of(seqs[event_id], index)
                for event_id, index in named
                if event_id in seqs and index < MESSAGES_PER_EVENT
            }
        )

    def _positions(
        self, table: Table, session: SessionRow, chosen: Iterable["_Positions"]
    ) -> list[int]:
        found = [
            select(table.c.position).where(table.c.sid == session.sid, part.are_in(table))
            for part in chosen
        ]
        return [position for rows in found for position in self._connection.execute(rows).scalars()]

    def _mark_again(
        self, session: SessionRow, source: StoredRetraction, chosen: Iterable["_Positions"]
    ) -> None:
        """Record a retraction of messages that another one, or their call, has retracted before."""
        table = retracted_messages
        for part in chosen:
            is_chosen = (table.c.sid == session.sid) & part.are_in(table)
            named = update(table).where(is_chosen, ~table.c.is_named).values(is_named=True)
            earlier = (
                update(table)
                .where(is_chosen, table.c.retracted_seq > source.seq)
                .values(retracted_seq=source.seq, retracted_at_ms=source.at_ms)
            )
            self._connection.execute(named)
            self._connection.execute(earlier)

    def _keep_pairs(self, session: SessionRow, seq: int) -> None:
        """Keep results paired whose calls are retracted too; others free their calls."""
        table = retracted_messages
        call = table.alias("call")
        has_retracted_call = (
            select(call.c.position)
            .where(call.c.sid == session.sid, call.c.position == table.c.answers_position)
            .exists()
        )
        of_retraction = (table.c.sid == session.sid) & (table.c.retracted_seq == seq)
        self._connection.execute(
            update(table).where(of_retraction, has_retracted_call).values(is_paired=True)
        )

    def _follow(self, session: SessionRow, rows: RetractedRows) -> None:
        """Decide pairs again, and retract results of retracted calls, until nothing changes."""
        while rows.call_ids:
            ids = sorted(rows.call_ids)
            rows.call_ids = set()
            touched = [(session.sid, call_id) for call_id in ids]
            pairs = repair_pairs(self._connection, touched, has_retracted=True)
            session.evicted_changes += session.sid in pairs.changed_sids
            if pairs.released:
                # Decided with the next turn of this loop, now that they are among the others.
                rows.bring_back(pairs.released)
                rows.call_ids |= set(ids)
                continue
            following: dict[tuple[int, int], list[int]] = {}
            for portion in in_portions(ids):
                for row in self._connection.execute(_followers(session.sid, portion)):
                    mark = (row.retracted_seq, row.retracted_at_ms)
                    following.setdefault(mark, []).append(row.position)
            for (seq, at_ms), positions in following.items():
                rows.take(positions, seq, at_ms, is_named=False)


class _Positions(NamedTuple):
    """Positions from `first` up to but without `before`; with `places`, only these of them."""

    first: int
    before: int
    places: Sequence[int] | None = None

    def are_in(self, table: Table) -> ColumnElement[bool]:
        """Return the condition for the rows of a table."""
        column = table.c.position
        is_within = (column >= self.first) & (column < self.before)
        return is_within if self.places is None else is_within & column.in_(self.places)


def _followers(sid: int, call_ids: Sequence[str]) -> Select[*tuple[int, int, int]]:
    """Select the results that answer retracted calls, each with the retraction of its call."""
    call = retracted_messages.alias("call")
    return (
        select(messages.c.position, call.c.retracted_seq, call.c.retracted_at_ms)
        .join(call, (call.c.sid == sid) & (call.c.position == messages.c.answers_position))
        .where(messages.c.sid == sid, messages.c.tool_call_id.in_(call_ids))
    )
