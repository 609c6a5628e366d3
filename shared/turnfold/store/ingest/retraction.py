"""Apply retractions within the transaction of a batch, as a function of the stream's order.

A retraction concerns the messages before it in the stream. If such a message is stored later than
the retraction, it is retracted then. A result follows its retracted call, whenever it arrives. The
other items of a response follow a retracted one: their chat view is one message.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    bindparam,
    delete,
    select,
)

from turnfold.access.actors import verified_actor
from turnfold.contracts.retractions import Retraction
from turnfold.core.history.audit_chain import LOCAL, WORKER
from turnfold.messages import MESSAGES_PER_EVENT, position_of
from turnfold.ports.ingest import DecodedEvent, Installation
from turnfold.ports.query import END_POSITION, END_SEQ
from turnfold.store.database.message_rows import named_place
from turnfold.store.database.schema import (
    messages,
    retracted_messages,
    retractions,
)
from turnfold.store.database.secrets import SIGNED_ACTORS, secret_in
from turnfold.store.database.session_rows import SessionChange, SessionJournal, SessionRow
from turnfold.store.database.statements import BulkInsert, Prepared
from turnfold.store.ingest.batch.stored_events import KNOWN_EVENTS, newest_reading
from turnfold.store.ingest.pairing import first_named_seq, pairs_with_retracted, store_pairs
from turnfold.store.ingest.retracted_rows import IN_RESPONSES, RetractedRows, rest_of_responses
from turnfold.store.ingest.tombstones import in_portions
from turnfold.store.ingest.usage import judge_reports

AT_ONCE_EACH = 20
"""With more retractions, a batch decides pairs and has digests written once: both may be long."""
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
    """The changes of one retraction: messages, tokens of the window before, and evictions.

    `undigested` are the evictions whose digests must be written again now.
    """

    source: StoredRetraction
    messages: int
    tokens_before: int
    compaction_ids: Collection[int]
    is_new: bool
    undigested: Collection[int]


Withdraw = Callable[[SessionChange, Installation, RetractedCounts], None]
"""Takes versions that cover retracted messages out of force, and writes the audit row."""


def retracted_by(connection: Connection, payloads: Mapping[int, bytes], event: DecodedEvent) -> str:
    """Return the actor of a retraction as a worker signed it; `local` for other publishers."""
    if event.signed_actor is None or (secret := secret_in(connection, SIGNED_ACTORS)) is None:
        return LOCAL
    body = payloads.get(event.stream_seq, b"")
    actor = verified_actor(
        secret, event.signed_actor, subject=event.subject, body=body, now_ms=event.at_ms
    )
    return actor or LOCAL


class Retractor:
    """Applies the retractions of one session in a batch."""

    def __init__(
        self,
        connection: Connection,
        installation: Installation,
        journal: SessionJournal,
        session: SessionRow,
        withdraw: Withdraw,
    ) -> None:
        self._connection = connection
        self._installation = installation
        self._journal = journal
        self._session = session
        self._withdraw = withdraw
        # The position from which reports of usage may teach otherwise afterwards.
        self._first = END_POSITION
        # Ranges of which each message is named already, in order.
        self._named: list[tuple[int, int]] = []

    def apply(self, stored_seqs: Sequence[int], call_ids: Iterable[str], at_ms: int) -> int:
        """Apply new retractions, and earlier ones to messages that were stored late.

        `stored_seqs` are the sequences that this batch stored or moved, `call_ids` those whose
        pairs it touched. Return the sequence before which no report of usage counts any more.
        """
        reports_from = 0
        since = min(stored_seqs, default=END_SEQ)
        if since <= self._session.retracted_seq:
            self._first = position_of(since, 0)
        # The pairs of these calls were left for this moment.
        arrived = StoredRetraction(0, at_ms, Retraction(), WORKER)
        self._apply_one(arrived, call_ids, first=position_of(since, 0))
        stored = _SINCE.rows(self._connection, self._session.sid, since)
        later = (
            RetractedRows(self._connection, self._session) if len(stored) > AT_ONCE_EACH else None
        )
        for seq, retracted_at_ms, named, actor in stored:
            ids, after, is_all = json.loads(named)
            retraction = Retraction(tuple(ids), after, bool(is_all))
            source = StoredRetraction(int(seq), int(retracted_at_ms), retraction, actor)
            if self._apply_one(source, is_new=seq in stored_seqs, later=later):
                reports_from = source.seq
        if later is not None:
            rest = StoredRetraction(0, at_ms, Retraction(), WORKER)
            self._apply_one(rest, later.call_ids, undigested=later.compaction_ids)
        session = self._session
        judge_reports(self._connection, session.key.agent_id, session.sid, self._first)
        return reports_from

    def bring_back(self, seq: int) -> set[str]:
        """Bring back the retracted messages of an event, so that it can move; return call ids."""
        first, last = position_of(seq, 0), position_of(seq, MESSAGES_PER_EVENT - 1)
        return self._bring_back(retracted_messages.c.position.between(first, last))

    def move_retraction(self, old_seq: int, seq: int) -> set[str]:
        """Note that a stored retraction came earlier; return the call ids that this concerns.

        `apply` retracts again what another retraction names too.
        """
        is_old = (retractions.c.sid == self._session.sid) & (retractions.c.stream_seq == old_seq)
        self._connection.execute(delete(retractions).where(is_old))
        rows, is_named = RetractedRows(self._connection, self._session), first_named_seq == old_seq
        before = [_Positions(0, position_of(seq, 0))]
        rows.name(self._positions(retracted_messages, before, is_named), seq)
        if seq < self._session.reported_seq < old_seq:
            # The newest report stands after it, and counts unless another one voids it.
            reading = newest_reading(self._connection, self._session.sid)
            self._session.reported_tokens = reading.tokens
        # The messages between both places are those that still have the old sequence.
        return rows.call_ids | self._bring_back(is_named)

    def _bring_back(self, condition: ColumnElement[bool]) -> set[str]:
        rows = RetractedRows(self._connection, self._session)
        rows.bring_back(self._positions(retracted_messages, [_EVERYWHERE], condition))
        return rows.call_ids

    def _apply_one(
        self,
        source: StoredRetraction,
        call_ids: Iterable[str] = (),
        *,
        is_new: bool = False,
        later: RetractedRows | None = None,
        undigested: Collection[int] = (),
        first: int = 0,
    ) -> bool:
        """Apply a retraction; return whether it names a stored message.

        The pairs of `call_ids` were right before messages from `first` on were stored. Pairs and
        digests are left to the caller with `later`, which notes for what.
        """
        has_named = False
        before, rows = self._session.window_tokens, RetractedRows(self._connection, self._session)
        rows.call_ids.update(call_ids)
        if source.seq:
            has_named = self._name(source, rows)
        if later is None:
            self._pair(rows, first)
            undigested = {*undigested, *rows.compaction_ids}
        else:
            later.call_ids.update(rows.call_ids)
            later.compaction_ids.update(rows.compaction_ids)
        self._first = min(self._first, rows.first)
        if is_new or rows.messages or undigested:
            counts = RetractedCounts(
                source, rows.messages, before, rows.compaction_ids, is_new, undigested
            )
            change = SessionChange(self._connection, self._session, self._journal, source.at_ms)
            self._withdraw(change, self._installation, counts)
        return has_named

    def _name(self, source: StoredRetraction, rows: RetractedRows) -> bool:
        """Retract the messages that a retraction names, unless an earlier one names them.

        Return whether it names any that is stored.
        """
        chosen = self._with_responses(source, self._chosen(source))
        # Otherwise each of thousands of retractions would read what the first one has named.
        unnamed = [rest for part in chosen for rest in self._unnamed(part)]
        is_later = first_named_seq.is_(None) | (first_named_seq > source.seq)
        rows.name(self._positions(retracted_messages, unnamed, is_later), source.seq)
        rows.take(self._positions(messages, unnamed), source.seq, is_named=True)
        if not any(map(self._has_retracted, chosen)):
            return False
        # None before it says how full the window is.
        if self._session.reported_seq < source.seq:
            self._session.reported_tokens = 0
        return True

    def _unnamed(self, part: "_Positions") -> list["_Positions"]:
        """Return what no earlier range names of a part; note the part, if it is a range."""
        if part.places is not None:
            return [part]
        unnamed, apart, at, joined = [], [], part.first, part.first
        for first, before in self._named:
            if before < part.first:
                apart.append((first, before))
                continue
            if at < first:
                unnamed.append(_Positions(at, first))
            at, joined = max(at, before), min(joined, first)
        # Later retractions end later, so that a range reaches beyond all earlier ones.
        self._named = [*apart, (joined, part.before)]
        return [*unnamed, _Positions(at, part.before)]

    def _has_retracted(self, part: "_Positions") -> bool:
        """Return whether any of these positions is retracted."""
        table = retracted_messages
        chosen = select(table.c.position).where(
            table.c.sid == self._session.sid, part.are_in(table)
        )
        return self._connection.execute(chosen.limit(1)).first() is not None

    def _pair(self, rows: RetractedRows, first: int) -> None:
        """Decide pairs again: results follow retracted calls, or come back as others answer."""
        touched = [(self._session.sid, call_id) for call_id in rows.call_ids]
        changes = pairs_with_retracted(
            self._connection, touched, first=first, retracted_seq=self._session.retracted_seq
        )
        back, following = [], defaultdict[int, list[int]](list)
        for change in changes:
            seq, known_seq = change.match.retracted_seq, change.stored.retracted_seq
            if seq is None and known_seq is not None:
                back.append(change.position)
            elif seq is not None and known_seq is None:
                following[seq].append(change.position)
        rows.bring_back(back)
        for seq, positions in following.items():
            rows.take(positions, seq, is_named=False)
        store_pairs(self._connection, changes)
        rows.first = min([rows.first, *(change.position for change in changes)])
        self._session.evicted_changes += any(change.is_evicted for change in changes)
        self._session.revision += bool(changes)

    def _chosen(self, source: StoredRetraction) -> list["_Positions"]:
        """Return the positions that a retraction names, as ranges or lists."""
        before = position_of(source.seq, 0)
        ids, after, is_all = source.retraction
        if is_all:
            return [_Positions(0, before)]
        if after is not None:
            places = self._places([after])
            known = self._positions(messages, [_Positions(0, before, places)])
            # The message that is named stays a border after it was retracted itself.
            known += self._positions(retracted_messages, [_Positions(0, before, places)])
            return [_Positions(position + 1, before) for position in known]
        places = self._places(ids)
        return [_Positions(0, before, portion) for portion in in_portions(places)]

    def _with_responses(
        self, source: StoredRetraction, chosen: list["_Positions"]
    ) -> list["_Positions"]:
        """Add all other items of each response of which the retraction names an item."""
        edges = [part.edge for part in chosen]
        named = [
            position
            for table in (messages, retracted_messages)
            for position in self._positions(table, edges, table.c.element.in_(IN_RESPONSES))
        ]
        rest = rest_of_responses(self._connection, self._session.sid, named)
        before = position_of(source.seq, 0)
        return chosen + [_Positions(0, before, portion) for portion in in_portions(rest)]

    def _places(self, message_ids: Iterable[str]) -> list[int]:
        """Return where messages with these ids stand; unknown ids are left out."""
        named = [place for place in map(named_place, message_ids) if place is not None]
        agent_id = self._session.key.agent_id
        wanted = sorted({(agent_id, event_id) for event_id, _ in named})
        # Also those of its other sessions: at the places of their messages, this one has none.
        seqs = {
            event_id: seq
            for portion in in_portions(wanted)
            for _, event_id, _, seq, _ in KNOWN_EVENTS.rows(self._connection, portion)
        }
        return sorted(
            {position_of(seqs[event_id], index) for event_id, index in named if event_id in seqs}
        )

    def _positions(
        self,
        table: Table,
        chosen: Iterable["_Positions"],
        *conditions: ColumnElement[bool],
    ) -> list[int]:
        found = [
            select(table.c.position).where(table.c.sid == self._session.sid, part.are_in(table))
            for part in chosen
        ]
        return [
            position
            for rows in found
            for position in self._connection.execute(rows.where(*conditions)).scalars()
        ]


class _Positions(NamedTuple):
    """Positions from `first` up to but without `before`; with `places`, only these of them."""

    first: int
    before: int
    places: Sequence[int] | None = None

    @property
    def edge(self) -> "_Positions":
        """The part that may cut a response: of a range the first event, as it ends between two."""
        if self.places is not None:
            return self
        end = self.first - self.first % MESSAGES_PER_EVENT + MESSAGES_PER_EVENT
        return self._replace(before=min(self.before, end))

    def are_in(self, table: Table) -> ColumnElement[bool]:
        """Return the condition for the rows of a table."""
        column = table.c.position
        is_within = (column >= self.first) & (column < self.before)
        return is_within if self.places is None else is_within & column.in_(self.places)


_EVERYWHERE = _Positions(0, END_POSITION)
