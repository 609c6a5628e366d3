"""The rows of new events: events, messages, calls and reports of providers, inserted in bulk."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from turnfold.messages import SessionKey, position_of
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.database.message_rows import (
    STORED,
    add_message_rows,
    named_place,
    storable_key,
)
from turnfold.store.database.schema import events, messages, tool_calls
from turnfold.store.database.session_rows import SessionRow
from turnfold.store.database.statements import BulkInsert
from turnfold.store.ingest.batch.stored_events import first_two
from turnfold.store.ingest.model_windows import INSERT_LIMITS
from turnfold.store.ingest.pairing import Touched
from turnfold.store.ingest.retraction import INSERT_RETRACTIONS
from turnfold.store.ingest.usage import INSERT_REPORTS, ReportRow, place_reports

_INSERT_EVENTS = BulkInsert(
    events, ("agent_id", "event_id", "sid", "stream_seq", "digest", "envelope")
)
_INSERT_MESSAGES = BulkInsert(messages, STORED)
_INSERT_CALLS = BulkInsert(tool_calls, ("sid", "call_id", "position", "slot"))

_Row = tuple[Any, ...]


@dataclass(slots=True)
class EventRows:
    """The rows of a batch of events by table.

    `touched` are the call ids whose pairing may change, `limited` the sessions whose windows may
    change. `named` has the sequences from which reports of sessions may stand with other answers.
    Mutable: rows of all events are collected in lists, and each list is one statement.
    """

    events: list[_Row] = field(default_factory=list)
    messages: list[_Row] = field(default_factory=list)
    calls: list[_Row] = field(default_factory=list)
    reports: list[_Row] = field(default_factory=list)
    limits: list[_Row] = field(default_factory=list)
    retractions: list[_Row] = field(default_factory=list)
    touched: set[Touched] = field(default_factory=set)
    limited: set[SessionKey] = field(default_factory=set)
    named: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        arrivals: Iterable[tuple[DecodedEvent, SessionRow]],
        actor_of: Callable[[DecodedEvent], str],
    ) -> "EventRows":
        """Collect the rows of events, each with its session; ask for actors of retractions."""
        rows = cls()
        for arrival, session in arrivals:
            key, sid, seq = arrival.key, session.sid, arrival.stream_seq
            rows.events.append(
                (key.agent_id, arrival.event_id, sid, seq, arrival.digest, arrival.envelope)
            )
            if arrival.messages and seq < session.reported_seq:
                rows._name(session, seq)
                # A call that an answer stored late places before a reported limit proves none.
                rows.limited |= {key} if session.limits else set()
            add_message_rows(arrival, sid, rows.messages)
            if arrival.model:
                rows._add_reports(arrival, storable_key(arrival.model), session)
            rows._add_calls(arrival, sid)
            if arrival.retraction is not None:
                named = json.dumps(arrival.retraction)
                rows.retractions.append((sid, seq, arrival.at_ms, named, actor_of(arrival)))
        return rows

    def insert_events(self, connection: Connection) -> None:
        """Insert the events, before the rows that belong to them.

        Raises:
            IntegrityError: an event is stored already.
        """
        self.events.sort(key=first_two)
        _INSERT_EVENTS.run(connection, self.events)

    def insert_rest(self, connection: Connection) -> None:
        """Insert all rows but the events."""
        inserts = (
            (_INSERT_MESSAGES, self.messages),
            (_INSERT_CALLS, self.calls),
            (INSERT_REPORTS, self.reports),
            (INSERT_LIMITS, self.limits),
            (INSERT_RETRACTIONS, self.retractions),
        )
        for insert, values in inserts:
            # In the order of the primary key, all rows of one page are written to it at once.
            values.sort(key=first_two)
            insert.run(connection, values)
        # After all messages, because the answer that a report names may be in this batch.
        for (agent_id, sid), seq in self.named.items():
            place_reports(connection, agent_id, sid, seq)

    def _name(self, session: SessionRow, seq: int) -> None:
        place = (session.key.agent_id, session.sid)
        self.named[place] = min(seq, self.named.get(place, seq))

    def _add_reports(self, arrival: DecodedEvent, model: str, session: SessionRow) -> None:
        """Add what the provider said: the usage of the answer, and the window of the model."""
        key, sid, seq, at_ms = arrival.key, session.sid, arrival.stream_seq, arrival.at_ms
        answer = arrival.answer
        if arrival.report is not None and answer is not None:
            tokens = arrival.report.prompt_tokens
            # A call that succeeded is proof of a larger window than the one reported.
            if tokens > session.limits.get(model, tokens):
                self.limited.add(key)
            message_id = arrival.reported.message_id if arrival.reported else None
            if message_id is None or named_place(message_id) is None:
                message_id = None
            else:
                self._name(session, seq)
            place = position_of(seq, answer)
            self.reports.append(
                ReportRow(sid, place, key.agent_id, model, tokens, at_ms, message_id, place)
            )
        if arrival.reported and arrival.reported.limit_tokens:
            self.limited.add(key)
            self.limits.append((sid, seq, model, arrival.reported.limit_tokens, at_ms))

    def _add_calls(self, arrival: DecodedEvent, sid: int) -> None:
        for index, message in enumerate(arrival.messages):
            position = position_of(arrival.stream_seq, index)
            for call in message.calls:
                call_id = storable_key(call.call_id)
                self.calls.append((sid, call_id, position, call.slot))
                self.touched.add((sid, call_id))
            if message.tool_call_id:
                self.touched.add((sid, storable_key(message.tool_call_id)))
