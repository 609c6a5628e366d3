"""Write one batch of events within its transaction.

The steps are: insert, handle duplicates, pair calls with results, count, and evict. `IngestStore`
opens the transaction.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

from sqlalchemy import Connection, delete
from sqlalchemy.exc import IntegrityError

from turnfold.errors import EventFault
from turnfold.messages import MESSAGES_PER_EVENT, SessionKey, position_of
from turnfold.ports.ingest import DeadLetter, DecodedEvent, IngestResult, Installation
from turnfold.store.database import sequence_ranges as ranges
from turnfold.store.database.engine import insert_for
from turnfold.store.database.instance_lock import confirm_stream, lock_storing
from turnfold.store.database.message_rows import storable_key
from turnfold.store.database.schema import dead_letters, sessions
from turnfold.store.database.session_rows import SessionJournal, SessionRow, lock_by_key
from turnfold.store.database.transactions import savepoint
from turnfold.store.ingest.batch.counters import count_events, note_unindexed
from turnfold.store.ingest.batch.event_inserts import EventRows
from turnfold.store.ingest.batch.marks import with_marks
from turnfold.store.ingest.batch.stored_events import (
    KNOWN_EVENTS,
    EventSpan,
    StoredEventKey,
    counts_of_event,
    dead_letter_row,
    delete_event,
    evict_again,
    evicted_positions,
    first_of_each,
    is_equal_content,
    is_newest_event,
    newest_after_move,
    newest_model,
    newest_reading,
)
from turnfold.store.ingest.batch.used_sequences import refuse_used
from turnfold.store.ingest.evict import evict, usage_readings
from turnfold.store.ingest.model_windows import NamedModel, learn_limits, record_reports
from turnfold.store.ingest.pairing import PairChange, Touched, repair_pairs
from turnfold.store.ingest.retraction import Retractor, Withdraw, retracted_by
from turnfold.store.ingest.tombstones import erased_before, record_duplicates
from turnfold.store.ingest.usage import Calibrator, judge_reports

ANOTHER_EVENT = "this event id stands for other content or another session of the agent"


class BatchWriter:
    """Writes one batch within its transaction.

    `stream_created` is the creation time of the stream that the batch comes from.
    """

    def __init__(
        self,
        connection: Connection,
        stream_created: str | None,
        installation: Installation,
        payloads: Mapping[int, bytes],
        withdraw: Withdraw,
    ) -> None:
        self._connection = connection
        self._stream_created = stream_created
        self._installation = installation
        self._payloads = payloads
        self._journal = SessionJournal()
        self._withdraw = withdraw
        self._sessions: dict[SessionKey, SessionRow] = {}
        self._touched: set[Touched] = set()
        self._dead: list[DeadLetter] = []
        self._new: list[DecodedEvent] = []
        self._moved: defaultdict[SessionKey, list[DecodedEvent]] = defaultdict(list)
        self._limited: set[SessionKey] = set()
        self._copies: set[tuple[int, int]] = set()
        self._duplicates = 0

    def write(
        self,
        arrivals: Sequence[DecodedEvent],
        dead: Sequence[DeadLetter],
        replays: Mapping[int, int],
    ) -> IngestResult:
        """Store decoded events and dead letters, in stream order; return the counts.

        `replays` maps sequences to those of the dead letters that they replay.
        """
        sequences = [arrival.stream_seq for arrival in arrivals] + [
            letter.stream_seq for letter in dead
        ]
        # Before anything is read: an erasure must not happen between reading and writing.
        lock_storing(self._connection)
        if confirm_stream(self._connection, self._stream_created):
            arrivals, dead = self._without_erased(arrivals, dead, replays)
        self._dead.extend(dead)
        evictions = 0
        if arrivals and (arrivals := self._admit(arrivals)):
            policies = {
                key: session.policy(self._installation) for key, session in self._sessions.items()
            }
            self._insert([with_marks(arrival, policies[arrival.key]) for arrival in arrivals])
            evictions = self._update_sessions()
        if self._dead:
            insert = insert_for(self._connection)(dead_letters).on_conflict_do_nothing()
            self._connection.execute(insert, [dead_letter_row(letter) for letter in self._dead])
        record_duplicates(self._connection, self._copies)
        # Last, because every batch locks the same few rows of ranges.
        ingested = ranges.add(self._connection, [(seq, seq) for seq in sequences])
        if self._stream_created is not None:
            placed = chain(self._new, *self._moved.values())
            refuse_used(self._connection, placed, self._dead, ingested)
        return IngestResult(
            events=len(self._new),
            messages=sum(len(arrival.messages) for arrival in self._new),
            duplicates=self._duplicates,
            dead_letters=len(self._dead),
            evictions=evictions,
            retractions=sum(arrival.retraction is not None for arrival in self._new),
        )

    def _without_erased(
        self,
        arrivals: Sequence[DecodedEvent],
        dead: Sequence[DeadLetter],
        replays: Mapping[int, int],
    ) -> tuple[Sequence[DecodedEvent], Sequence[DeadLetter]]:
        """Leave out what was erased before it arrived; it counts as duplicates."""
        erased = erased_before(self._connection, arrivals, dead, replays)
        self._duplicates += len(erased)
        return (
            [arrival for arrival in arrivals if arrival.stream_seq not in erased],
            [letter for letter in dead if letter.stream_seq not in erased],
        )

    def _update_sessions(self) -> int:
        """Pair calls and results, count, and evict; return how many compactions opened."""
        new: defaultdict[SessionKey, list[DecodedEvent]] = defaultdict(list)
        for arrival in self._new:
            new[arrival.key].append(arrival)
        retracting = {
            key: session
            for key, session in self._sessions.items()
            if session.retracted_seq
            or any(event.retraction is not None for event in new.get(key, ()))
        }
        touched = self._touched
        if retracting:
            # Their pairs depend on retractions as well, and follow below.
            apart = {session.sid for session in retracting.values()}
            touched = {(sid, call_id) for sid, call_id in touched if sid not in apart}
        placed = chain(self._new, *self._moved.values())
        first = position_of(min([arrival.stream_seq for arrival in placed], default=0), 0)
        self._count_changes(repair_pairs(self._connection, touched, first))
        # Before counting, which sets the model.
        models = {
            key: NamedModel(session.model, session.model_seq)
            for key, session in self._sessions.items()
        }
        changed, switched = self._count(new)
        counted = dict(new)
        for key, session in retracting.items():
            counted[key] = self._retract(session, new.get(key, ()))
        # First, because a success of the same batch may raise a limit that it reports.
        record_reports(self._sessions, self._new, self._journal)
        before = {key: models[key] for key in self._limited | switched}
        changes = learn_limits(
            self._connection, self._sessions, self._limited, before, new, self._journal
        )
        reports = sum(arrival.report is not None for arrival in self._new)
        # It reads this many more reports, so that those of this batch replace no older ones.
        calibrator = Calibrator(self._connection, reports)
        self._calibrate_named(models, calibrator)
        evictions = evict(
            self._connection,
            changed,
            counted,
            calibrator,
            self._installation,
            self._journal,
            changes,
        )
        # After the eviction, which changes the counters as well: each session is written once.
        self._journal.write(self._connection, changed)
        self._remove_empty()
        return evictions

    def _count_changes(self, paired: Sequence[PairChange]) -> None:
        """Count that stored messages changed: queries cache them."""
        new = {arrival.stream_seq for arrival in self._new}
        evicted = {change.sid for change in paired if change.is_evicted}
        stored = {
            change.sid for change in paired if change.position // MESSAGES_PER_EVENT not in new
        }
        for session in self._sessions.values():
            session.evicted_changes += session.sid in evicted
            session.revision += session.sid in stored

    def _retract(self, session: SessionRow, new: Sequence[DecodedEvent]) -> list[DecodedEvent]:
        """Apply new retractions, and earlier ones to late messages and results.

        Return the events without reports of usage that counted a retracted message.
        """
        stored = [event.stream_seq for event in chain(new, self._moved.get(session.key, ()))]
        call_ids = [call_id for sid, call_id in self._touched if sid == session.sid]
        at_ms = session.last_event_at_ms or 0
        reports_from = self._retractor(session).apply(stored, call_ids, at_ms)
        stale = [event for event in new if event.stream_seq < reports_from]
        for reading in usage_readings(stale).values():
            # No limit: a report that counts no more ends no series of evictions.
            session.gauge = session.gauge.with_reading(reading._replace(tokens=0), limit=-1)
        return [
            event._replace(report=None) if event.stream_seq < reports_from else event
            for event in new
        ]

    def _calibrate_named(
        self, models: Mapping[SessionKey, NamedModel], calibrator: Calibrator
    ) -> None:
        """Set the factor of sessions that named their model for the first time in this batch."""
        first = {arrival.key: arrival for arrival in reversed(self._new) if arrival.model}
        for key, arrival in first.items():
            if models[key].model is None:
                # Only from reports before this event: the batch's limits must not decide.
                before = arrival.stream_seq - 1
                model = storable_key(arrival.model or "")
                factor = calibrator.factor(key.agent_id, model, before)
                self._sessions[key].factor = factor

    def _admit(self, arrivals: Sequence[DecodedEvent]) -> Sequence[DecodedEvent]:
        """Lock or create the sessions of these events; refuse sessions above the limit."""
        keys = dict.fromkeys(arrival.key for arrival in arrivals)
        self._sessions = lock_by_key(self._connection, keys, create=self._installation.max_sessions)
        # The usual case: nothing was refused.
        if len(self._sessions) == len(keys):
            return arrivals
        for arrival in arrivals:
            if arrival.key not in self._sessions:
                limit = self._installation.max_sessions
                detail = f"the agent has {limit} sessions, and may have no more"
                self._refuse(arrival, EventFault.TOO_MANY_SESSIONS, detail)
        return [arrival for arrival in arrivals if arrival.key in self._sessions]

    def _remove_empty(self) -> None:
        """Remove sessions that this batch created and whose events it refused.

        A session that a policy request created has a revision, and stays.
        """
        stored = {arrival.key for arrival in self._new} | self._moved.keys()
        empty = [
            session.sid
            for key, session in self._sessions.items()
            if key not in stored and session.last_event_at_ms is None and session.revision == 0
        ]
        # A trigger lowers the number of sessions of the agent.
        if empty:
            self._connection.execute(delete(sessions).where(sessions.c.sid.in_(empty)))

    def _insert(self, arrivals: Sequence[DecodedEvent]) -> None:
        """Insert new events.

        Nearly always all are new, so the insert comes first; the unique keys report duplicates.
        """
        fresh, repeated = first_of_each(arrivals)
        rows = self._rows(fresh)
        try:
            # PostgreSQL refuses every statement after an error in the transaction. The savepoint
            # ends before the messages, because SQLite copies what it changes within one.
            with savepoint(self._connection):
                rows.insert_events(self._connection)
        except IntegrityError:
            fresh = self._unknown(fresh)
            rows = self._rows(fresh)
            rows.insert_events(self._connection)
        self._insert_rest(rows)
        self._new = fresh
        # After the first occurrences are stored: now each of these is an ordinary duplicate.
        for arrival in repeated:
            self._unknown([arrival])

    def _unknown(self, arrivals: Sequence[DecodedEvent]) -> list[DecodedEvent]:
        """Return the events that are not stored; the others are duplicates, moved or refused."""
        ids = sorted((arrival.key.agent_id, arrival.event_id) for arrival in arrivals)
        known = {
            (agent_id, event_id): StoredEventKey(*rest)
            for agent_id, event_id, *rest in KNOWN_EVENTS.rows(self._connection, ids)
        }
        fresh: list[DecodedEvent] = []
        for arrival in arrivals:
            row = known.get((arrival.key.agent_id, arrival.event_id))
            if row is None:
                fresh.append(arrival)
            else:
                self._handle_known(arrival, row)
        return fresh

    def _handle_known(self, arrival: DecodedEvent, row: StoredEventKey) -> None:
        """Handle a known event id: keep the lower sequence of a duplicate, or refuse the event."""
        sid = self._sessions[arrival.key].sid
        # An event id is unique per agent. Under another session it is another event.
        if row.sid != sid:
            self._refuse(arrival, EventFault.EVENT_ID_REUSED, ANOTHER_EVENT)
            return
        span = EventSpan(sid, row.stream_seq)
        is_same = row.digest == arrival.digest
        if not is_same and not is_equal_content(self._connection, span, arrival):
            self._refuse(arrival, EventFault.EVENT_ID_REUSED, ANOTHER_EVENT)
            return
        self._duplicates += 1
        if arrival.stream_seq != row.stream_seq:
            # The stream holds the event at both sequences, and an erasure must delete it at both.
            self._copies.add((sid, max(arrival.stream_seq, row.stream_seq)))
        if arrival.stream_seq < row.stream_seq:
            self._move(arrival, span)

    def _move(self, arrival: DecodedEvent, span: EventSpan) -> None:
        """Move a stored event to the earlier sequence of its duplicate; evictions stay."""
        connection, session = self._connection, self._sessions[arrival.key]
        first, retractor = position_of(arrival.stream_seq, 0), self._retractor(session)
        was_newest = is_newest_event(connection, span, session.last_event_at_ms)
        # Its retracted rows have to move as well. `_retract` applies the retractions again.
        if session.retracted_seq:
            self._touch(session, retractor.bring_back(span.stream_seq))
        evicted = evicted_positions(connection, span)
        counted = counts_of_event(connection, span)
        delete_event(connection, span, arrival)
        rows = self._rows([arrival])
        rows.insert_events(connection)
        self._insert_rest(rows)
        if arrival.model:
            # A call that now stands before a reported limit proves no larger window.
            self._limited.add(session.key)
        if arrival.retraction is not None:
            self._touch(session, retractor.move_retraction(span.stream_seq, arrival.stream_seq))
        evict_again(connection, span, evicted, first)
        # A worker of another release may have counted the event otherwise, and only one of the two
        # may be marked as written by a program.
        recounted = counts_of_event(connection, EventSpan(span.sid, arrival.stream_seq))
        session.tokens_total += recounted.tokens - counted.tokens
        session.live_tokens += recounted.live_tokens - counted.live_tokens
        session.rounds = max(0, session.rounds + recounted.rounds - counted.rounds)
        session.revision += 1
        judge_reports(connection, session.key.agent_id, span.sid, first)
        # For live messages too: orders of sessions are cached with their positions.
        session.evicted_changes += 1
        note_unindexed(session, first)
        if session.reported_seq == span.stream_seq:
            session.gauge = session.gauge.moved(newest_reading(connection, span.sid))
        if session.model_seq == span.stream_seq:
            session.model, session.model_seq = newest_model(connection, span.sid)
        if was_newest:  # its old time would keep the session from becoming idle
            at_ms = newest_after_move(connection, span.sid, arrival, session.last_event_at_ms)
            session.last_event_at_ms = at_ms
            session.renew_idle_time(self._installation)
        self._moved[arrival.key].append(arrival)

    def _retractor(self, session: SessionRow) -> Retractor:
        return Retractor(
            self._connection, self._installation, self._journal, session, self._withdraw
        )

    def _touch(self, session: SessionRow, call_ids: Iterable[str]) -> None:
        self._touched |= {(session.sid, call_id) for call_id in call_ids}

    def _refuse(self, arrival: DecodedEvent, reason: EventFault, detail: str) -> None:
        payload = self._payloads.get(arrival.stream_seq, b"")
        seq, at_ms, subject = arrival.stream_seq, arrival.at_ms, arrival.subject
        self._dead.append(DeadLetter.of(seq, at_ms, subject, reason, detail, payload, arrival.key))

    def _rows(self, arrivals: Sequence[DecodedEvent]) -> EventRows:
        of_sessions = ((arrival, self._sessions[arrival.key]) for arrival in arrivals)
        return EventRows.of(of_sessions, partial(retracted_by, self._connection, self._payloads))

    def _insert_rest(self, rows: EventRows) -> None:
        self._touched |= rows.touched
        self._limited |= rows.limited
        rows.insert_rest(self._connection)

    def _count(
        self, new: Mapping[SessionKey, Sequence[DecodedEvent]]
    ) -> tuple[list[SessionRow], set[SessionKey]]:
        """Update the counters of the touched sessions; return those that changed.

        Return also those whose model changed between their events.
        """
        switched = set()
        for key, arrivals in new.items():
            session = self._sessions[key]
            if count_events(session, arrivals):
                switched.add(key)
            session.renew_idle_time(self._installation)
        changed = [
            session for key, session in self._sessions.items() if key in new or key in self._moved
        ]
        return changed, switched
