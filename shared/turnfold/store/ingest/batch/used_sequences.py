"""Events under sequences that stored events use: the stream was restored from an older backup.

Its end may have passed that of the database before a worker checked.
"""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, select, true

from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import StartError
from turnfold.ports.ingest import DeadLetter, DecodedEvent
from turnfold.store.database.schema import dead_letters, events, sessions
from turnfold.store.database.sequence_ranges import Range
from turnfold.store.ingest.tombstones import in_portions


def refuse_used_in_sessions(connection: Connection, arrivals: Sequence[DecodedEvent]) -> None:
    """Refuse events under the sequences of others of their sessions; an index finds these.

    Raises:
        StartError: the stream is an older copy.
    """
    for key in {arrival.key for arrival in arrivals}:
        is_of_session = (
            (events.c.sid == sessions.c.sid)
            & (sessions.c.agent_id == key.agent_id)
            & (sessions.c.session_id == key.session_id)
        )
        _refuse_used(connection, [event for event in arrivals if event.key == key], is_of_session)


def refuse_used(
    connection: Connection,
    arrivals: Iterable[DecodedEvent],
    letters: Iterable[DeadLetter],
    ingested: Collection[Range],
) -> None:
    """Refuse new or moved events, and dead letters, whose sequences stand for others already.

    Nearly always none of the sequences is ingested yet: only that of a redelivered dead letter, or
    of an event that was deleted from the stream on its way.

    Raises:
        StartError: the stream is an older copy.
    """

    def was_ingested(seq: int) -> bool:
        return any(first <= seq <= last for first, last in ingested)

    # No index finds them by sequence alone.
    if suspects := [event for event in arrivals if was_ingested(event.stream_seq)]:
        _refuse_used(connection, suspects, true())
    for letter in letters:
        if was_ingested(letter.stream_seq):
            columns = (dead_letters.c.size_bytes, dead_letters.c.payload)
            of_letter = select(*columns).where(dead_letters.c.stream_seq == letter.stream_seq)
            for size_bytes, payload in connection.execute(of_letter):
                kept = bytes(payload)
                if (size_bytes, kept) != (letter.size_bytes, letter.payload[: len(kept)]):
                    raise _older_copy(letter.stream_seq)


def _refuse_used(
    connection: Connection, arrivals: Sequence[DecodedEvent], condition: ColumnElement[bool]
) -> None:
    ids = {event.stream_seq: (event.key.agent_id, event.event_id) for event in arrivals}
    for portion in in_portions(sorted(ids)):
        stored = select(events.c.stream_seq, events.c.agent_id, events.c.event_id).where(
            condition, events.c.stream_seq.in_(portion)
        )
        for seq, *event_id in connection.execute(stored):
            if ids[seq] != tuple(event_id):
                raise _older_copy(seq)


def _older_copy(seq: int) -> StartError:
    return StartError(
        f"sequence {seq} stands for another event than the stored one: the stream of this bus was "
        "restored from a backup older than the database; restore a newer one, or remove the stream "
        f"{EVENTS_STREAM} from this bus, and run `turnfold migrate` again"
    )
