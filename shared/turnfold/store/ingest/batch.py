"""Write one batch of events within its transaction: insert, handle duplicates, pair, count, evict."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.exc import (
    IntegrityError,
)

from turnfold.core.eviction.limits import WindowChanges, changes_in_batch
from turnfold.core.eviction.triggers import idle_at_ms
from turnfold.core.eviction.usage import UsageReading
from turnfold.messages import MESSAGES_PER_EVENT, META_MARK, Role, SessionKey, position_of
from turnfold.ports.ingest import (
    PAYLOAD_KEPT_BYTES,
    DeadLetter,
    DecodedEvent,
    IngestResult,
    Installation,
)
from turnfold.store.database import sequence_ranges as ranges
from turnfold.store.database.engine import insert_for
from turnfold.store.database.message_rows import STORED, message_rows, storable
from turnfold.store.database.schema import (
    compactions,
    dead_letters,
    events,
    messages,
    reported_limits,
    sessions,
    tool_calls,
    usage_reports,
)
from turnfold.store.database.session_rows import SessionJournal, SessionRow, lock_by_key, write_back
from turnfold.store.database.statements import BulkInsert, bulk_update
from turnfold.store.ingest.duplicates import (
    KNOWN_EVENTS,
    StoredEventKey,
    dead_letter_row,
    first_of_each,
    first_two,
    runs,
)
from turnfold.store.ingest.evict import evict
from turnfold.store.ingest.limits import INSERT_LIMITS, limits_of
from turnfold.store.ingest.pairing import Touched, repair_pairs
from turnfold.store.ingest.search_index import delete_indexed
from turnfold.store.ingest.tombstones import erased_before, lock_against_erase, record_duplicates
from turnfold.store.ingest.usage import INSERT_REPORTS, Calibrator

EVENT_ID_REUSED = "event_id_reused"
ANOTHER_EVENT = "this event id stands for other content or another session of the agent"
TOO_MANY_SESSIONS = "too_many_sessions"
USER = str(Role.USER)
SYSTEM_ROLES = frozenset(str(role) for role in Role if role.is_system)
_INSERT_EVENTS = BulkInsert(
    events, ("agent_id", "event_id", "sid", "stream_seq", "digest", "envelope")
)
_INSERT_MESSAGES = BulkInsert(messages, STORED)
_INSERT_CALLS = BulkInsert(tool_calls, ("sid", "call_id", "position", "slot"))
_EVICTED_BEFORE = bulk_update(messages, where=("sid", "position"), values=("compaction_id",))
_BODIES = (
    select(messages.c.body, messages.c.is_error)
    .where(
        messages.c.sid == bindparam("of_sid"),
        messages.c.position.between(bindparam("first"), bindparam("last")),
    )
    .order_by(messages.c.position)
)


def _without_mark(body: dict[str, Any]) -> dict[str, Any]:
    """Return a stored message without the mark that older releases kept in it."""
    return {
        name: value
        for name, value in body.items()
        if name != META_MARK or not isinstance(value, bool)
    }


class BatchWriter:
    """Writes one batch within its transaction."""

    def __init__(
        self, connection: Connection, installation: Installation, payloads: Mapping[int, bytes]
    ) -> None:
        self._connection = connection
        self._installation = installation
        self._payloads = payloads
        self._records = SessionJournal()
        self._sessions: dict[SessionKey, SessionRow] = {}
        self._touched: set[Touched] = set()
        self._dead: list[DeadLetter] = []
        self._new: list[DecodedEvent] = []
        self._moved: set[SessionKey] = set()
        self._limited: set[SessionKey] = set()
        self._copies: set[tuple[int, int]] = set()
        self._duplicates = 0

    def write(self, arrivals: Sequence[DecodedEvent], dead: Sequence[DeadLetter]) -> IngestResult:
        """Store decoded events and dead letters, in stream order; return the counts."""
        sequences = [arrival.stream_seq for arrival in arrivals] + [
            letter.stream_seq for letter in dead
        ]
        lock_against_erase(self._connection)
        if erased := erased_before(self._connection, arrivals, dead):
            self._duplicates += len(erased)
            arrivals = [arrival for arrival in arrivals if arrival.stream_seq not in erased]
            dead = [letter for letter in dead if letter.stream_seq not in erased]
        self._dead.extend(dead)
        evictions = 0
        if arrivals and (arrivals := self._admit(arrivals)):
            self._insert(arrivals)
            evictions = self._update_sessions()
        self._records.write(self._connection)
        self._bury()
        record_duplicates(self._connection, self._copies)
        ranges.add(self._connection, runs(sequences))
        return IngestResult(
            events=len(self._new),
            messages=sum(len(arrival.messages) for arrival in self._new),
            duplicates=self._duplicates,
            dead_letters=len(self._dead),
            evictions=evictions,
        )

    def _update_sessions(self) -> int:
        """Pair calls and results, update counters, and evict; return how many compactions opened."""
        paired = repair_pairs(self._connection, self._touched)
        for session in self._sessions.values():
            session.evicted_changes += session.sid in paired
        nameless = {session.sid for session in self._sessions.values() if session.model is None}
        changed = self._count()
        changes = self._learn_limits()
        reports = sum(arrival.report is not None for arrival in self._new)
        calibrator = Calibrator(self._connection, reports)
        self._calibrate_named(nameless, calibrator)
        arrived = {arrival.stream_seq: arrival for arrival in self._new}
        evictions = evict(
            self._connection, changed, self._readings(), arrived, calibrator, self._installation, self._records,
            changes,
        )  # fmt: skip
        write_back(self._connection, changed)
        self._remove_empty()
        return evictions

    def _readings(self) -> Mapping[int, Mapping[int, UsageReading | None]]:
        """Return the sequences of new events by session, each with the usage that it reports."""
        readings: defaultdict[int, dict[int, UsageReading | None]] = defaultdict(dict)
        for arrival in self._new:
            seq, at_ms, report = arrival.stream_seq, arrival.at_ms, arrival.report
            readings[self._sessions[arrival.key].sid][seq] = (
                UsageReading(seq, at_ms, report.tokens)
                if report and not (arrival.reported and arrival.reported.is_overflow)
                else None
            )
        return readings

    def _learn_limits(self) -> Mapping[int, WindowChanges]:
        """Update the windows that sessions learned from providers, and record this in the audit.

        Return the changes of the window of each such session's model.
        """
        changes: dict[int, WindowChanges] = {}
        for key in sorted(self._limited):
            session = self._sessions[key]
            before, limits = session.limits, limits_of(self._connection, session.sid)
            session.window_limits = json.dumps(limits) if limits else None
            new = [arrival for arrival in self._new if arrival.key == key and arrival.model]
            of_model = [
                (
                    arrival.stream_seq,
                    arrival.reported.limit_tokens if arrival.reported else None,
                    arrival.report.prompt_tokens
                    if arrival.report and arrival.answer is not None
                    else 0,
                )
                for arrival in sorted(new, key=attrgetter("stream_seq"))
                if storable(arrival.model or "") == session.model
            ]
            changes[session.sid] = changes_in_batch(before.get(session.model or ""), of_model)
            named = {
                storable(arrival.model or "")
                for arrival in new
                if arrival.reported and arrival.reported.limit_tokens
            }
            for model in sorted(limits.keys() - named):
                if limits[model] != before.get(model):
                    self._records.add_audit_row(
                        session,
                        "window",
                        at_ms=session.last_event_at_ms or 0,
                        reason="success",
                        model=model,
                        limit_tokens=limits[model],
                    )
        for arrival in self._new:
            reported = arrival.reported
            if reported is not None and (reported.limit_tokens or reported.is_overflow):
                self._records.add_audit_row(
                    self._sessions[arrival.key],
                    "window",
                    at_ms=arrival.at_ms,
                    reason="overflow" if reported.is_overflow else "limit",
                    model=storable(arrival.model or ""),
                    limit_tokens=reported.limit_tokens,
                    event_id=arrival.event_id,
                )
        return changes

    def _calibrate_named(self, nameless: set[int], calibrator: Calibrator) -> None:
        """Set the factor of sessions that named their model for the first time in this batch."""
        first = {arrival.key: arrival for arrival in reversed(self._new) if arrival.model}
        for key, arrival in first.items():
            session = self._sessions[key]
            if session.sid in nameless:
                before = arrival.stream_seq - 1
                session.factor = calibrator.factor(key.agent_id, session.model, before)

    def _admit(self, arrivals: Sequence[DecodedEvent]) -> Sequence[DecodedEvent]:
        """Lock or create the sessions of these events; refuse sessions above the limit."""
        keys = dict.fromkeys(arrival.key for arrival in arrivals)
        self._sessions = lock_by_key(self._connection, keys, create=self._installation.max_sessions)
        if len(self._sessions) == len(keys):
            return arrivals
        for arrival in arrivals:
            if arrival.key not in self._sessions:
                self._refuse(
                    arrival,
                    TOO_MANY_SESSIONS,
                    f"the agent has {self._installation.max_sessions} sessions, and may have no more",
                )
        return [arrival for arrival in arrivals if arrival.key in self._sessions]

    def _remove_empty(self) -> None:
        """Remove sessions that this batch created and whose events it refused.

        A session that a policy request created has a revision, and stays.
        """
        stored = {arrival.key for arrival in self._new} | self._moved
        empty = [
            session.sid
            for key, session in self._sessions.items()
            if key not in stored and session.last_event_at_ms is None and session.revision == 0
        ]
        if empty:
            self._connection.execute(delete(sessions).where(sessions.c.sid.in_(empty)))

    def _insert(self, arrivals: Sequence[DecodedEvent]) -> None:
        """Insert new events.

        Nearly always all are new, so the insert comes first; the unique keys report duplicates.
        """
        fresh, repeated = first_of_each(arrivals)
        try:
            with self._connection.begin_nested():
                self._insert_rows(fresh)
        except IntegrityError:
            fresh = self._unknown(fresh)
            self._insert_rows(fresh)
        self._new = fresh
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
                self._meet_known(arrival, row)
        return fresh

    def _meet_known(self, arrival: DecodedEvent, row: StoredEventKey) -> None:
        """Handle a known event id: keep the lower sequence of a duplicate, or refuse the event."""
        sid = self._sessions[arrival.key].sid
        if row.sid != sid:
            self._refuse(arrival, EVENT_ID_REUSED, ANOTHER_EVENT)
            return
        span = {
            "of_sid": sid,
            "first": position_of(row.stream_seq, 0),
            "last": position_of(row.stream_seq, MESSAGES_PER_EVENT - 1),
        }
        if row.digest != arrival.digest and not self._is_stored(arrival, span):
            self._refuse(arrival, EVENT_ID_REUSED, ANOTHER_EVENT)
            return
        self._duplicates += 1
        if arrival.stream_seq != row.stream_seq:
            self._copies.add((sid, max(arrival.stream_seq, row.stream_seq)))
        if arrival.stream_seq < row.stream_seq:
            self._move(arrival, span)

    def _is_stored(self, arrival: DecodedEvent, span: dict[str, int]) -> bool:
        """Return whether the stored messages have the same content in other JSON."""
        if not arrival.messages:
            return False
        stored = self._connection.execute(_BODIES, span).all()
        said = [json.loads(message.body) for message in arrival.messages]
        return [_without_mark(json.loads(body)) for body, _ in stored] == said and all(
            bool(is_error) == arrival.is_error for _, is_error in stored
        )

    def _move(self, arrival: DecodedEvent, span: dict[str, int]) -> None:
        """Move a stored event to the earlier sequence of its duplicate; evictions stay."""
        connection, sid = self._connection, span["of_sid"]
        first = position_of(arrival.stream_seq, 0)
        is_moved = (messages.c.sid == sid) & messages.c.position.between(
            span["first"], span["last"]
        )
        rows = select(messages.c.position, messages.c.compaction_id).where(
            is_moved, messages.c.compaction_id.is_not(None)
        )
        evicted = [
            (row, sid, first + position - span["first"])
            for position, row in connection.execute(rows)
        ]
        came_last = (
            connection.execute(select(func.max(messages.c.created_at_ms)).where(is_moved)).scalar()
            == self._sessions[arrival.key].last_event_at_ms
        )
        delete_indexed(connection, sid, first=span["first"], last=span["last"])
        connection.execute(delete(messages).where(is_moved))
        calls = (tool_calls.c.sid == sid) & tool_calls.c.position.between(
            span["first"], span["last"]
        )
        connection.execute(delete(tool_calls).where(calls))
        reports = (usage_reports.c.sid == sid) & usage_reports.c.position.between(
            span["first"], span["last"]
        )
        connection.execute(delete(usage_reports).where(reports))
        is_limit = (reported_limits.c.sid == sid) & (
            reported_limits.c.stream_seq == span["first"] // MESSAGES_PER_EVENT
        )
        connection.execute(delete(reported_limits).where(is_limit))
        identity = (events.c.agent_id == arrival.key.agent_id) & (
            events.c.event_id == arrival.event_id
        )
        connection.execute(delete(events).where(identity))
        self._insert_rows([arrival])
        _EVICTED_BEFORE.run(connection, evicted)
        # A compaction finds its messages between its first and last position: they widen with the move.
        reaches = compactions.c.compaction_id.in_({row for row, _, _ in evicted}) & (
            compactions.c.first_position > first
        )
        connection.execute(update(compactions).where(reaches).values(first_position=first))
        session = self._sessions[arrival.key]
        session.revision += 1
        session.evicted_changes += bool(evicted)
        session.unindexed_from = (
            first if session.unindexed_from is None else min(first, session.unindexed_from)
        )
        session.gauge = session.gauge.moved(
            span["first"] // MESSAGES_PER_EVENT, arrival.stream_seq, arrival.at_ms
        )
        if came_last:
            session.last_event_at_ms = connection.execute(
                select(func.max(messages.c.created_at_ms)).where(messages.c.sid == sid)
            ).scalar_one()
            session.idle_at_ms = self._idle_at_ms(session)
        self._moved.add(arrival.key)

    def _refuse(self, arrival: DecodedEvent, reason: str, detail: str) -> None:
        payload = self._payloads.get(arrival.stream_seq, b"")
        stored_as = (
            arrival.stream_seq,
            arrival.at_ms,
            arrival.subject,
            reason,
            detail,
            len(payload),
            payload[:PAYLOAD_KEPT_BYTES],
        )
        self._dead.append(DeadLetter(*stored_as, key=arrival.key))

    def _insert_rows(self, arrivals: Sequence[DecodedEvent]) -> None:
        event_rows: list[tuple[Any, ...]] = []
        rows: list[tuple[Any, ...]] = []
        calls: list[tuple[Any, ...]] = []
        reports: list[tuple[Any, ...]] = []
        limits: list[tuple[Any, ...]] = []
        for arrival in arrivals:
            session = self._sessions[arrival.key]
            seq, sid = arrival.stream_seq, session.sid
            event_rows.append(
                (arrival.key.agent_id, arrival.event_id, sid, seq, arrival.digest, arrival.envelope)
            )
            rows += message_rows(arrival, sid)
            if (
                arrival.report is not None
                and arrival.model
                and (answer := arrival.answer) is not None
            ):
                model, counted = storable(arrival.model), arrival.report.prompt_tokens
                if counted > session.limits.get(model, counted):
                    self._limited.add(arrival.key)
                reports.append(
                    (
                        sid,
                        position_of(seq, answer),
                        arrival.key.agent_id,
                        model,
                        counted,
                        arrival.at_ms,
                    )
                )
            if arrival.reported and arrival.reported.limit_tokens and arrival.model:
                self._limited.add(arrival.key)
                limit_tokens = arrival.reported.limit_tokens
                limits.append((sid, seq, storable(arrival.model), limit_tokens, arrival.at_ms))
            for index, message in enumerate(arrival.messages):
                if message.calls:
                    made = [
                        (sid, storable(call.call_id), position_of(seq, index), call.slot)
                        for call in message.calls
                    ]
                    calls += made
                    self._touched.update([row[:2] for row in made])
                if message.tool_call_id:
                    self._touched.add((sid, storable(message.tool_call_id)))
        inserts = (
            (_INSERT_EVENTS, event_rows),
            (_INSERT_MESSAGES, rows),
            (_INSERT_CALLS, calls),
            (INSERT_REPORTS, reports),
            (INSERT_LIMITS, limits),
        )
        for insert, values in inserts:
            # In the order of the table's key, what belongs to one page is written to it at once.
            values.sort(key=first_two)
            insert.run(self._connection, values)

    def _idle_at_ms(self, session: SessionRow) -> int | None:
        return idle_at_ms(
            session.last_event_at_ms or 0,
            self._installation.policy(session.agent_wishes, session.wishes),
        )

    def _count(self) -> list[SessionRow]:
        """Update the counters of the touched sessions; return those that changed."""
        by_session: defaultdict[SessionKey, list[DecodedEvent]] = defaultdict(list)
        for arrival in self._new:
            by_session[arrival.key].append(arrival)
        for key, arrivals in by_session.items():
            session = self._sessions[key]
            session.revision += 1
            messages = tokens = live = live_tokens = rounds = 0
            for arrival in arrivals:
                if arrival.model and arrival.stream_seq >= session.model_seq:
                    session.model, session.model_seq = storable(arrival.model), arrival.stream_seq
                for message in arrival.messages:
                    messages += 1
                    tokens += message.tokens
                    if message.role not in SYSTEM_ROLES:
                        live += 1
                        live_tokens += message.tokens
                    rounds += message.role == USER and not message.is_meta
            session.messages_total += messages
            session.tokens_total += tokens
            session.live_messages += live
            session.live_tokens += live_tokens
            session.rounds += rounds
            if told := [arrival.stream_seq for arrival in arrivals if arrival.messages]:
                first = position_of(min(told), 0)
                session.unindexed_from = (
                    first if session.unindexed_from is None else min(first, session.unindexed_from)
                )
            session.last_event_at_ms = max(
                session.last_event_at_ms or 0, *[arrival.at_ms for arrival in arrivals]
            )
            session.idle_at_ms = self._idle_at_ms(session)
        return [
            session
            for key, session in self._sessions.items()
            if key in by_session or key in self._moved
        ]

    def _bury(self) -> None:
        if self._dead:
            rows = [dead_letter_row(letter) for letter in self._dead]
            self._connection.execute(
                insert_for(self._connection)(dead_letters).on_conflict_do_nothing(), rows
            )
