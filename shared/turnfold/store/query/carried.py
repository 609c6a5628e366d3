"""Read what events carry for their messages; see `turnfold.contracts.envelope`."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import ColumnElement, bindparam, func, select

from turnfold.contracts.envelope import CARRY_MARK, carried_texts
from turnfold.errors import TooLarge
from turnfold.messages import split_message_id
from turnfold.ports.query import OriginalMessage
from turnfold.store.database.inline_reader import INLINE_CHARACTERS, WouldBlock
from turnfold.store.database.schema import events, sessions
from turnfold.store.database.statements import (
    PreparedIn,
    SupportsStatements,
)

CARRIED_CHARACTERS = 8_000_000
"""The most that events may carry for one answer: it is not limited by tokens, but by memory."""

# The key of events begins with the agent: an event id is unique only within its agent.
_of_agent = events.c.agent_id == (
    select(sessions.c.agent_id).where(sessions.c.sid == bindparam("of_sid")).scalar_subquery()
)


def carried_length(event_id: ColumnElement[str]) -> ColumnElement[int | None]:
    """Return the length of an event's envelope; null if the event cannot carry anything.

    A subquery and no join, so that the event is looked up by its key, however long the page is.
    """
    is_event = _of_agent & (events.c.event_id == event_id) & _has_mark
    return select(func.length(events.c.envelope)).where(is_event).scalar_subquery()


# Another member may contain the mark, too: whether something is carried, `carried_texts` tells.
_has_mark = events.c.envelope.contains(CARRY_MARK)
_may_carry = _of_agent & _has_mark
_LENGTHS = PreparedIn(
    select(events.c.event_id, func.length(events.c.envelope)).where(_may_carry),
    events.c.event_id,
    "of_sid",
)
_ENVELOPES = PreparedIn(
    select(events.c.event_id, events.c.envelope).where(_may_carry),
    events.c.event_id,
    "of_sid",
)


def with_carry(
    connection: SupportsStatements,
    sid: int,
    originals: Sequence[OriginalMessage],
    *,
    is_inline: bool = False,
) -> Sequence[OriginalMessage]:
    """Return messages with what their events carry for them.

    Raises:
        TooLarge: that is too much for an answer.
        WouldBlock: that is too much for the thread of the event loop (`is_inline`).
    """
    event_ids = {original.message_id.rpartition("#")[0] for original in originals}
    lengths: dict[str, int] = {
        row[0]: row[1] for row in _LENGTHS.rows(connection, sid, sorted(event_ids))
    }
    if is_inline and sum(lengths.values()) > INLINE_CHARACTERS:
        raise WouldBlock
    if sum(lengths.values()) > CARRIED_CHARACTERS:
        raise TooLarge(
            f"the events of these messages carry more than {CARRIED_CHARACTERS} characters;"
            " ask for fewer messages at once"
        )
    return with_carry_of(connection, sid, originals, lengths)


def with_carry_of(
    connection: SupportsStatements,
    sid: int,
    originals: Sequence[OriginalMessage],
    event_ids: Collection[str],
) -> Sequence[OriginalMessage]:
    """Return messages with what is carried for them by these events."""
    carried: Mapping[str, Sequence[str | None]] = {
        event_id: carried_texts(envelope)
        for event_id, envelope in _ENVELOPES.rows(connection, sid, sorted(event_ids))
    }
    if not carried:
        return originals
    return [original._replace(carry=_carry(original, carried)) for original in originals]


def _carry(original: OriginalMessage, carried: Mapping[str, Sequence[str | None]]) -> str | None:
    event_id, index = split_message_id(original.message_id) or ("", 0)
    texts = carried.get(event_id, ())
    return texts[index] if index < len(texts) else None
