"""Update the counters of a session with its new events. The caller writes them back in bulk."""

from collections.abc import Sequence

from turnfold.messages import ROLES, Role, position_of
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.database.message_rows import storable_key
from turnfold.store.database.session_rows import SessionRow

_USER = str(Role.USER)


def count_events(session: SessionRow, arrivals: Sequence[DecodedEvent]) -> bool:
    """Add new events of one session to its counters, and take over the newest model.

    Return whether an event but the first changed the model.
    """
    has_switched = False
    session.revision += 1
    session.appends += 1
    # The pinned message stays in the window, whatever leaves it: no trigger counts it.
    total = tokens = pinned = pinned_tokens = rounds = 0
    for arrival in arrivals:
        # The order of the stream decides, not that of arrival.
        if arrival.model and arrival.stream_seq >= session.model_seq:
            model, session.model_seq = storable_key(arrival.model), arrival.stream_seq
            has_switched |= model != session.model and arrival is not arrivals[0]
            session.model = model
        if arrival.retraction is not None:
            # Another number each time, also for one that came late: caches go by it.
            session.retracted_seq = max(session.retracted_seq + 1, arrival.stream_seq)
        messages = arrival.messages
        total += len(messages)
        if messages and ROLES[messages[0].role].is_system:
            pinned += 1
            pinned_tokens += messages[0].tokens
        for message in messages:
            tokens += message.tokens
            rounds += message.role == _USER and not message.is_meta
    session.messages_total += total
    session.tokens_total += tokens
    session.live_messages += total - pinned
    session.live_tokens += tokens - pinned_tokens
    session.rounds += rounds
    # Reports and retractions have no messages, and so nothing to index.
    if seqs := [arrival.stream_seq for arrival in arrivals if arrival.messages]:
        note_unindexed(session, position_of(min(seqs), 0))
    session.last_event_at_ms = max(
        session.last_event_at_ms or 0, *[arrival.at_ms for arrival in arrivals]
    )
    return has_switched


def note_unindexed(session: SessionRow, first: int) -> None:
    """Record that the search index lacks messages from this position on."""
    known = session.unindexed_from
    session.unindexed_from = first if known is None else min(first, known)
