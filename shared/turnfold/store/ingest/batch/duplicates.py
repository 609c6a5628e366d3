"""Find the events of a batch that are stored already, or that name an event twice."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import select

from turnfold.ports.ingest import DeadLetter, DecodedEvent
from turnfold.store.database import sequence_ranges as ranges
from turnfold.store.database.schema import events
from turnfold.store.database.statements import PreparedPairs

_pairs = PreparedPairs.pairs
KNOWN_EVENTS = PreparedPairs(
    select(
        events.c.agent_id, events.c.event_id, events.c.sid, events.c.stream_seq, events.c.digest
    ).where(events.c.agent_id == _pairs.c.a, events.c.event_id == _pairs.c.b),
    (events.c.agent_id.type, events.c.event_id.type),
)


class StoredEventKey(NamedTuple):
    """The columns of a stored event that a duplicate is compared with."""

    sid: int
    stream_seq: int
    digest: bytes


first_two = itemgetter(0, 1)


def runs(sequences: Sequence[int]) -> list[ranges.Range]:
    """Return sequences as ranges."""
    return ranges.joined((seq, seq) for seq in sequences)


def dead_letter_row(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a row of its table."""
    row = letter._asdict()
    agent_id, session_id = row.pop("key") or (None, None)
    return {**row, "agent_id": agent_id, "session_id": session_id}


def first_of_each(
    arrivals: Sequence[DecodedEvent],
) -> tuple[list[DecodedEvent], list[DecodedEvent]]:
    """Split a batch into the first occurrence of each event and the repeated ones."""
    first: dict[tuple[str, str], DecodedEvent] = {}
    repeated = [
        arrival
        for arrival in arrivals
        if first.setdefault((arrival.key.agent_id, arrival.event_id), arrival) is not arrival
    ]
    return list(first.values()), repeated
